"""The metadata index of one dataset: what is read from it, and who may write.

Every method is synchronous and thread-safe. No read transaction outlives a call, so readers never
stand in the way of reuse of freed pages. What fails in LMDB while writing or opening raises
IndexUnwritable, and has changed nothing; reading raises LMDB's own errors (`lmdb.Error`). An
environment does not survive fork(): open the index in the process that uses it.

Commits are not synced: kill -9 loses nothing, a crash of the machine may leave a damaged file. The
owner of the directory removes it after an unclean reboot.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from gpufs.errors import IndexUnwritable
from gpufs.index import records, tree
from gpufs.index.environment import DAMAGE, DATA_FILE, Users, discard, open_environment
from gpufs.index.listing import Writer
from gpufs.index.records import ROOT, Change, Inode, Listed, Totals
from gpufs.index.tables import (
    CRAWLED_KEY,
    SCHEMA,
    SCHEMA_KEY,
    SOURCE_KEY,
    Counters,
    HiddenRecord,
    Mark,
    Tables,
    pack_number,
    unpack_number,
)
from gpufs.source.base import Kind

_ORPHANS_PER_TRANSACTION = 4096
_INODES_PER_TRANSACTION = 16384
_NEVER = 2**64 - 1
_READ_SIZE = 1 << 20


class Index:
    """An index in `directory`, which belongs to it alone.

    One process opens a directory once at a time; several processes may share it. An index of another
    source, of another schema, or damaged beyond opening is replaced by an empty one (logged).
    `opened_at` is next_number() at the time of opening.
    """

    def __init__(self, directory: Path, source_id: str) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._source_id = source_id
        self._users = Users(directory)
        try:
            with self._users.exclusive() as alone, self._explained():
                self._env, self._tables = self._open(alone)
                self._alone = alone
                self.opened_at = self.next_number()
        except BaseException:
            self._users.close()
            raise

    # Reading: a few microseconds, from any thread.

    def get(self, number: int) -> Inode | None:
        with self._env.begin() as txn:
            data = txn.get(pack_number(number), db=self._tables.inodes)
        return records.decode(number, data) if data is not None else None

    def contents(self, number: int) -> tuple[bytes, int] | None:
        """Digest and size of a file; the digest is empty for anything else. A third of the time of get()."""
        with self._env.begin() as txn:
            data = txn.get(pack_number(number), db=self._tables.inodes)
        return records.contents_of(data) if data is not None else None

    def lookup(self, parent: int, name: bytes) -> Inode | None:
        if len(name) > records.NAME_MAX:
            return None
        with self._env.begin() as txn:
            packed = txn.get(pack_number(parent) + name, db=self._tables.children)
            if packed is None:
                return None
            data = txn.get(packed, db=self._tables.inodes)
        return _decode_child(packed, data)

    def numbers(self, names: Iterable[tuple[int, bytes]]) -> list[int]:
        """The inode numbers of names in their directories, 0 where there is none; 1,000 in a millisecond."""
        with self._env.begin() as txn:
            children = self._tables.children
            found = (
                txn.get(pack_number(parent) + name, db=children) if len(name) <= records.NAME_MAX else None
                for parent, name in names
            )
            return [unpack_number(packed) if packed is not None else 0 for packed in found]

    def children(self, parent: int, after: bytes | None, limit: int) -> list[Inode]:
        """Up to `limit` children in the order of their names, starting behind the name `after`."""
        prefix = pack_number(parent)
        start = prefix if after is None else prefix + after + b"\0"
        found: list[Inode] = []
        with self._env.begin() as txn:
            inodes = self._tables.inodes
            cursor = txn.cursor(self._tables.children)
            if not cursor.set_range(start):
                return found
            for key, packed in cursor:
                if len(found) >= limit or not key.startswith(prefix):
                    break
                found.append(_decode_child(packed, txn.get(packed, db=inodes)))
        return found

    def listed(self, number: int) -> Listed | None:
        """What is known about the listing of a directory; None when it was never listed."""
        with self._env.begin() as txn:
            data = txn.get(pack_number(number), db=self._tables.directories)
        if data is None:
            return None
        mark = Mark.unpack(data, time.time_ns())
        # The mark is made by the end of a first complete listing, and an expiry leaves the names in place.
        return Listed(mark.listed_ns if mark.in_force else 0, complete=True)

    def crawled(self) -> bool:
        """Whether the whole tree has been listed once."""
        with self._env.begin() as txn:
            return txn.get(CRAWLED_KEY, db=self._tables.about) is not None

    def path(self, number: int) -> bytes:
        """The path of an inode below the root; for one whose name has gone, the path it had.

        Raises NotFound for an unknown inode.
        """
        with self._env.begin() as txn:
            return tree.path_of(txn, self._tables, number)

    def resolve(self, path: bytes) -> Inode | None:
        """The inode at `path` (b"" is the root), as far as the index knows."""
        packed: bytes | None = pack_number(ROOT)
        with self._env.begin() as txn:
            for name in path.split(b"/") if path else ():
                if len(name) > records.NAME_MAX:
                    return None
                packed = txn.get(packed + name, db=self._tables.children) if packed is not None else None
            if packed is None:
                return None
            data = txn.get(packed, db=self._tables.inodes)
        return _decode_child(packed, data)

    def totals(self) -> Totals:
        with self._env.begin() as txn:
            counters = Counters.read(txn, self._tables)
        return Totals(counters.files, counters.directories, counters.size, counters.hidden)

    def hidden(self, limit: int) -> list[tuple[bytes, str]]:
        """Up to `limit` things that no path can name: the full key as the source spells it, and why."""
        found: list[tuple[bytes, str]] = []
        with self._env.begin() as txn:
            for key, value in txn.cursor(self._tables.hidden):
                if len(found) >= limit:
                    break
                record = HiddenRecord.unpack(value)
                directory = unpack_number(key)
                if directory == ROOT:
                    found.append((record.name, record.reason))
                else:
                    path = tree.path_of(txn, self._tables, directory)
                    found.append((path + b"/" + record.name, record.reason))
        return found

    def next_number(self) -> int:
        """A moment in the life of the index: what comes after it gets this number or a larger one."""
        with self._env.begin() as txn:
            return Counters.read(txn, self._tables).next_inode

    def changes_since(self, number: int) -> list[Change]:
        """The names that any process found added, replaced or removed since next_number() was `number`.

        Names that came with the first listing of their directory are left out, since nobody can have been
        told that they do not exist; of what was removed, everything below it. Takes time in proportion to
        the inodes and orphans since then: for a worker thread.
        """
        changes: list[Change] = []
        position: bytes | None = pack_number(number)
        while position is not None:
            position = self._collect_added(position, changes)
        position = b""
        while position is not None:
            position = self._collect_removed(position, number, changes)
        return list(dict.fromkeys(changes))  # a replaced name is among both

    def size_on_disk(self) -> int:
        """Bytes the index takes on disk; 0 when its file was deleted behind our back."""
        try:
            return (self._directory / DATA_FILE).stat().st_blocks * 512
        except FileNotFoundError:
            return 0

    # Writing: one writer at a time, over all threads and processes; others wait for it.

    @contextmanager
    def write(self) -> Iterator[Writer]:
        """One transaction, in one thread; nothing of it is kept when the block or the commit raises."""
        writer: Writer | None = None
        try:
            with self._explained(), self._env.begin(write=True) as txn:
                writer = Writer(txn, self._tables, self._source_id)
                yield writer
                writer.flush()
        except BaseException:
            if writer is not None:
                writer.rollback()
            raise

    def expire(self, number: int) -> None:
        """Have the next lookup list this directory again; its children stay until then.

        A listing that started before this call does not count as that listing.
        """
        now_ns = time.time_ns()
        packed = pack_number(number)
        with self._explained(), self._env.begin(write=True) as txn:
            data = txn.get(packed, db=self._tables.directories)
            if data is not None:
                mark = Mark.unpack(data, now_ns)._replace(expired_ns=now_ns)
                txn.put(packed, mark.pack(), db=self._tables.directories)

    def prefault(self) -> None:
        """Read the data file through, so that it is in the page cache. For a worker thread."""
        buffer = bytearray(_READ_SIZE)
        with (self._directory / DATA_FILE).open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    def drop_orphans(self) -> int:
        """Delete the records of inodes that had no name when the index was opened; how many they were.

        Only for a process whose kernel knew nothing then. Does nothing when another process had the index
        open, for its kernel may still use such inodes; whoever opened it later cannot know them.
        """
        dropped = 0
        position: bytes | None = b"" if self._alone else None
        while position is not None:
            count, position = self._drop_some_orphans(position)
            dropped += count
        return dropped

    def close(self) -> None:
        """Close the files. No other call may be going on, and none may follow."""
        self._env.close()
        self._users.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except lmdb.Error as error:
            raise IndexUnwritable(
                f"the metadata index in {self._directory} cannot be written ({error}); is the disk full?"
            ) from error

    def _drop_some_orphans(self, position: bytes) -> tuple[int, bytes | None]:
        """From the key `position` on: how many were deleted, and where to go on."""
        count = 0
        with self._explained(), self._env.begin(write=True) as txn:
            cursor = txn.cursor(self._tables.orphans)
            found = cursor.set_range(position)
            for _ in range(_ORPHANS_PER_TRANSACTION):
                if not found:
                    return count, None
                if unpack_number(cursor.value()) < self.opened_at:
                    txn.delete(cursor.key(), db=self._tables.inodes)
                    cursor.delete()
                    found = bool(cursor.key())
                    count += 1
                else:
                    found = cursor.next()
            return count, cursor.key() if found else None

    def _collect_added(self, position: bytes, changes: list[Change]) -> bytes | None:
        """Look at some inodes from the key `position` on; where to go on."""
        now_ns = time.time_ns()
        first_new: dict[int, int] = {}  # of the directories met here
        with self._env.begin() as txn:
            cursor = txn.cursor(self._tables.inodes)
            found = cursor.set_range(position)
            for _ in range(_INODES_PER_TRANSACTION):
                if not found:
                    return None
                parent, name = records.place_of(cursor.value())
                first = first_new.get(parent)
                if first is None:
                    data = txn.get(pack_number(parent), db=self._tables.directories)
                    first = first_new[parent] = Mark.unpack(data, now_ns).first_new if data else _NEVER
                if unpack_number(cursor.key()) >= first:
                    changes.append(Change(parent, name))
                found = cursor.next()
            return cursor.key() if found else None

    def _collect_removed(self, position: bytes, number: int, changes: list[Change]) -> bytes | None:
        """Look at some orphans from the key `position` on; where to go on."""
        with self._env.begin() as txn:
            cursor = txn.cursor(self._tables.orphans)
            found = cursor.set_range(position)
            for _ in range(_INODES_PER_TRANSACTION):
                if not found:
                    return None
                if unpack_number(cursor.value()) >= number:
                    data = txn.get(cursor.key(), db=self._tables.inodes)
                    if data is not None:
                        parent, name = records.place_of(data)
                        if txn.get(pack_number(parent), db=self._tables.orphans) is None:
                            changes.append(Change(parent, name))
                found = cursor.next()
            return cursor.key() if found else None

    def _open(self, alone: bool) -> tuple[lmdb.Environment, Tables]:
        env = open_environment(self._directory, check=alone)
        try:
            tables = self._prepare(env)
            if tables is not None:
                return env, tables
            why = "is of another source or version"
        except DAMAGE as error:
            why = f"is damaged ({error})"
        except BaseException:
            env.close()
            raise
        env.close()
        discard(self._directory, why)
        env = open_environment(self._directory, check=False)
        tables = self._prepare(env)
        if tables is None:
            raise lmdb.CorruptedError("a new index is not empty")
        return env, tables

    def _prepare(self, env: lmdb.Environment) -> Tables | None:
        """The tables of `env`, filled with the root if they are new; None when they are not ours."""
        with env.begin(write=True) as txn:
            tables = Tables.open(env, txn)
            schema = txn.get(SCHEMA_KEY, db=tables.about)
            if schema is None:
                txn.put(SCHEMA_KEY, SCHEMA, db=tables.about)
                txn.put(SOURCE_KEY, self._source_id.encode(), db=tables.about)
                tree.write_counters(txn, tables, Counters(next_inode=ROOT + 1))
                # Its time until a listing of it tells another, if the source knows any.
                now_ns = time.time_ns()
                root = records.body(ROOT, b"", Kind.DIRECTORY, 0, now_ns, "", None, None, None, b"")
                txn.put(pack_number(ROOT), root, db=tables.inodes)
            elif schema != SCHEMA or txn.get(SOURCE_KEY, db=tables.about) != self._source_id.encode():
                return None
            else:
                Counters.read(txn, tables)
        return tables


def _decode_child(packed: bytes, data: bytes | None) -> Inode:
    number = unpack_number(packed)
    if data is None:
        raise lmdb.CorruptedError(f"a name leads to inode {number}, which has no record")
    return records.decode(number, data)
