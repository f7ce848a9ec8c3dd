"""Names and passwords of ~/.netrc, or of the file that $NETRC names."""

from __future__ import annotations

import logging
import netrc
import os

_log = logging.getLogger(__name__)


def find(host: str, user: str = "") -> tuple[str, str] | None:
    """Name and password for `host`; None when there are none, or only another user's."""
    path = os.environ.get("NETRC") or os.path.expanduser("~/.netrc")
    try:
        found = netrc.netrc(path).authenticators(host)
    except FileNotFoundError:
        return None
    except (OSError, netrc.NetrcParseError) as error:
        _log.warning("no credentials for %s: %s", host, error)
        return None
    if found is None or (user and found[0] != user):
        return None
    return found[0], found[2] or ""
