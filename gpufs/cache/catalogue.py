"""The catalogue of what the cache holds (LMDB), with the changes that are not in it yet.

Tables: `entries` digest -> size, checksum, last use, kind, source; `by_access` last use + digest, for
eviction; `about` the schema, the totals, the history of uses, and one row per open catalogue. A change is
made in memory and seen at once; flush() writes a batch of them in one transaction, which also gives each use
its tick. Several processes may share the environment: the totals and the clock are kept right by the
transactions, and each catalogue adds to the totals what only it knows.
"""

from __future__ import annotations

import itertools
import os
import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import lmdb

from gpufs.cache.entry import COMPRESSED, EARLY, NOW, ROW, STAGED, Entry, Kind, difference
from gpufs.cache.failures import Failures
from gpufs.cache.ghosts import Ghosts
from gpufs.cache.layout import Layout
from gpufs.cache.policy import SPENT, History
from gpufs.metrics import Metrics

_SCHEMA = b"1"
_TOTALS = struct.Struct("<qq")
_ACCESS = struct.Struct(">Q")
_SEQUENCE = struct.Struct("<Q")
_USER = b"user:"
_HISTORY = b"history"
# Address space only; about 100 million entries.
_MAP_SIZE = 32 * 2**30
# Errors that say the file is bad, not that the disk is full or the machine short of something.
_DAMAGE = (
    lmdb.InvalidError,
    lmdb.CorruptedError,
    lmdb.VersionMismatchError,
    lmdb.IncompatibleError,
    lmdb.PageNotFoundError,
)


@dataclass(slots=True)
class _Batch:
    """Changes not in LMDB yet: None for a removal; and what they do to the totals as far as we know."""

    changes: dict[bytes, Entry | None]
    size: int = 0
    objects: int = 0


