"""Secrets in texts that come from elsewhere are hidden before anybody sees them."""

from __future__ import annotations

import re

# What our own code never puts into a message may still come in the words of a library: the parameters of
# signed URLs, passwords in addresses, headers.
_SECRETS = re.compile(
    r"""(?ix)
    ( [a-z]+:// [^/\s:@"'<>]* : ) [^/\s"'<>]+ (?=@)                                    # scheme://user:password@
    | ( \b (?: x-(?:amz|goog)-(?:signature|credential|security-token) | awsaccesskeyid | googleaccessid
             | signature | sig | credential | access_?token | refresh_?token | id_?token | sas | password
             | passwd | secret | client_?secret | accountkey | api_?key ) = ) [^&;,\s"'<>]+
    | ( (?: proxy- )? authorization ["']? \s* [:=] \s* ["']? ) [^"'\n]+               # all of the header
    | ( x-amz-security-token ["']? \s* : \s* ["']? ) [^\s,"']+
    """
)


def redacted(text: str) -> str:
    """`text` with what looks like a secret replaced by `***`."""

    def hidden(found: re.Match[str]) -> str:
        return next(group for group in found.groups() if group is not None) + "***"

    return _SECRETS.sub(hidden, text)
