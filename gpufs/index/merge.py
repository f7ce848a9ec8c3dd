"""Puts the entries of a listing next to what the index has, and keeps or replaces inodes."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import lmdb

from gpufs.index import records, tree
from gpufs.index.records import NAME_MAX, Change
from gpufs.index.tables import Counters, Tables, pack_number, unpack_number
from gpufs.source.base import Entry, Kind


@dataclass(slots=True)
class Listing:
    """One directory's listing in progress; it may span many transactions.

    `seen` holds the inode numbers met so far, 8 bytes per name. A directory hides a file of the same
    name, whichever comes first, and only the end of the listing tells whether both are there:
    `waiting` are entries that met a directory of their name, `replaced` the inodes of entries that
    gave way to one. Both stay empty where no name is used twice and nothing changes its kind.
    """

    directory: int
    started_ns: int
    path: bytes
    first_new: int  # inodes from this number on did not exist when the listing began
    seen: array[int] = field(default_factory=lambda: array("Q"))
    waiting: dict[bytes, Entry] = field(default_factory=dict)
    replaced: dict[bytes, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Merged:
    """What became of one entry; `is_new` when nothing had its name before."""

    change: Change
    is_new: bool


class Merge:
    """Puts the entries of one listing next to what the index has."""

    def __init__(
        self,
        txn: lmdb.Transaction[bytes],
        tables: Tables,
        counters: Counters,
        now_ns: int,
        source_id: str,
        listing: Listing,
    ) -> None:
        self._txn = txn
        self._tables = tables
        self._counters = counters
        self._now_ns = now_ns
        self._listing = listing
        self._prefix = pack_number(listing.directory)
        self._digest_head = records.digest_head(source_id, listing.path)

    def insert_all(self, entries: list[Entry], changes: list[Change] | None) -> bool:
        """Insert `entries`, sorted by name, at once, if none of their names is taken or used twice.

        Returns False, having done nothing, otherwise. Names go to `changes` where that is given.
        """
        if not entries:
            return True
        names = [entry.name for entry in entries]
        if len(set(names)) != len(names):
            return False
        first, last = self._prefix + names[0], self._prefix + names[-1]
        children = self._txn.cursor(self._tables.children)
        if children.set_range(first) and children.key() <= last:
            return False
        number = self._counters.next_inode
        inodes: list[tuple[bytes, bytes]] = []
        dentries: list[tuple[bytes, bytes]] = []
        for each, entry in zip(range(number, number + len(entries)), entries, strict=True):
            packed = pack_number(each)
            inodes.append((packed, self._record(entry)))
            dentries.append((self._prefix + entry.name, packed))
            self._count(entry)
        # Keys behind the last one are appended, which fills the pages instead of splitting them.
        at_the_end = not children.last() or children.key() < first
        children.putmulti(dentries, append=at_the_end)
        self._txn.cursor(self._tables.inodes).putmulti(inodes, append=True)
        self._counters.next_inode += len(entries)
        self._listing.seen.extend(range(number, number + len(entries)))
        if changes is not None:
            changes += [Change(self._listing.directory, name) for name in names]
        return True

    def entry(self, entry: Entry, *, over_directory: bool = False) -> Merged | None:
        """Merge one entry. With `over_directory` it takes the place of a directory at once."""
        key = self._prefix + entry.name
        packed = self._txn.get(key, db=self._tables.children)
        if packed is None:
            self._insert(key, entry)
            return Merged(Change(self._listing.directory, entry.name), is_new=True)
        number = unpack_number(packed)
        stored = self._txn.get(packed, db=self._tables.inodes)
        if stored is None:
            raise lmdb.CorruptedError(f"a name leads to inode {number}, which has no record")
        was_directory = records.kind_of(stored) is Kind.DIRECTORY
        if entry.kind is Kind.DIRECTORY:
            if was_directory:
                self._listing.seen.append(number)
                if self._update_directory(packed, stored, entry):
                    return Merged(Change(number, b""), is_new=False)
                return None
            self._listing.replaced[entry.name] = number
        elif was_directory:
            if not over_directory:
                self._listing.waiting[entry.name] = entry
                return None
        elif self._is_same(stored, entry):
            self._listing.seen.append(number)
            return None
        tree.orphan(self._txn, self._tables, self._counters, number)
        self._insert(key, entry)
        return Merged(Change(self._listing.directory, entry.name), is_new=False)

    def directory_called(self, name: bytes) -> int | None:
        """The number of the directory that has this name now."""
        packed = self._txn.get(self._prefix + name, db=self._tables.children)
        if packed is None:
            return None
        stored = self._txn.get(packed, db=self._tables.inodes)
        if stored is None or records.kind_of(stored) is not Kind.DIRECTORY:
            return None
        return unpack_number(packed)

    def _insert(self, key: bytes, entry: Entry) -> None:
        number = self._counters.next_inode
        packed = pack_number(number)
        self._txn.put(packed, self._record(entry), append=True, db=self._tables.inodes)
        self._txn.put(key, packed, db=self._tables.children)
        self._counters.next_inode += 1
        self._count(entry)
        self._listing.seen.append(number)

    def _count(self, entry: Entry) -> None:
        if entry.kind is Kind.DIRECTORY:
            self._counters.directories += 1
        else:
            self._counters.files += 1
            if entry.kind is Kind.FILE:
                self._counters.size += entry.size

    def _record(self, entry: Entry) -> bytes:
        if not 0 < len(entry.name) <= NAME_MAX:
            raise ValueError(f"a source gave an impossible name: {entry.name!r}")
        if entry.kind is Kind.FILE:
            digest = records.digest_under(self._digest_head, entry.name, entry.version, entry.size)
            return self._body(entry, entry.mtime_ns) + digest
        if entry.kind is Kind.DIRECTORY:
            return self._body(entry, entry.mtime_ns or self._now_ns)
        return self._body(entry, entry.mtime_ns)

    def _body(self, entry: Entry, mtime_ns: int) -> bytes:
        return records.body(
            self._listing.directory,
            entry.name,
            entry.kind,
            entry.size,
            mtime_ns,
            entry.version,
            entry.mode,
            entry.uid,
            entry.gid,
            entry.target if entry.kind is Kind.SYMLINK else b"",
        )

    def _is_same(self, stored: bytes, entry: Entry) -> bool:
        # The digest follows from the rest, so it needs no comparison (and no hashing).
        end = len(stored) - records.DIGEST_SIZE if entry.kind is Kind.FILE else len(stored)
        return stored[:end] == self._body(entry, entry.mtime_ns)

    def _update_directory(self, packed: bytes, stored: bytes, entry: Entry) -> bool:
        """A directory keeps its number; True when its attributes changed.

        Only a time that the source really knows replaces the old one.
        """
        mtime_ns = entry.mtime_ns or records.mtime_of(stored)
        data = self._body(entry, mtime_ns)
        if data == stored:
            return False
        self._txn.put(packed, data, db=self._tables.inodes)
        return True
