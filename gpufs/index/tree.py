"""Steps that reading and writing the tree have in common, inside a transaction of the caller."""

from __future__ import annotations

import lmdb

from gpufs.errors import NotFound
from gpufs.index import records
from gpufs.index.records import ROOT
from gpufs.index.tables import (
    COUNTERS_KEY,
    Counters,
    HiddenRecord,
    Tables,
    pack_number,
    unpack_number,
)
from gpufs.source.base import Kind


def path_of(txn: lmdb.Transaction[bytes], tables: Tables, number: int) -> bytes:
    """The path of an inode, from its parents. Raises NotFound when a record is missing."""
    names = []
    while number != ROOT:
        data = txn.get(pack_number(number), db=tables.inodes)
        if data is None:
            raise NotFound(f"inode {number} is not in the index")
        number, name = records.place_of(data)
        names.append(name)
    return b"/".join(reversed(names))


def child_numbers(
    txn: lmdb.Transaction[bytes], tables: Tables, prefix: bytes, after: bytes, limit: int
) -> list[tuple[bytes, int]]:
    """Name and number of up to `limit` children from the key `after` on, in the order of names."""
    found: list[tuple[bytes, int]] = []
    cursor = txn.cursor(tables.children)
    if not cursor.set_range(after):
        return found
    for key, value in cursor:
        if not key.startswith(prefix) or len(found) == limit:
            break
        found.append((key[8:], unpack_number(value)))
    return found


def orphan(txn: lmdb.Transaction[bytes], tables: Tables, counters: Counters, number: int) -> None:
    """The name of `number` has gone: count it out, and everything below it; keep the records.

    The caller removes the name itself. That takes a number as a new inode does, so that numbers tell
    what happened after what.
    """
    stamp = pack_number(counters.next_inode)
    counters.next_inode += 1
    pending = [number]
    while pending:
        number = pending.pop()
        packed = pack_number(number)
        data = txn.get(packed, db=tables.inodes)
        if data is None:
            raise lmdb.CorruptedError(f"a name leads to inode {number}, which has no record")
        txn.put(packed, stamp, db=tables.orphans)
        kind = records.kind_of(data)
        if kind is Kind.DIRECTORY:
            counters.directories -= 1
            txn.delete(packed, db=tables.directories)
            drop_hidden(txn, tables, counters, number)
            cursor = txn.cursor(tables.children)
            found = cursor.set_range(packed)
            while found and cursor.key().startswith(packed):
                pending.append(unpack_number(cursor.value()))
                # Moves on to the next entry, or to none.
                cursor.delete()
                found = bool(cursor.key())
        else:
            counters.files -= 1
            if kind is Kind.FILE:
                counters.size -= records.size_of(data)


def drop_hidden(
    txn: lmdb.Transaction[bytes],
    tables: Tables,
    counters: Counters,
    directory: int,
    *,
    keep: int | None = None,
) -> None:
    """Forget what is hidden in `directory`, but for what the listing started at `keep` has seen."""
    if not counters.hidden:
        return
    prefix = pack_number(directory)
    cursor = txn.cursor(tables.hidden)
    found = cursor.set_range(prefix)
    while found and cursor.key().startswith(prefix):
        record = HiddenRecord.unpack(cursor.value())
        if record.stamp == keep:
            found = cursor.next()
        else:
            counters.hidden -= record.count
            cursor.delete()
            found = bool(cursor.key())


def write_counters(txn: lmdb.Transaction[bytes], tables: Tables, counters: Counters) -> None:
    txn.put(COUNTERS_KEY, counters.pack(), db=tables.about)