class Catalogue:
    """Any thread. No method raises because LMDB failed: that is reported and the changes stay in memory."""

    def __init__(
        self,
        directory: Path,
        failures: Failures,
        metrics: Metrics,
        layout: Layout,
        *,
        first: bool,
    ) -> None:
        """Open it; `first` (nobody else has it open) allows to start anew when it is damaged.

        `layout` is asked whether there are files of an object.
        """
        self._failures = failures
        self._metrics = metrics
        self._layout = layout
        self._user = _USER + os.urandom(8)
        self._lock = threading.Lock()
        self._flushing_lock = threading.Lock()
        self._pending = _Batch({})
        self._flushing = _Batch({})
        self._sequence = 0
        self._touched: dict[bytes, int] = {}  # by which of the uses of this process it was
        self._uses = itertools.count()
        self._too_early: set[bytes] = set()  # touched before the process that has kept them told of them
        self._ghosts = Ghosts()
        self._known_totals = (0, 0)
        # The rows are missing, and must be rebuilt from the files.
        self.lost = False
        # Another user ended without close(): its last second is missing.
        self.unclean = False
        self._env: lmdb.Environment | None = None
        try:
            self._env = self._open_or_reset(directory, first)
            self._enter(first)
        except (lmdb.Error, OSError) as error:
            failures.report("opening the catalogue", error)
            if self._env is not None:
                self._env.close()
                self._env = None
            self.lost = True

    def _open_or_reset(self, directory: Path, first: bool) -> lmdb.Environment:
        try:
            env, self.lost = _open(directory)
        except _DAMAGE as error:
            if not first:
                raise
            self._failures.report("opening the catalogue", error)
            shutil.rmtree(directory)
            env, self.lost = _open(directory)
        return env

    def _enter(self, first: bool) -> None:
        assert self._env is not None
        self._entries = self._env.open_db(b"entries")
        self._by_access = self._env.open_db(b"by_access")
        self._about = self._env.open_db(b"about")
        self._env.reader_check()
        with self._env.begin(write=True) as txn:
            if first:
                left = [key for key, _ in _rows(txn, self._about, _USER) if key.startswith(_USER)]
                self.unclean = bool(left)
                for key in left:
                    txn.delete(key, db=self._about)
            txn.put(self._user, _SEQUENCE.pack(0), db=self._about)

    # Reading

    def get(self, digest: bytes) -> Entry | None:
        with self._lock:
            return self._get(digest)

    def _get(self, digest: bytes) -> Entry | None:
        for batch in (self._pending, self._flushing):
            if digest in batch.changes:
                return batch.changes[digest]
        if self._env is None:
            return None
        try:
            with self._env.begin() as txn:
                row = txn.get(digest, db=self._entries)
        except lmdb.Error as error:
            self._failures.report("reading the catalogue", error)
            return None
        return None if row is None else Entry.unpack(row)

    def totals(self) -> tuple[int, int]:
        """Bytes charged and whole objects, with every change known here."""
        with self._lock:
            size, objects = self._pending.size, self._pending.objects
            written = False
            if self._env is not None:
                try:
                    with self._env.begin() as txn:
                        self._known_totals = _TOTALS.unpack(txn.get(b"totals", bytes(16), db=self._about))
                        # A flush may have been committed and not yet noted in memory.
                        written = txn.get(self._user, db=self._about) == _SEQUENCE.pack(self._sequence)
                except lmdb.Error as error:
                    self._failures.report("reading the catalogue", error)
            if not written:
                size, objects = size + self._flushing.size, objects + self._flushing.objects
            return max(self._known_totals[0] + size, 0), max(self._known_totals[1] + objects, 0)

    @property
    def unflushed(self) -> int:
        """Bytes kept that other processes cannot know of yet."""
        return self._pending.size + self._flushing.size

    def oldest(self) -> Iterator[tuple[bytes, Entry]]:
        """Every entry, least recently used first. Not to be kept open for long."""
        with self._lock:
            recent = self._flushing.changes | self._pending.changes
        touched = dict(self._touched)
        if self._env is not None:
            try:
                with self._env.begin() as txn:
                    for key, _ in _rows(txn, self._by_access):
                        digest = key[_ACCESS.size :]
                        if digest in recent or digest in touched:
                            continue
                        row = txn.get(digest, db=self._entries)
                        if row is not None:
                            yield digest, Entry.unpack(row)
            except lmdb.Error as error:
                self._failures.report("reading the catalogue", error)
        newest: list[tuple[int, bytes, Entry]] = []
        for digest in recent.keys() | touched.keys():
            entry = recent[digest] if digest in recent else self.get(digest)
            if entry is not None:
                newest.append((touched.get(digest, -1), digest, replace(entry, accessed=NOW)))
        newest.sort(key=lambda item: item[:2])
        yield from ((digest, entry) for _, digest, entry in newest)

    def digests(self) -> Iterator[bytes]:
        """Every digest with an entry; changes meanwhile may or may not be seen."""
        with self._lock:
            recent = self._flushing.changes | self._pending.changes
        yield from (digest for digest, entry in recent.items() if entry is not None)
        start = b""
        while self._env is not None:
            # In slices: a long read transaction would keep LMDB from reusing its pages.
            some: list[bytes] = []
            try:
                # Under the lock, as close() may come at any time.
                with self._lock, self._env.begin() as txn:
                    for key, _ in _rows(txn, self._entries, start):
                        some.append(key)
                        if len(some) == 1000:
                            break
            except lmdb.Error as error:
                self._failures.report("reading the catalogue", error)
                return
            yield from (digest for digest in some if digest not in recent)
            if len(some) < 1000:
                return
            start = some[-1] + b"\0"

    # Changing

    def touch(self, digest: bytes) -> None:
        """Note a use, be it of something that is not here. Hot path: no lock, nothing but a dict."""
        self._touched[digest] = next(self._uses)

    def put(self, digest: bytes, entry: Entry) -> None:
        with self._lock:
            old = self._get(digest)
            self._change(digest, old, entry)

    def put_new(self, digest: bytes, entry: Entry) -> None:
        """Like put(), when nothing is held of it yet, which spares a look into LMDB.

        Should there be something, it is counted twice until the next flush.
        """
        with self._lock:
            batch = self._pending if digest in self._pending.changes else self._flushing
            self._change(digest, batch.changes.get(digest), entry)

    def remove(self, digest: bytes, only: Entry) -> None:
        """Forget `digest` if its entry still is `only`, and not one published meanwhile.

        Whatever the entry says, when there are no files any more.
        """
        with self._lock:
            old = self._get(digest)
            if old == only or not self._layout.has_any(digest):
                self._change(digest, old, None)

    def _change(self, digest: bytes, old: Entry | None, new: Entry | None) -> None:
        self._pending.changes[digest] = new
        size, objects = difference(old, new)
        self._pending.size += size
        self._pending.objects += objects

    def flush(self) -> None:
        """Write what is pending; on failure it stays pending."""
        with self._flushing_lock:
            self._flush(self._still_here)

    def _still_here(self, txn: lmdb.Transaction[bytes]) -> None:
        txn.put(self._user, _SEQUENCE.pack(self._sequence), db=self._about)

    def _leave(self, txn: lmdb.Transaction[bytes]) -> None:
        txn.delete(self._user, db=self._about)

    def _flush(self, sign: Callable[[lmdb.Transaction[bytes]], None]) -> None:
        env = self._env
        if env is None:
            return
        touched = self._take_touched()
        with self._lock:
            if not (self._pending.changes or touched or sign == self._leave):
                return
            self._flushing, self._pending = self._pending, _Batch({})
            self._sequence += 1
        try:
            with env.begin(write=True) as txn:
                self._write(txn, self._flushing.changes, touched)
                sign(txn)
        except lmdb.Error as error:
            self._failures.report("writing the catalogue", error)
            with self._lock:
                self._pending = _Batch(
                    self._flushing.changes | self._pending.changes,
                    self._flushing.size + self._pending.size,
                    self._flushing.objects + self._pending.objects,
                )
                self._flushing = _Batch({})
            for digest, use in touched.items():
                self._touched.setdefault(digest, use)
        else:
            with self._lock:
                self._flushing = _Batch({})

    def _take_touched(self) -> dict[bytes, int]:
        taken: dict[bytes, int] = {}
        # Item by item: touch() goes on in other threads without a lock.
        for _ in range(len(self._touched)):
            digest, use = self._touched.popitem()
            taken[digest] = use
        return taken

    def _write(
        self, txn: lmdb.Transaction[bytes], changes: dict[bytes, Entry | None], touched: dict[bytes, int]
    ) -> None:
        history = self._read_history(txn)
        first = history.advance(len(touched))
        ticks = {digest: first + i for i, digest in enumerate(sorted(touched, key=touched.__getitem__))}
        total_size, total_objects = _TOTALS.unpack(txn.get(b"totals", bytes(16), db=self._about))
        for digest, new in sorted(changes.items()):
            row = txn.get(digest, db=self._entries)
            old = None if row is None else Entry.unpack(row)
            if old is not None and new is not None and self._is_outdated(digest, old, new):
                continue
            if (new is not None) != self._layout.has_any(digest):
                # Another process evicted it, or published it anew, after this was noted.
                continue
            if new is None:
                if old is not None:
                    if old.accessed >= history.base:
                        self._ghosts.put(digest, old.accessed)
                    txn.delete(_ACCESS.pack(old.accessed) + digest, db=self._by_access)
                    txn.delete(digest, db=self._entries)
            else:
                if old is not None:
                    new = replace(new, accessed=old.accessed)
                elif not new.marks & EARLY and (tick := ticks.pop(digest, None)):
                    history.used(tick, self._ghosts.get(digest, history.clock), kept=False)
                    new = replace(new, accessed=tick)
                else:
                    new = replace(new, accessed=min(new.accessed, first - 1))
                txn.put(digest, new.pack(), db=self._entries)
                txn.put(_ACCESS.pack(new.accessed) + digest, b"", db=self._by_access)
            size, objects = difference(old, new)
            total_size, total_objects = total_size + size, total_objects + objects
        txn.put(b"totals", _TOTALS.pack(total_size, total_objects), db=self._about)
        self._write_uses(txn, history, ticks)
        history.settle(total_objects, time.time_ns())
        txn.put(_HISTORY, history.pack(), db=self._about)

    def _is_outdated(self, digest: bytes, old: Entry, new: Entry) -> bool:
        """Whether another process has completed the object, or kept it in the other form, since `new`."""
        if old.kind is Kind.PARTIAL:
            return False
        plain = self._layout.has_plain(digest)
        if new.kind is Kind.PARTIAL or new.marks & COMPRESSED:
            return plain
        return bool(old.marks & COMPRESSED) and not plain and self._layout.has_compressed(digest)

    def _write_uses(self, txn: lmdb.Transaction[bytes], history: History, ticks: dict[bytes, int]) -> None:
        # Far more of these than of changes when all is cached: on packed rows. In the order of the
        # keys, each page is copied once.
        too_early: set[bytes] = set()
        for digest, tick in sorted(ticks.items()):
            row = txn.get(digest, db=self._entries)
            if row is None:
                if digest not in self._too_early and self._layout.has_any(digest):
                    too_early.add(digest)
                    continue
                history.used(tick, self._ghosts.get(digest, history.clock), kept=False)
                self._ghosts.put(digest, tick)
                continue
            size, checksum, before, kind = ROW.unpack_from(row)
            history.used(tick, before, kept=True)
            if kind & EARLY:
                self._metrics.prefetched_used.add()
            accessed = SPENT if kind & STAGED else tick
            packed = ROW.pack(size, checksum, accessed, kind & ~(EARLY | STAGED)) + row[ROW.size :]
            txn.put(digest, packed, db=self._entries)
            txn.delete(_ACCESS.pack(before) + digest, db=self._by_access)
            txn.put(_ACCESS.pack(accessed) + digest, b"", db=self._by_access)
        self._too_early = too_early
        for digest in too_early:
            self._touched.setdefault(digest, 0)

    def _read_history(self, txn: lmdb.Transaction[bytes]) -> History:
        row = txn.get(_HISTORY, db=self._about)
        if row is not None:
            return History.unpack(row)
        # Ticks from before there was a history are times, in ns.
        with txn.cursor(db=self._by_access) as cursor:
            newest = _ACCESS.unpack_from(cursor.key())[0] if cursor.last() else 0
        return History(max(newest, time.time_ns()))

    def history(self) -> History:
        """What the uses that were told so far say."""
        if self._env is not None:
            try:
                with self._env.begin() as txn:
                    return self._read_history(txn)
            except lmdb.Error as error:
                self._failures.report("reading the catalogue", error)
        return History(0)

    def close(self, *, complete: bool) -> bool:
        """Write what is pending and leave; False when it does not say all that is on the disk.

        Unless `complete`, our row stays, so that the next first user knows of it too.
        """
        with self._flushing_lock:
            self._flush(self._leave if complete else self._still_here)
            with self._lock:
                env, self._env = self._env, None
                if env is not None:
                    env.close()
                return complete and env is not None and not self._pending.changes


