"""What a status of HTTP means, for stores that keep to its meaning."""

from __future__ import annotations

from gpufs.errors import AccessDenied, GpufsError, NotFound, RemoteFailed, VersionGone
from gpufs.source.retry import Transient


class CredentialsRefused(AccessDenied):
    """The server does not accept these credentials (any more); others may do."""


def refusal(what: str, status: int, said: str, needs: str) -> GpufsError | Transient:
    """The error of an answer that is no success. `said`: the server's own words, `needs`: what one may do
    about a refusal."""
    words = f"{status} {said}".strip()
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
