"""Merges directory listings, page by page, into the index."""

from __future__ import annotations

import time
from operator import attrgetter

import lmdb

from gpufs.errors import NotADirectory, NotFound
from gpufs.index import records, tree
from gpufs.index.merge import Listing, Merge
from gpufs.index.records import Change
from gpufs.index.tables import (
    CRAWLED_KEY,
    Counters,
    HiddenRecord,
    Mark,
    Tables,
    hidden_key,
    pack_number,
    unpack_number,
)
from gpufs.source.base import Entry, Hidden, Kind, Page

__all__ = ["Listing", "Writer"]

_SWEEP = 65536  # names looked at together when the vanished ones are searched
_SHADOWED = "a directory has the same name"


class Writer:
    """The changes of one transaction. Made by Index.write(); used by one thread."""

    def __init__(self, txn: lmdb.Transaction[bytes], tables: Tables, source_id: str) -> None:
        self._txn = txn
        self._tables = tables
        self._source_id = source_id
        self._now_ns = time.time_ns()
        self._counters = Counters.read(txn, tables)
        self._stored_counters = self._counters.pack()
        self._touched: dict[int, tuple[Listing, int, dict[bytes, Entry], dict[bytes, int]]] = {}

    def begin(self, directory: int, started_ns: int) -> Listing:
        """Start to list `directory`; `started_ns` is time.time_ns() before the source was asked.

        Raises NotFound for an unknown or removed directory, NotADirectory for anything else.
        """
        data = self._live(directory)
        if data is None:
            raise NotFound(f"inode {directory} is not in the tree")
        if records.kind_of(data) is not Kind.DIRECTORY:
            raise NotADirectory(f"inode {directory} is not a directory")
        path = tree.path_of(self._txn, self._tables, directory)
        return Listing(directory, started_ns, path, self._counters.next_inode)

    def add(self, listing: Listing, page: Page) -> list[Change]:
        """Merge a page. A directory that was removed, or listed by a later listing, is left alone."""
        if page.directory != listing.path:
            raise ValueError(f"a page of {page.directory!r} in a listing of {listing.path!r}")
        mark = self._mark(listing.directory)
        if not self._in_force(listing, mark):
            return []
        self._remember(listing)
        changes: list[Change] = []
        merge = Merge(self._txn, self._tables, self._counters, self._now_ns, self._source_id, listing)
        entries = sorted(page.entries, key=attrgetter("name"))
        if not merge.insert_all(entries, changes if mark is not None else None):
            for entry in page.entries:
                change = merge.entry(entry)
                # A name can have been denied only by a directory that has been listed before.
                if change is not None and (mark is not None or not change.is_new):
                    changes.append(change.change)
        for hidden in page.hidden:
            self._hide(listing, hidden)
        if page.own is not None:
            changes += self._update_own(listing.directory, page.own)
        return changes

    def finish(self, listing: Listing) -> list[Change]:
        """The listing is complete: what it did not see is removed, and the directory counts as listed.

        One Change stands for a whole removed subtree. Does nothing where add() would do nothing.
        """
        mark = self._mark(listing.directory)
        if not self._in_force(listing, mark):
            return []
        self._remember(listing)
        changes = self._settle(listing)
        for name, number in self._unseen(listing):
            self._txn.delete(pack_number(listing.directory) + name, db=self._tables.children)
            tree.orphan(self._txn, self._tables, self._counters, number)
            changes.append(Change(listing.directory, name))
        tree.drop_hidden(self._txn, self._tables, self._counters, listing.directory, keep=listing.started_ns)
        if mark is None:
            mark = Mark(0, 0, self._counters.next_inode)
        fresh = mark._replace(listed_ns=listing.started_ns)
        self._txn.put(pack_number(listing.directory), fresh.pack(), db=self._tables.directories)
        return changes

    def resolve(self, path: bytes) -> int | None:
        """The inode number at `path`, this transaction's own changes included; None when there is none."""
        packed = pack_number(records.ROOT)
        for name in path.split(b"/") if path else ():
            found = self._txn.get(packed + name, db=self._tables.children)
            if found is None:
                return None
            packed = found
        return unpack_number(packed)

    def mark_crawled(self) -> None:
        """The whole tree has been listed."""
        self._txn.put(CRAWLED_KEY, b"", db=self._tables.about)

    def flush(self) -> None:
        """Store what is kept in memory during the transaction."""
        counters = self._counters.pack()
        if counters != self._stored_counters:
            tree.write_counters(self._txn, self._tables, self._counters)

    def rollback(self) -> None:
        """The transaction failed: its listings are again as they were before it."""
        for listing, length, waiting, replaced in self._touched.values():
            del listing.seen[length:]
            listing.waiting = waiting
            listing.replaced = replaced

    def _remember(self, listing: Listing) -> None:
        if id(listing) not in self._touched:
            self._touched[id(listing)] = (
                listing,
                len(listing.seen),
                dict(listing.waiting),
                dict(listing.replaced),
            )

    def _mark(self, directory: int) -> Mark | None:
        data = self._txn.get(pack_number(directory), db=self._tables.directories)
        return Mark.unpack(data, self._now_ns) if data is not None else None

    def _in_force(self, listing: Listing, mark: Mark | None) -> bool:
        superseded = mark is not None and mark.listed_ns > listing.started_ns
        return not superseded and self._live(listing.directory) is not None

    def _live(self, directory: int) -> bytes | None:
        """The encoded inode of a directory; None when it is unknown or no name leads to it."""
        key = pack_number(directory)
        if self._txn.get(key, db=self._tables.orphans) is not None:
            return None
        return self._txn.get(key, db=self._tables.inodes)

    def _settle(self, listing: Listing) -> list[Change]:
        """Decide about the names that were met both as a directory and as something else."""
        if not listing.waiting and not listing.replaced:
            return []
        merge = Merge(self._txn, self._tables, self._counters, self._now_ns, self._source_id, listing)
        directories = {name: merge.directory_called(name) for name in listing.waiting}
        suspects = {number for number in directories.values() if number is not None}
        seen = suspects.union(listing.replaced.values()).intersection(listing.seen)
        shadowed = {name for name, number in listing.replaced.items() if number in seen}
        changes = []
        for name, entry in listing.waiting.items():
            if directories[name] in seen:
                shadowed.add(name)
            else:
                change = merge.entry(entry, over_directory=True)
                if change is not None:
                    changes.append(change.change)
        for name in sorted(shadowed):
            self._hide(listing, Hidden(name, _SHADOWED))
        return changes

    def _unseen(self, listing: Listing) -> list[tuple[bytes, int]]:
        """The children of the directory that were there before the listing and that it did not meet.

        Inodes younger than the listing are its own, or of another listing of this directory that is
        under way at the same time: of those it cannot tell whether they are there.
        Looks at a bounded number of names at a time. A source gives names in much the same order
        every time, so the search in `seen` goes on where the previous one ended.
        """
        found: list[tuple[bytes, int]] = []
        start = 0
        prefix = pack_number(listing.directory)
        after = prefix
        while True:
            batch = tree.child_numbers(self._txn, self._tables, prefix, after, _SWEEP)
            if not batch:
                return found
            unseen = {number for _, number in batch if number < listing.first_new}
            pieces = range(0, len(listing.seen), _SWEEP)
            for position in (*pieces[start:], *pieces[:start]):
                if not unseen:
                    break
                start = position // _SWEEP
                unseen.difference_update(listing.seen[position : position + _SWEEP])
            if unseen:
                found += [(name, number) for name, number in batch if number in unseen]
            after = prefix + batch[-1][0] + b"\0"

    def _update_own(self, directory: int, own: Entry) -> list[Change]:
        """Take over what the source says of the listed directory itself."""
        packed = pack_number(directory)
        stored = self._txn.get(packed, db=self._tables.inodes)
        assert stored is not None, "a listing in force is of a known directory"
        before = records.decode(directory, stored)
        after = before._replace(
            mtime_ns=own.mtime_ns or before.mtime_ns, mode=own.mode, uid=own.uid, gid=own.gid
        )
        if after == before:
            return []
        self._txn.put(packed, records.encode(after), db=self._tables.inodes)
        return [Change(directory, b"")]

    def _hide(self, listing: Listing, hidden: Hidden) -> None:
        """Record something no path can name. The same name twice in one listing adds up."""
        key = hidden_key(pack_number(listing.directory), hidden.name)
        data = self._txn.get(key, db=self._tables.hidden)
        count = hidden.count
        if data is not None:
            before = HiddenRecord.unpack(data)
            self._counters.hidden -= before.count
            if before.stamp == listing.started_ns:
                count += before.count
        self._counters.hidden += count
        record = HiddenRecord(listing.started_ns, count, hidden.reason, hidden.name)
        self._txn.put(key, record.pack(), db=self._tables.hidden)