def _open(directory: Path) -> tuple[lmdb.Environment, bool]:
    """The environment, and whether it is new. lmdb.Error when it is not a whole catalogue of ours."""
    directory.mkdir(mode=0o700, exist_ok=True)
    env = lmdb.open(
        str(directory),
        map_size=_MAP_SIZE,
        max_dbs=3,
        # Data is synced, the meta page is not: a power cut may lose the last batch, never the rest.
        metasync=False,
        mode=0o600,
        max_readers=1024,
        max_spare_txns=16,
    )
    try:
        # A page beyond the end of a truncated file would be a SIGBUS.
        end = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        if env.info()["last_txnid"] and os.path.getsize(directory / "data.mdb") < end:
            raise lmdb.CorruptedError("the catalogue is truncated")
        about = env.open_db(b"about")
        with env.begin(write=True) as txn:
            schema = txn.get(b"schema", db=about)
            if schema is None:
                txn.put(b"schema", _SCHEMA, db=about)
            elif schema != _SCHEMA:
                raise lmdb.VersionMismatchError(f"the catalogue has schema {schema!r}")
    except BaseException:
        env.close()
        raise
    return env, schema is None


def _rows(txn: lmdb.Transaction[bytes], db: object, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    with txn.cursor(db=db) as cursor:  # type: ignore[arg-type]
        if cursor.set_range(start):
            yield from cursor.iternext()
