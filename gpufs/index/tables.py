"""The tables of the index: their names, keys and small values."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import lmdb
import xxhash

SCHEMA = b"2"
_NUMBER = struct.Struct(">Q")
_MARK = struct.Struct("<QQQ")
_COUNTERS = struct.Struct("<QQQQQ")
_HIDDEN = struct.Struct("<QQH")
_HIDDEN_KEY_MAX = 400

SCHEMA_KEY = b"schema"
SOURCE_KEY = b"source"
COUNTERS_KEY = b"counters"
CRAWLED_KEY = b"crawled"  # set once a listing of the whole tree has ended


@dataclass(frozen=True, slots=True)
class Tables:
    """The databases of one environment.

    children     parent number + name -> number of the inode the name means
    inodes       number -> encoded inode
    directories  number -> Mark
    hidden       directory number + name -> HiddenRecord
    orphans      number of an inode that no name leads to -> number given out when it lost its name
    about        schema version, source id, Counters
    """

    children: lmdb._Database
    inodes: lmdb._Database
    directories: lmdb._Database
    hidden: lmdb._Database
    orphans: lmdb._Database
    about: lmdb._Database

    COUNT = 6

    @staticmethod
    def open(env: lmdb.Environment, txn: lmdb.Transaction[bytes]) -> Tables:
        names = (b"children", b"inodes", b"directories", b"hidden", b"orphans", b"about")
        return Tables(*(env.open_db(name, txn=txn) for name in names))


def pack_number(number: int) -> bytes:
    """An inode number as a key: big-endian, so that keys sort like numbers."""
    return _NUMBER.pack(number)


def unpack_number(data: bytes) -> int:
    number: int = _NUMBER.unpack_from(data)[0]
    return number


@dataclass(slots=True)
class Counters:
    """The next inode number, and the totals of the tree; `size` is the bytes of its files."""

    next_inode: int
    files: int = 0
    directories: int = 0
    size: int = 0
    hidden: int = 0

    def pack(self) -> bytes:
        return _COUNTERS.pack(self.next_inode, self.files, self.directories, self.size, self.hidden)

    @staticmethod
    def read(txn: lmdb.Transaction[bytes], tables: Tables) -> Counters:
        data = txn.get(COUNTERS_KEY, db=tables.about)
        if data is None:
            raise lmdb.CorruptedError("the index has no counters")
        return Counters(*_COUNTERS.unpack(data))


class Mark(NamedTuple):
    """When the last complete listing of a directory started, and when it was declared stale.

    Inodes in it from `first_new` on were not there when its first listing had ended.
    """

    listed_ns: int
    expired_ns: int
    first_new: int

    def pack(self) -> bytes:
        return _MARK.pack(self.listed_ns, self.expired_ns, self.first_new)

    @staticmethod
    def unpack(data: bytes, now_ns: int) -> Mark:
        """Times that lie in the future were written before the clock was set back, and count as 0:
        otherwise no listing could replace them until the clock has caught up."""
        listed_ns, expired_ns, first_new = _MARK.unpack(data)
        return Mark(
            listed_ns if listed_ns <= now_ns else 0, expired_ns if expired_ns <= now_ns else 0, first_new
        )

    @property
    def in_force(self) -> bool:
        return self.listed_ns > self.expired_ns


@dataclass(frozen=True, slots=True)
class HiddenRecord:
    """Something of the source that no path can name; `stamp` is the start of the listing that saw it."""

    stamp: int
    count: int
    reason: str
    name: bytes

    def pack(self) -> bytes:
        reason = self.reason.encode()
        return _HIDDEN.pack(self.stamp, self.count, len(reason)) + reason + self.name

    @staticmethod
    def unpack(data: bytes) -> HiddenRecord:
        stamp, count, length = _HIDDEN.unpack_from(data)
        name_at = _HIDDEN.size + length
        return HiddenRecord(stamp, count, data[_HIDDEN.size : name_at].decode(), data[name_at:])


def hidden_key(directory: bytes, name: bytes) -> bytes:
    """The key of a hidden name, within LMDB's 511 bytes; `directory` is a packed number.

    A long name is cut and told apart by its hash; a short one can never be as long as a cut one.
    """
    if len(name) < _HIDDEN_KEY_MAX:
        return directory + name
    return directory + name[: _HIDDEN_KEY_MAX - 16] + xxhash.xxh3_128_digest(name)
