"""What the filesystem process and its fetch process say to each other, one message each.

A request names an object that is wanted whole, or none: then all that was done shall be told and seen
by others. It says all there is to know of the object: the fetch process may have no index that knows it,
because the cache directory was removed.

An answer carries what the counters have grown by since the last one, why it failed (the name of one of
our errors, and its text) or nothing, and the object's descriptor beside it.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from gpufs import errors
from gpufs.errors import GpufsError, RemoteFailed
from gpufs.metrics import Metrics
from gpufs.source.base import ObjectRef

MESSAGE_SIZE = 8192  # bytes at most; the longest path has 4095

_TEXT = 900  # characters of an error that are passed on
_REQUEST = Struct("<Q16sQQH")  # number, digest, directory, size, length of the path; then path and version
_NOTHING = bytes(16)
_COUNTERS = len(Metrics().snapshot())
_ANSWER = Struct(f"<Q{_COUNTERS}Q")
_BYTES = MESSAGE_SIZE - _ANSWER.size


class Wanted(NamedTuple):
    """A version of an object, wanted whole; `digest` is its name in the cache, `directory` an inode."""

    digest: bytes
    ref: ObjectRef
    directory: int


def pack_request(number: int, wanted: Wanted | None) -> bytes:
    if wanted is None:
        return _REQUEST.pack(number, _NOTHING, 0, 0, 0)
    path, version, size = wanted.ref
    head = _REQUEST.pack(number, wanted.digest, wanted.directory, size, len(path))
    return head + path + version.encode("utf-8", "surrogateescape")


def unpack_request(message: bytes) -> tuple[int, Wanted | None]:
    """The number of the request, and what is wanted."""
    number, digest, directory, size, length = _REQUEST.unpack_from(message)
    if digest == _NOTHING:
        return number, None
    path = message[_REQUEST.size : _REQUEST.size + length]
    version = message[_REQUEST.size + length :].decode("utf-8", "surrogateescape")
    return number, Wanted(digest, ObjectRef(path, version, size), directory)


def pack_answer(number: int, grown: tuple[int, ...], error: GpufsError | None) -> bytes:
    head = _ANSWER.pack(number, *grown)
    if error is None:
        return head
    # What a source has derived for itself is passed on as the error of ours that it is.
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    return head + f"{kind.__name__} {error}"[:_TEXT].encode(errors="backslashreplace")[:_BYTES]


def unpack_answer(message: bytes) -> tuple[int, tuple[int, ...], GpufsError | None]:
    """The number of the request, the counters' growth, and what failed."""
    number, *grown = _ANSWER.unpack_from(message)
    name, _, text = message[_ANSWER.size :].decode(errors="replace").partition(" ")
    return number, tuple(grown), getattr(errors, name, RemoteFailed)(text) if name else None
