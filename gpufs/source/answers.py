"""What a status of HTTP means, for stores that keep to its meaning."""

from __future__ import annotations

from collections.abc import Mapping

from gpufs.errors import AccessDenied, GpufsError, NotFound, RemoteFailed, VersionGone
from gpufs.source.retry import Transient

# What the support of a provider asks for: AWS, Azure, Google, and what other servers send.
_REQUEST_IDS = ("x-amz-request-id", "x-ms-request-id", "x-guploader-uploadid", "x-request-id")


def request_id(headers: Mapping[str, str]) -> str:
    """The name that the server gave to a request, "" when it gave none. `headers` has lower-case names."""
    return next((headers[name] for name in _REQUEST_IDS if headers.get(name)), "")


def with_id(said: str, name: str) -> str:
    """A server's words, with the name of the request where there is one."""
    return f"{said} (request id {name})" if name else said


class CredentialsRefused(AccessDenied):
    """The server does not accept these credentials (any more); others may do."""


def refusal(
    what: str, status: int, said: str, needs: str, headers: Mapping[str, str]
) -> GpufsError | Transient:
    """The error of an answer that is no success. `said`: the server's own words, `needs`: what one may do
    about a refusal."""
    words = with_id(f"{status} {said}".strip(), request_id(headers))
    if status in (408, 429, 500, 502, 503, 504):
        return Transient(
            f"the server answered {words}", timed_out=status in (408, 504), busy=status in (429, 503)
        )
    if status == 401:
        return CredentialsRefused(f"{what}: the credentials are missing or refused; {needs} ({words})")
    if status == 403:
        return AccessDenied(f"{what}: access denied; {needs} ({words})")
    if status in (404, 410):
        return NotFound(f"{what} does not exist")
    if status in (412, 416):  # 416: an object shorter than the one of the listing
        return VersionGone(f"{what} was replaced by another version")
    return RemoteFailed(f"{what}: the server answered {words}")
