"""What the filesystem process and its fetch process say to each other, one message each.

A request names an inode whose object is wanted whole, or none: then all that was done shall be told
and seen by others. An answer carries what the counters have grown by since the last one, why it
failed (the name of one of our errors, and its text) or nothing, and the object's descriptor beside it.
"""

from __future__ import annotations

from struct import Struct

from gpufs import errors
from gpufs.errors import GpufsError, RemoteFailed
from gpufs.metrics import Metrics

SETTLE = 0  # in place of an inode
MESSAGE_SIZE = 4096  # bytes at most

_TEXT = 900  # characters of an error that are passed on
_REQUEST = Struct("<QQ")
_COUNTERS = len(Metrics().snapshot())
_ANSWER = Struct(f"<Q{_COUNTERS}Q")
_BYTES = MESSAGE_SIZE - _ANSWER.size


def pack_request(number: int, inode: int) -> bytes:
    return _REQUEST.pack(number, inode)


def unpack_request(message: bytes) -> tuple[int, int]:
    """The number of the request, and the inode or SETTLE."""
    return _REQUEST.unpack(message)


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
