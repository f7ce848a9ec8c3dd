"""What lies in the shared cache: entries and claims, what they are called, and how they are checked.

An entry: MAGIC, the identity's length (4 bytes, little-endian), that of the bytes (8), xxh3_128 of both (16),
identity, bytes. A claim: CLAIM, and 16 bytes that no other claim has.
"""

from __future__ import annotations

from enum import Enum
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_128

from gpufs.source.base import ObjectRef

MAGIC, CLAIM = b"gpufsEN1", b"gpufsCL1"
_HEAD = Struct("<8sIQ16s")
_NUMBERS = Struct("<Qq")
_WHOLE = -1  # in place of a number of a chunk
TOKEN = 16  # bytes that tell claims apart
CLAIM_SIZE = len(CLAIM) + TOKEN
DROPPED = CLAIM + bytes(TOKEN)  # a claim that nobody has any more


class Part(NamedTuple):
    """What one entry holds: an object, or a chunk of one. `name` is its key below the prefix."""

    name: str
    identity: bytes
    size: int

    @property
    def entry_size(self) -> int:
        return _HEAD.size + len(self.identity) + self.size


class Found(Enum):
    """What it can be instead of the bytes."""

    CLAIMED = 1
    DROPPED = 2  # a claim that was given up
    BAD = 3  # damaged, or of something else


def part_of(source_id: str, digest: bytes, ref: ObjectRef, number: int | None = None, size: int = 0) -> Part:
    """The whole object, or with `number` its chunk of `size` bytes. `digest`: of the version."""
    text = ref.version.encode("utf-8", "surrogateescape")
    numbers = _NUMBERS.pack(ref.size, _WHOLE if number is None else number)
    identity = b"\0".join((source_id.encode(), ref.path, text, numbers))
    name = digest.hex()
    if number is None:
        return Part(f"{name[:2]}/{name}", identity, ref.size)
    return Part(f"{name[:2]}/{name}.{number}", identity, size)


def pack(part: Part, data: memoryview) -> bytes:
    head = _HEAD.pack(MAGIC, len(part.identity), part.size, _checksum(part, data))
    return b"".join((head, part.identity, data))


def unpack(part: Part, body: memoryview) -> memoryview | Found:
    """The bytes of the part, when the body is its entry, undamaged."""
    if len(body) == CLAIM_SIZE and body[: len(CLAIM)] == CLAIM:
        return Found.DROPPED if body == DROPPED else Found.CLAIMED
    if len(body) != part.entry_size:
        return Found.BAD
    magic, length, size, checksum = _HEAD.unpack_from(body)
    start = _HEAD.size + len(part.identity)
    data = body[start:]
    if (magic, length, size) != (MAGIC, len(part.identity), part.size):
        return Found.BAD
    if body[_HEAD.size : start] != part.identity or _checksum(part, data) != checksum:
        return Found.BAD
    return data


def _checksum(part: Part, data: memoryview) -> bytes:
    state = xxh3_128(part.identity)
    state.update(data)
    return state.digest()
