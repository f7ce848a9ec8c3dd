"""What the filesystem process and its fetch process say to each other, one message each.

A request names an object that is wanted whole, or none: then all that was done shall be told and seen
by others. It says all there is to know of the object: the fetch process may have no index that knows it,
because the cache directory was removed. Or it names several inodes that are wanted in the cache before
anybody reads them: those the fetch process must know.

An answer carries what became of several inodes, why it failed (the name of one of our errors, and its text)
or nothing, and the object's descriptor beside it.
"""

from __future__ import annotations

import logging
from struct import Struct, pack, unpack_from
from typing import NamedTuple

from gpufs import errors
from gpufs.errors import GpufsError, RemoteFailed
from gpufs.source.base import ObjectRef

MESSAGE_SIZE = 8192  # bytes at most; the longest path has 4095
MOST_NAMED = 256  # inodes in one request

_TEXT = 900  # characters of an error that are passed on
_REQUEST = Struct("<Q16sQQH")  # number, digest, directory, size, length of the path; then path and version
_NOTHING = bytes(16)  # in place of a digest
_NAMED = b"\xff" * 16  # too: then `directory` is at_once, `size` is soon, and the inodes follow
_ANSWER = Struct("<6Q")
_BYTES = MESSAGE_SIZE - _ANSWER.size


class Wanted(NamedTuple):
    """A version of an object, wanted whole; `digest` is its name in the cache, `directory` an inode."""

    digest: bytes
    ref: ObjectRef
    directory: int


class Named(NamedTuple):
    """Some inodes, MOST_NAMED at most, wanted in the cache; `at_once` of them may be on their way.

    With an `at_once` of 0: what was wanted by the request of that number is wanted no more.
    `soon`: they will be read in an order of this number, so they come first, and are staged when there is
    no room; 0 when they are of none.
    """

    at_once: int
    numbers: tuple[int, ...]
    soon: int = 0


class Through(NamedTuple):
    """Of some inodes: how many objects, and bytes, are cached now; were fetched for it; and could not be.

    What is in none of them did not fit.
    """

    cached: int = 0
    cached_bytes: int = 0
    fetched: int = 0
    fetched_bytes: int = 0
    failed: int = 0


NOBODY = Named(0, ())
NOTHING = Through()


def pack_request(number: int, wanted: Wanted | Named | None) -> bytes:
    if wanted is None:
        return _REQUEST.pack(number, _NOTHING, 0, 0, 0)
    if isinstance(wanted, Named):
        numbers = wanted.numbers
        head = _REQUEST.pack(number, _NAMED, wanted.at_once, wanted.soon, 0)
        return head + pack(f"<{len(numbers)}Q", *numbers)
    path, version, size = wanted.ref
    head = _REQUEST.pack(number, wanted.digest, wanted.directory, size, len(path))
    return head + path + version.encode("utf-8", "surrogateescape")


def unpack_request(message: bytes) -> tuple[int, Wanted | Named | None]:
    """The number of the request, and what is wanted."""
    number, digest, directory, size, length = _REQUEST.unpack_from(message)
    if digest == _NOTHING:
        return number, None
    if digest == _NAMED:
        count = (len(message) - _REQUEST.size) // 8
        return number, Named(directory, unpack_from(f"<{count}Q", message, _REQUEST.size), size)
    path = message[_REQUEST.size : _REQUEST.size + length]
    version = message[_REQUEST.size + length :].decode("utf-8", "surrogateescape")
    return number, Wanted(digest, ObjectRef(path, version, size), directory)


def pack_answer(number: int, error: GpufsError | None, through: Through = NOTHING) -> bytes:
    head = _ANSWER.pack(number, *through)
    if error is None:
        return head
    # What a source has derived for itself is passed on as the error of ours that it is.
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    return head + f"{kind.__name__} {error}"[:_TEXT].encode(errors="backslashreplace")[:_BYTES]


def unpack_answer(message: bytes) -> tuple[int, GpufsError | None, Through]:
    """The number of the request, what failed, and what became of several inodes."""
    number, *values = _ANSWER.unpack_from(message)
    name, _, text = message[_ANSWER.size :].decode(errors="replace").partition(" ")
    error = getattr(errors, name, RemoteFailed)(text) if name else None
    return number, error, Through(*values)


def failure_of(error: Exception, log: logging.Logger) -> GpufsError:
    """What those who wait are told; what is none of our errors is logged, with its traceback."""
    if isinstance(error, GpufsError):
        return error
    log.error("a failure in gpufs itself", exc_info=error)
    return RemoteFailed(f"an error in gpufs itself: {error!r}")
