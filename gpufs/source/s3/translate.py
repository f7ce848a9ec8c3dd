"""The one place where failures of S3, of obstore and of botocore's HTTP client become gpufs errors."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpufs.errors import AccessDenied, GpufsError, NotFound, ObjectArchived, RemoteFailed, VersionGone
from gpufs.source.answers import with_id
from gpufs.source.retry import Transient

if TYPE_CHECKING:
    from collections.abc import Mapping


class CredentialsRefused(AccessDenied):
    """The server does not accept these credentials (any more); others may do."""


class WrongRegion(RemoteFailed):
    """The bucket is in another region than the request was signed for and sent to."""

    def __init__(self, message: str, region: str | None) -> None:
        super().__init__(message)
        self.region = region


@dataclass(frozen=True, slots=True)
class Subject:
    """What a request was about; `key` is empty when it was the bucket."""

    bucket: str
    key: bytes = b""

    def __str__(self) -> str:
        key = self.key.decode(errors="backslashreplace")
        return f"s3://{self.bucket}/{key}" if key else f"s3://{self.bucket}"


# Error codes: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
_RENEWABLE = frozenset(
    {
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
_REGION = frozenset(
    {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}
)
_TRANSIENT = frozenset(
    {"InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown", "Throttling", "ThrottlingException"}
)
_TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504})
_BUSY, _SLOW = frozenset({429, 503}), frozenset({"SlowDown", "Throttling", "ThrottlingException"})


def refusal(
    subject: Subject, status: int, code: str, message: str, request_id: str, region: str | None = None
) -> GpufsError | Transient:
    """What an HTTP error answer means. Code, message and request id come from its XML, or are empty."""
    said = with_id(f"{status} {code}".strip() + (f": {message}" if message else ""), request_id)
    if status in _TRANSIENT_STATUS or code in _TRANSIENT:
        busy = status in _BUSY or code in _SLOW
        return Transient(f"the server answered {said}", timed_out=status in (408, 504), busy=busy)
    if status in (301, 307, 308) or code in _REGION:
        hint = f"mount with the option region={region}" if region else "set the option region"
        return WrongRegion(f"bucket {subject.bucket} is in another region; {hint} ({said})", region)
    if code == "InvalidObjectState":
        return ObjectArchived(
            f"{subject} is in an archive storage class; restore it first: aws s3api restore-object"
            f" --bucket {shlex.quote(subject.bucket)}"
            f" --key {shlex.quote(subject.key.decode(errors='backslashreplace'))}"
            " --restore-request '{\"Days\":7}'"
        )
    if code == "RequestTimeTooSkewed":
        return AccessDenied(f"{subject}: the clock of this host is wrong ({said})")
    if status in (400, 403) and not code:  # HEAD: AWS says 400 for an expired token, and nothing else
        return CredentialsRefused(
            f"{subject}: refused, no reason given: the credentials may be expired or lack permission ({said})"
        )
    if code in _RENEWABLE or status == 401:
        return CredentialsRefused(f"{subject}: the credentials are refused: renew them ({said})")
    if status == 403:
        return AccessDenied(f"{subject}: access denied: s3:ListBucket and s3:GetObject are needed ({said})")
    if code == "NoSuchBucket":
        return NotFound(
            f"no such bucket: {subject.bucket} (check its name, and endpoint_url if it is not on AWS)"
        )
    if status == 404:
        return NotFound(f"{subject} does not exist")
    if status in (412, 416):  # 416: an object shorter than the one of the listing
        return VersionGone(f"{subject} was replaced by another version")
    return RemoteFailed(f"{subject}: the server answered {said}")


def refusal_of_answer(subject: Subject, status: int, headers: Mapping[str, str], body: bytes) -> Exception:
    """The same, from an answer of the signed client. `headers` has lower-case names."""
    text = body[:4096].decode(errors="replace")
    return refusal(
        subject,
        status,
        _tag(text, "Code"),
        _tag(text, "Message"),
        _ids(text, headers),
        headers.get("x-amz-bucket-region") or _tag(text, "Region") or None,
    )


def of_obstore(error: Exception, subject: Subject) -> Exception:
    """What an exception from obstore means: it tells status, body and kind of failure only as text."""
    text = str(error)
    status = re.search(r"non-2xx status code: (\d{3})", text)
    if status is not None:
        return refusal(subject, int(status[1]), _tag(text, "Code"), _tag(text, "Message"), _ids(text, {}))
    if "redirect without LOCATION" in text:
        return refusal(subject, 301, "PermanentRedirect", "", "")
    kind = re.search(r"HttpError \{\s*kind: (\w+)", text)
    if kind is not None:
        untrusted = re.search(r"InvalidCertificate\(\s*(?:Other\(\s*OtherError\(\s*)?(\w+)", text)
        if untrusted is not None:
            return RemoteFailed(
                f"TLS: the server's certificate is not trusted; see ca_bundle ({untrusted[1]})"
            )
        if kind[1] == "Timeout":
            return Transient("the server did not answer in time", timed_out=True)
        if kind[1] == "Connect":
            return Transient(f"cannot connect ({_cause(text)})", busy=True)
        return Transient(f"the connection broke ({_cause(text)})")
    if isinstance(error, FileNotFoundError):
        return NotFound(f"{subject} does not exist")
    provider = re.search(r"credential provider: (?:\w+\.)*(\w+): (.*)", text)
    if provider is not None:  # Credentials.for_obstore raised this
        return Transient(provider[2]) if provider[1] == "Transient" else AccessDenied(provider[2])
    return RemoteFailed(f"{subject}: {text.split(chr(10), 1)[0]}")


def of_transport(error: Exception, host: str) -> Exception:
    """What an exception from botocore's HTTP session or from urllib3 means."""
    from botocore import exceptions as botocore_errors
    from urllib3 import exceptions as urllib3_errors

    if isinstance(error, botocore_errors.SSLError):
        return RemoteFailed(f"TLS: cannot trust {host}; see ca_bundle ({error})")
    if isinstance(error, botocore_errors.ProxyConnectionError):
        return Transient("cannot connect to the proxy of HTTP(S)_PROXY")
    if isinstance(error, botocore_errors.ConnectTimeoutError):
        return Transient(f"cannot connect to {host}: no answer", timed_out=True)
    if isinstance(error, botocore_errors.EndpointConnectionError):
        return Transient(
            f"cannot connect to {host}; check endpoint_url and the network ({_root(error)})", busy=True
        )
    if isinstance(error, (botocore_errors.ReadTimeoutError, urllib3_errors.TimeoutError, TimeoutError)):
        return Transient("the server did not answer in time", timed_out=True)
    return Transient(f"the connection broke ({_root(error)})")


def _ids(text: str, headers: Mapping[str, str]) -> str:
    """The two names of a request that the support of AWS asks for; others give the first one."""
    first = _tag(text, "RequestId") or headers.get("x-amz-request-id", "")
    second = _tag(text, "HostId") or headers.get("x-amz-id-2", "")
    return f"{first}, host id {second}" if first and second else first


def _tag(text: str, name: str) -> str:
    found = re.search(f"<{name}>([^<]*)</{name}>", text)
    return found[1] if found else ""


def _cause(text: str) -> str:
    """The innermost words of an obstore error about a connection."""
    quoted = re.findall(r'(?:message|error): "([^"]+)"', text)
    return str(quoted[-1]) if quoted else text.split("\n", 1)[0]


def _root(error: BaseException) -> str:
    """The last cause of a chain of exceptions, without the addresses of objects."""
    seen = error
    inner = getattr(error, "kwargs", {}).get("error")
    while isinstance(inner, BaseException):
        seen = inner
        inner = getattr(inner, "reason", None) or inner.__cause__ or inner.__context__
    return f"{type(seen).__name__}: {re.sub(r'<[^>]*at 0x[^>]*>[:,]?', '', str(seen)).strip()}"
