"""What the catalogue says of one object."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

ROW = struct.Struct("<QQQB")  # size, checksum, accessed, kind and marks; the source follows
NOW = 2**64 - 1  # as `accessed`: the tick is given when it is written
_BLOCK = 4096

# Marks of an entry, beside its kind in one byte.
EARLY = 2  # fetched before anybody asked for it, and not used since
STAGED = 4  # of no use any more once it was used
COMPRESSED = 8  # an object whose file is in compressed/; `size` is that of the file


class Kind(IntEnum):
    """What an entry of the catalogue is."""

    OBJECT = 0
    PARTIAL = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One object, or the chunks held of one: `size` bytes. `accessed` is a tick of the history's clock."""

    size: int
    checksum: int
    accessed: int
    kind: Kind
    source: str
    marks: int = 0

    @property
    def charge(self) -> int:
        """Bytes counted against the limits: whole blocks, as the disk gives them."""
        return charge_of(self.size)

    def pack(self) -> bytes:
        return (
            ROW.pack(self.size, self.checksum, self.accessed, self.kind | self.marks) + self.source.encode()
        )

    @classmethod
    def unpack(cls, row: bytes) -> Entry:
        size, checksum, accessed, kind = ROW.unpack_from(row)
        return cls(size, checksum, accessed, Kind(kind & 1), row[ROW.size :].decode(), kind & ~1)


def charge_of(size: int) -> int:
    """Bytes of the whole disk blocks that so many bytes take."""
    return -(-size // _BLOCK) * _BLOCK


def difference(old: Entry | None, new: Entry | None) -> tuple[int, int]:
    """What replacing `old` by `new` does to the totals."""
    size = (new.charge if new else 0) - (old.charge if old else 0)
    objects = (new is not None and new.kind is Kind.OBJECT) - (old is not None and old.kind is Kind.OBJECT)
    return size, objects
