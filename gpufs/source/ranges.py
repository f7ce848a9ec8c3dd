"""A part of one version of an object by a GET: exactly these bytes, or an error."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from gpufs.errors import NotFound, RemoteFailed, VersionGone
from gpufs.source.retry import Transient
from gpufs.source.web import Answer, Web

_MOST_SKIPPED = 64 << 20  # bytes; beyond that a server without ranges is no place for large files


def get_range(
    web: Web,
    what: str,
    request: Callable[[dict[str, str]], str],
    size: int,
    offset: int,
    length: int,
    budget: float,
    *,
    is_version: Callable[[Answer], bool],
    refusal: Callable[[Answer], Exception],
) -> memoryview:
    """`length` bytes (more than 0) of an object of `size` bytes. `request` gives the URL and adds what it
    needs, an authorisation, to the headers that are there. From a server that knows no ranges all that comes
    before is received too. Raises Transient, or a GpufsError for good."""
    asked: dict[str, str] = {}
    if length != size:
        asked["Range"] = f"bytes={offset}-{offset + length - 1}"
    answer = web.send("GET", request(asked), asked, budget, limit=length, skip=min(offset, _MOST_SKIPPED))
    if answer.status not in (200, 206):
        error = refusal(answer)
        if isinstance(error, NotFound):
            raise VersionGone(f"{what} was deleted") from error
        raise error
    if not is_version(answer) or _size_told(answer) not in (None, size):
        raise VersionGone(f"{what} was replaced by another version")
    if answer.status == 200 and offset > _MOST_SKIPPED:
        raise RemoteFailed(f"{what}: the server serves no ranges, which a file of this size needs")
    if answer.status == 206 and not answer.headers.get("content-range", "").startswith(f"bytes {offset}-"):
        raise RemoteFailed(f"{what}: the server sent another range than the one asked for")
    if len(answer.body) != length:
        raise Transient(f"the body had {len(answer.body)} bytes instead of {length}")
    return answer.body


def check_md5(data: memoryview, md5: str) -> None:
    """Raise Transient when `data` are other bytes than the store's checksum (hex digits) is of."""
    if hashlib.md5(data, usedforsecurity=False).hexdigest() != md5:
        raise Transient("the bytes do not match their checksum")


def _size_told(answer: Answer) -> int | None:
    """The size of the whole object that the answer is a part of, where it says so."""
    if answer.status == 206:
        text = answer.headers.get("content-range", "").rpartition("/")[2]
    else:
        text = answer.headers.get("content-length", "")
    return int(text) if text.isdecimal() else None
