"""Names: which inode a name leads to, and how long that answer holds."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial

import trio

from gpufs.errors import (
    AccessDenied,
    DeadlineExceeded,
    GpufsError,
    IndexUnwritable,
    NotADirectory,
    NotFound,
    RemoteFailed,
    VersionGone,
)
from gpufs.fetch.failures import RecentFailures
from gpufs.fetch.flight import SingleFlight
from gpufs.fetch.workers import Workers
from gpufs.filesystem.waits import Waits, What
from gpufs.index import ROOT, Change, Index, Inode, Listing, take_in
from gpufs.metrics import Metrics
from gpufs.source.base import Batch, Kind, Source
from gpufs.view import fresh_for

PATIENCE = 3.0  # seconds a reader waits for a re-listing before the old one is served
DOWN_PAUSE = 10.0  # seconds an old listing is served without asking a source that failed
LISTING_THREADS = 16
CRAWL_PAUSE = 0.2  # seconds that a crawl waits for others before each of its requests, at most
CRAWL_AFTER = 16  # directories listed one by one since the last crawl that make a crawl worth it

log = logging.getLogger("gpufs.tree")


class Tree:
    """The directory tree of one source, kept in the index and refreshed when it is too old.

    `on_change` is told everything the kernel may have been answered that is wrong now; it is called
    in the trio thread, never from inside the request that found the change out.
    """

    def __init__(
        self,
        source: Source,
        index: Index,
        ttl: float,
        metrics: Metrics,
        waits: Waits,
        nursery: trio.Nursery,
        on_change: Callable[[Change], None],
        now_ns: Callable[[], int] = time.time_ns,
        *,
        resumed: bool = False,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """`resumed`: the kernel has answers from before the index was opened here. `busy`, called in any
        thread: something more important than a crawl waits for its turn."""
        self._source = source
        self._index = index
        self._ttl = ttl
        self._metrics = metrics
        self._waits = waits
        self._nursery = nursery
        self._on_change = on_change
        self._now_ns = now_ns
        self._busy = busy
        self._workers = Workers(LISTING_THREADS)
        self._listings: SingleFlight[int, int] = SingleFlight(nursery)
        self._down_until = -math.inf
        self._failed: RecentFailures[int] = RecentFailures()  # first listings
        self._listed_singly = 0
        self._crawling = False
        self._stopping = False
        self._told_hidden = False
        # Changes before this moment of the index are known to the kernel, whoever found them.
        self._told = 0 if resumed else index.opened_at

    def inode(self, number: int) -> Inode:
        """The inode with that number. Raises VersionGone when the index knows it no more."""
        inode = self._index.get(number)
        if inode is None:
            raise VersionGone(f"inode {number} is no longer known")
        return inode

    def path(self, number: int) -> bytes:
        return self._index.path(number)

    def fresh_for(self, directory: int) -> float:
        """Seconds the listing of `directory` is still good for; 0 or less when it must be renewed."""
        return fresh_for(self._index.listed(directory), self._ttl, self._now_ns)

    async def lookup(self, parent: int, name: bytes, tid: int = 0) -> tuple[Inode | None, float]:
        """The inode of `name` in `parent`, None when there is none, and for how many seconds that holds.

        `tid`: the thread that asks.
        """
        holds = self.fresh_for(parent)
        if holds <= 0:
            with self._waits.of(tid, What.NAMES):
                holds = await self._renew(parent)
        return self._index.lookup(parent, name), holds

    async def children(
        self, parent: int, after: bytes | None, limit: int, tid: int = 0
    ) -> tuple[list[Inode], float]:
        """Up to `limit` children of `parent` behind the name `after`, in name order, as lookup() would."""
        holds = self.fresh_for(parent)
        if holds <= 0:
            # A reading that has begun is finished on the listing it began with.
            holds = DOWN_PAUSE
            if after is None:
                with self._waits.of(tid, What.NAMES):
                    holds = await self._renew(parent)
        return self._index.children(parent, after, limit), holds

    async def distrust(self, number: int) -> None:
        """The source no longer has the version this inode stands for: list its directory anew."""
        inode = self._index.get(number)
        if inode is None or not inode.parent:
            return
        now = self._index.lookup(inode.parent, inode.name)
        if now is not None and now.number == number:  # else it is known already
            with suppress(IndexUnwritable):  # the reader is to hear of what he asked for
                await self._workers.run(self._index.expire, inode.parent)
            self._on_change(Change(inode.parent, inode.name))

    async def refresh(self, path: bytes) -> dict[str, int]:
        """List the directory at or above `path`, and every known one below it, again now.

        What another process on this index has found changed before is no change to this listing, while
        the kernel still has the old answers: it is told of that too.
        """
        reached = self._index.next_number()
        if not path:
            self._listed_singly = 0  # as good as a crawl
        result = await self._list_again(path)
        self._report(await self._workers.run(self._index.changes_since, self._told))
        self._told = reached
        return result

    async def _list_again(self, path: bytes) -> dict[str, int]:
        inode = self._index.resolve(path)
        if inode is None:
            # A name that appeared after the last listing: its directory knows, once it is asked.
            parent = self._index.resolve(path.rpartition(b"/")[0])
            if parent is None:
                raise NotFound(f"no such path in the tree: {path!r}")
            inode = parent
        elif inode.kind is not Kind.DIRECTORY:
            inode = self.inode(inode.parent)
        if inode.number == ROOT and self._source.abilities.flat_listing:
            changes = await self._workers.run(self._crawl)
            self._tell_hidden()
            return {"directories": self._index.totals().directories + 1, "changes": changes}
        directories = changes = 0
        pending = [inode.number]
        while pending:
            number = pending.pop()
            self._forget_attributes(number)
            listed = self._index.listed(number)
            if directories and not (listed and listed.complete):
                continue  # never looked at: nothing to refresh
            try:
                changes += await self._listings.run_anew(number, partial(self._list_in_worker, number))
            except (NotFound, NotADirectory):
                if number == ROOT:
                    raise
                if not directories:  # what was asked for has vanished: the listing above it says so
                    pending.append(self.inode(number).parent)
                continue
            directories += 1
            pending += await self._workers.run(self._subdirectories, number)
        return {"directories": directories, "changes": changes}

    async def crawl(self) -> None:
        """List the whole tree in the background; what is found is in the index as it comes."""
        if self._crawling:
            return
        self._crawling = True
        try:
            await self._workers.run(self._crawl)
        except GpufsError as error:
            log.warning("the background listing ended early: %s", error)
        finally:
            self._tell_hidden()
            self._listed_singly = 0
            self._crawling = False

    def stop(self) -> None:
        """End a crawl that is under way, at its next page."""
        self._stopping = True

    def join(self, seconds: float) -> bool:
        """After the end of trio: wait for listings under way; False when they go on for longer."""
        return self._workers.join(seconds)

    # -- freshness

    async def _renew(self, directory: int) -> float:
        """List `directory` anew; while the source is down, what is known of it stays in force."""
        listed = self._index.listed(directory)
        if listed is None or not listed.complete:
            await self._list_first(directory)
            return max(self.fresh_for(directory), 1.0)
        if trio.current_time() >= self._down_until:
            flight = self._listings.start(directory, partial(self._list_for_lookup, directory))
            with trio.move_on_after(PATIENCE):
                await flight.landed.wait()
            if flight.landed.is_set():
                try:
                    flight.result()
                except (RemoteFailed, DeadlineExceeded, AccessDenied, IndexUnwritable) as error:
                    self._source_down(directory, error)
                else:
                    return max(self.fresh_for(directory), 1.0)
            else:
                self._source_down(directory, DeadlineExceeded("no answer yet"))
        self._metrics.stale_served.add()
        return DOWN_PAUSE

    async def _list_first(self, directory: int) -> None:
        """List a directory of which nothing is known.

        The kernel lets one program at a time look up a name in a directory. So when the source has
        failed until its deadline, those behind are told at once, or each would wait for one more.
        """
        self._failed.raise_for(directory)
        try:
            await self._listings.run(directory, partial(self._list_for_lookup, directory))
        except (RemoteFailed, DeadlineExceeded) as failure:
            self._failed.note(directory, failure)
            raise

    def _source_down(self, directory: int, error: GpufsError) -> None:
        self._down_until = trio.current_time() + DOWN_PAUSE
        log.warning("cannot renew the listing of /%s, the old one stays in force: %s",
                    self._index.path(directory).decode(errors="backslashreplace"), error)  # fmt: skip

    # -- listing

    async def _list_in_worker(self, directory: int) -> int:
        """List one directory, one at a time each; the number of changes."""
        changes = await self._workers.run(self._list, directory)
        self._metrics.listings.add()
        self._report(changes)
        self._tell_hidden()
        return len(changes)

    async def _list_for_lookup(self, directory: int) -> int:
        changes = await self._list_in_worker(directory)
        self._listed_singly += 1
        if self._listed_singly == CRAWL_AFTER and self._crawl_pays():
            self._nursery.start_soon(self.crawl)
        return changes

    def _crawl_pays(self) -> bool:
        """Whether a flat listing costs fewer requests than the directories one by one."""
        totals = self._index.totals()
        return self._source.abilities.flat_listing and totals.files / 1000 <= totals.directories

    def _list(self, directory: int) -> list[Change]:
        """Worker thread: list one directory into the index."""
        started = self._now_ns()
        changes: list[Change] = []
        listing: Listing | None = None
        path = self._index.path(directory)
        try:
            for page in self._source.list(path):
                with self._index.write() as writer:
                    listing = listing or writer.begin(directory, started)
                    changes += writer.add(listing, page)
                    if page.last:
                        changes += writer.finish(listing)
        except (NotFound, NotADirectory):
            if directory != ROOT:  # its parent's listing is out of date, and will say so
                self._index.expire(self.inode(directory).parent)
            raise
        return changes

    def _crawl(self) -> int:
        """Worker thread: list everything; the number of changes to what was known before."""
        changed = take_in(
            self._index,
            self._walk_behind_others(),
            self._now_ns,
            stopping=lambda: self._stopping,
            report=lambda changes: self._workers.call_in_trio(self._report, changes),
        )
        return changed or 0

    def _walk_behind_others(self) -> Iterator[Batch]:
        """Worker thread: the source's walk, which lets others go first, for a moment after each answer."""
        for batch in self._source.walk():
            yield batch
            end = time.monotonic() + CRAWL_PAUSE
            while self._busy() and not self._stopping and time.monotonic() < end:
                time.sleep(0.02)

    def _subdirectories(self, directory: int) -> list[int]:
        found: list[int] = []
        after: bytes | None = None
        while batch := self._index.children(directory, after, 1000):
            found += (child.number for child in batch if child.kind is Kind.DIRECTORY)
            after = batch[-1].name
        return found

    def _tell_hidden(self) -> None:
        """Say once that something of the source is not in the tree, when the first of it is found."""
        if not self._told_hidden:
            for key, reason in self._index.hidden(1):
                self._told_hidden = True
                log.warning(
                    "left out of the tree, because no path can name it: %r (%s); "
                    "`gpufs status` counts and names all such keys",
                    os.fsdecode(key),
                    reason,
                )

    def _forget_attributes(self, directory: int) -> None:
        """Have the kernel ask for the attributes of a directory again, where the source has such."""
        inode = self._index.get(directory)
        if inode is not None and inode.mode is not None:
            self._on_change(Change(directory, b""))

    def _report(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self._on_change(change)
