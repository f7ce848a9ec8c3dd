"""One mount: builds it out of its parts, runs it until it is unmounted, and takes it apart again."""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import trio

from gpufs import __version__
from gpufs.cache import Cache
from gpufs.control import paths
from gpufs.control.hints import Hints, may_read
from gpufs.control.server import Handler, Peer, serve
from gpufs.errors import GpufsError, IndexUnwritable, MountFailed, NotFound
from gpufs.fetch.client import FetchProcess
from gpufs.fetch.fetcher import Fetcher
from gpufs.fetch.messages import Through, Wanted
from gpufs.fetch.page import FETCH, FILESYSTEM, Own, SharedPage
from gpufs.fetch.prefetch import Prefetch
from gpufs.fetch.traffic import Traffic, shown
from gpufs.fetch.warm import Parts, Warmups
from gpufs.fetch.workers import Workers
from gpufs.filesystem import fuse, kernel
from gpufs.filesystem.files import Files
from gpufs.filesystem.tree import Tree
from gpufs.filesystem.waits import Waits
from gpufs.filesystem.xattrs import Attributes
from gpufs.handoff.feed import MESSAGE_SIZE, Batch, unpack
from gpufs.handoff.report import report_to
from gpufs.index import ROOT, Change, Index
from gpufs.logs import setup_logging
from gpufs.metrics import Metrics
from gpufs.mounting import shown_source
from gpufs.observe.figures import Figures, Process
from gpufs.options import MountConfig
from gpufs.shared import FLUSH, State, TierThread, open_tier
from gpufs.source import Kind, Source, open_configured
from gpufs.source.health import Health, WatchedSource
from gpufs.view import Ownership, View

MAX_REQUESTS = 512  # FUSE requests handled at once; most of them wait for the source
JOIN_PATIENCE = 3.0  # seconds that work in threads has to end after everything else has
LONGEST_WAIT = 5.0  # seconds in which a warm-up's progress is told, if nothing happens
MOST_SHOWN = 100  # processes named in the figures
HIDDEN_SHOWN = 20  # hidden keys named in the status
STOP_PATIENCE = 5.0  # seconds that requests under way have to end when the mount is told to stop

log = logging.getLogger("gpufs.service")


@dataclass(frozen=True, slots=True)
class Link:
    """The way to a fast path that stands between the kernel and this process: two socket descriptors.

    `resumed`: the kernel knows inodes of an earlier process already.
    """

    pair_fd: int
    feed_fd: int
    resumed: bool


class FeedCounts(NamedTuple):
    """What the fast path had counted when it was last heard of."""

    lookups: int
    opened_bytes: int


class Mount:
    """One mounted dataset in this process: mounted by it, or served through a fast path (`link`)."""

    def __init__(self, config: MountConfig, link: Link | None) -> None:
        options = config.options
        self._config = config
        self._link = link
        self._resumed = link is not None and link.resumed
        self._fastpath_pid = 0
        self._started_by = os.getppid()
        self._passthrough = False
        self._health = Health()
        self._page = SharedPage()
        self.metrics = Metrics(self._page.counted(FILESYSTEM))
        self._fetch_metrics = Metrics(self._page.counted(FETCH))  # as the fetch process counts
        self._waits = Waits(self.metrics)
        self._heard = FeedCounts(0, 0)
        self._traffic = Traffic(self._page, FILESYSTEM, options.bandwidth_limit, self.metrics)
        self._source: Source = WatchedSource(
            open_configured(config, self.metrics, self._traffic.concurrency), self._health
        )
        self._cache = Cache(
            Path(options.cache_dir),
            cache_size=options.cache_size,
            min_free=options.min_free,
            metrics=self.metrics,
            policy=options.policy,
        )
        self._index = Index(self._cache.index_directory(self._source.id), self._source.id)
        own = self._page.own(FILESYSTEM)

        def show(state: State) -> None:
            own[Own.SHARED] = state

        tier = open_tier(options, self.metrics, show)
        self._shared = TierThread(tier) if tier is not None else None
        self._objects = FetchProcess(config.to_json(), self._page)
        self._tree: Tree
        self._warmups: Warmups
        self._prefetch: Prefetch
        self._workers: Workers
        self._index_users: list[Tree | Workers] = []
        self._started = time.monotonic()
        self._mounted = trio.Event()  # for sure
        self._operations: fuse.Operations | None = None  # while mounted

    def run(self, ready: Callable[[], None]) -> None:
        """Mount, call `ready` when the tree can be read, serve until unmounted.

        Raises the GpufsError that says why the tree cannot be shown.
        """
        try:
            trio.run(self._main, ready)
        except BaseExceptionGroup as group:
            if (error := _first(group)) is not None:
                raise error from None
            raise
        finally:
            if self._shared is not None:
                self._shared.close(FLUSH)
            self._objects.close()  # before the cache: the last who uses it leaves it clean
            if all(used.join(JOIN_PATIENCE) for used in self._index_users):
                self._index.close()
            else:  # it survives that; closing it under somebody's hands would hang
                log.warning("a listing is still under way: the index is left open")
            self._cache.close()
            self._source.close()
            self._page.close()

    async def _main(self, ready: Callable[[], None]) -> None:
        async with trio.open_nursery() as nursery:
            self._workers = Workers(3)
            tree = self._tree = Tree(
                self._source,
                self._index,
                self._config.options.metadata_ttl,
                self.metrics,
                self._waits,
                nursery,
                self._tell_kernel,
                resumed=self._resumed,
                busy=lambda: self._page.total(Own.WAITING) > 0,
            )
            surveyors = Workers(2)
            self._index_users = [tree, self._workers, surveyors]
            if self._index.listed(ROOT) is None:  # a known tree is shown at once, source or no source
                await self._workers.run(self._source.check)
                await tree.lookup(ROOT, b"")
            fetcher = Fetcher(self._source, self._cache, self._traffic, nursery, self._shared)
            prefetch = self._prefetch = Prefetch(
                self._index, self._cache, fetcher, self._objects.ahead, nursery
            )
            files = Files(
                tree, self._cache, fetcher, self._object, prefetch, self.metrics, self._waits, nursery
            )
            self._warmups = Warmups(
                Parts(
                    tree,
                    self._index,
                    self._cache,
                    fetcher,
                    self._small_files,
                    self.metrics,
                    nursery,
                    surveyors,
                )
            )
            options = self._config.options
            view = View(Ownership(options.uid, options.gid, options.file_mode, options.dir_mode))
            operations = fuse.Operations(
                tree,
                files,
                Attributes(tree, self._cache, self._source.key, self._config.source),
                self._index,
                view,
                self.metrics,
            )
            self._attach(operations)
            self._operations = operations
            try:
                nursery.start_soon(self._until_signal, nursery)
                socket_path = paths.socket_path(self._config.mountpoint, os.geteuid())
                await nursery.start(serve, socket_path, self._handlers())
                hints = Hints(tree, self._index, prefetch.announce)
                nursery.start_soon(self._take_hints, hints, may_read(self._index, view, options.allow_other))
                nursery.start_soon(self._background, ready)
                if self._link is not None:
                    nursery.start_soon(self._follow, self._link.feed_fd, files, operations)
                await fuse.serve(MAX_REQUESTS, attached=self._link is not None)
            finally:
                self._operations = None
                fuse.close()
                tree.stop()
                nursery.cancel_scope.cancel()
                files.close()

    async def _object(self, wanted: Wanted) -> int:
        with self._health.watch():
            return await self._objects.object(wanted)

    async def _small_files(self, numbers: Sequence[int], at_once: int) -> tuple[Through, GpufsError | None]:
        """For a warm-up; a source that gives none of them fails."""
        through, error = await self._objects.ahead(numbers, at_once)
        if through.fetched or error is not None:
            with suppress(GpufsError), self._health.watch():
                if error is not None and not through.fetched:
                    raise error
        return through, error

    def _attach(self, operations: fuse.Operations) -> None:
        mountpoint, options = self._config.mountpoint, self._config.options
        try:
            if self._link is not None:
                fuse.attach(operations, self._link.pair_fd)
            else:
                fuse.mount(operations, mountpoint, shown_source(self._config.source), options.allow_other)
        except (OSError, RuntimeError) as error:
            raise MountFailed(
                f"cannot mount on {mountpoint}: {error}; try `gpufs mount --foreground` for details"
            ) from None

    async def _follow(self, feed_fd: int, files: Files, operations: fuse.Operations) -> None:
        """Take in what the fast path has done by itself."""
        feed = trio.socket.from_stdlib_socket(socket.socket(fileno=feed_fd))
        while message := await feed.recv(MESSAGE_SIZE):
            self._mounted.set()
            batch = unpack(message)
            self._fastpath_pid = batch.fastpath_pid
            self._passthrough = operations.hands_over = batch.passthrough
            self._count(batch)
            self._cache.touch(digest for _, digest, _ in batch.opened)
            if batch.opened:
                self._prefetch.hit([inode for inode, _, _ in batch.opened])
            operations.passed_on = max(operations.passed_on, batch.notified)
            for inode in batch.taken:
                files.release(inode)

    def _count(self, batch: Batch) -> None:
        opens = len(batch.opened)
        self.metrics.opens.add(opens)
        self.metrics.hits.add(opens)
        served = self.metrics.passthrough_opens if batch.passthrough else self.metrics.fast_path_opens
        served.add(opens)
        heard, self._heard = self._heard, FeedCounts(batch.lookups, batch.opened_bytes)
        self.metrics.lookups.add(batch.lookups - heard.lookups)
        self.metrics.served_bytes.add(batch.opened_bytes - heard.opened_bytes)

    def _tell_kernel(self, change: Change) -> None:
        if self._operations is not None:  # without a mount the kernel has no answer to forget
            self._operations.tell(change)

    async def _background(self, ready: Callable[[], None]) -> None:
        workers, mountpoint = self._workers, self._config.mountpoint
        if self._link is None:
            # Answered by ourselves: after it the kernel's INIT is over, which would undo the settings.
            await workers.run(os.stat, mountpoint)
            if device := paths.device_of(mountpoint):
                kernel.tune(device, fast_path=False)
            self._mounted.set()
        ready()
        if self._link is None:
            log.info("%s is mounted on %s (gpufs %s)", self._config.source, mountpoint, __version__)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._waits.name, workers)
            nursery.start_soon(self._objects.run, lambda: self._scan_cache(nursery))
            await workers.run(self._index.prefault)
            if self._source.abilities.flat_listing and not self._index.crawled():
                nursery.start_soon(self._tree.crawl)
            nursery.start_soon(workers.run, self._cache.scrub, lambda: False)
            if not self._resumed:  # else the kernel may still use inodes that have lost their names
                nursery.start_soon(workers.run, self._drop_orphans)

    async def _take_hints(self, hints: Hints, admits: Callable[[Peer], bool]) -> None:
        await self._mounted.wait()
        if device := await self._workers.run(paths.device_of, self._config.mountpoint):
            await serve(paths.hints_path(device, os.geteuid()), {"announce": hints.announce}, admits)

    def _scan_cache(self, nursery: trio.Nursery) -> None:
        self._cache.owe_scan()
        nursery.start_soon(self._workers.run, self._cache.scrub, lambda: False)

    def _drop_orphans(self) -> None:
        """Worker thread: what earlier mounts have left in the index for those who had it open."""
        with suppress(IndexUnwritable):  # the next mount tries again
            if dropped := self._index.drop_orphans():
                log.info("removed %d replaced or deleted inodes from the index", dropped)

    async def _until_signal(self, nursery: trio.Nursery) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                if self._operations is None:  # it is over anyway, and libfuse does not bear being told so
                    continue
                if self._link is None:  # else the supervisor has said what happens
                    log.info("%s: unmounting", signal.Signals(number).name)
                fuse.stop()
                # Requests under way are answered first, unless the source keeps them too long.
                await trio.sleep(STOP_PATIENCE)
                nursery.cancel_scope.cancel()

    # -- the control socket

    def _handlers(self) -> dict[str, Handler]:
        return {
            "ping": self._ping,
            "status": self._status,
            "figures": self._figures,
            "refresh": self._refresh,
            "evict": self._evict,
            "warm_start": self._warm_start,
            "warm_add": self._warm_add,
            "warm_go": self._warm_go,
            "warm_progress": self._warm_progress,
            "warm_stop": self._warm_stop,
        }

    async def _ping(self, request: dict[str, Any]) -> dict[str, Any]:
        return {}

    async def _status(self, request: dict[str, Any]) -> dict[str, Any]:
        await self._objects.settle()
        totals, usage = self._index.totals(), self._cache.usage()
        return self._counted() | {
            "source": self._config.source,
            "mountpoint": self._config.mountpoint,
            "uptime_s": round(time.monotonic() - self._started, 1),
            "version": __version__,
            "fast_path": self._link is not None,
            "passthrough": self._passthrough,
            "files": totals.files,
            "directories": totals.directories,
            "bytes": totals.bytes,
            "source_error": self._health.error,
            "hidden_keys": totals.hidden,
            "hidden": [
                {"key": os.fsdecode(key), "reason": reason}
                for key, reason in self._index.hidden(HIDDEN_SHOWN)
            ],
            "crawled": self._index.crawled(),
            "index_bytes": self._index.size_on_disk(),
            "cache_dir": str(self._config.options.cache_dir),
            "cache_bytes": usage.bytes,
            "cache_objects": usage.objects,
            "cache_limit": usage.limit,
            "bandwidth_limit": self._config.options.bandwidth_limit,
            "shared_cache": self._shared_cache(),
            "on_their_way": {
                "small": shown(self._page, FETCH),
                "large": shown(self._page, FILESYSTEM),
            },
            "warming": self._warmups.shown(),
            "orders": self._prefetch.shown(),
            "supervisor": self._supervisor(),
            "pids": self._pids(),
        }

    def _counted(self) -> dict[str, int]:
        """All counters, of both processes."""
        theirs = self._fetch_metrics.snapshot()
        return {name: value + theirs[name] for name, value in self.metrics.snapshot().items()}

    async def _figures(self, request: dict[str, Any]) -> dict[str, Any]:
        """Asked for again and again, so nothing here is waited for."""
        totals, usage = self._index.totals(), self._cache.usage()
        small, large = shown(self._page, FETCH), shown(self._page, FILESYSTEM)
        waiters, theirs = self._waits.shown(), self._fetch_metrics.times()
        return Figures(
            mountpoint=self._config.mountpoint,
            source=self._config.source,
            version=__version__,
            when=time.monotonic(),
            started=f"{os.getpid()} {self._started}",
            source_error=self._health.error,
            counters=self._counted(),
            gauges={
                "uptime": time.monotonic() - self._started,
                "files": totals.files,
                "directories": totals.directories,
                "tree_bytes": totals.bytes,
                "index_bytes": self._index.size_on_disk(),
                "cache_bytes": usage.bytes,
                "cache_limit_bytes": usage.limit,
                "cache_objects": usage.objects,
                "requests_under_way": small["requests"] + large["requests"],
                "requests_under_way_bytes": small["bytes"] + large["bytes"],
                "requests_allowed": small["requests_limit"] + large["requests_limit"],
                "bandwidth_limit_bytes": self._config.options.bandwidth_limit or 0,
                "readers_waiting": sum(waiter.waiting for waiter in waiters),
                "orders": len(self._prefetch.shown()),
                "warm_ups": len(self._warmups.shown()),
                "source_failing": int(self._health.error is not None),
                "shared_cache": max(self._page.own(process)[Own.SHARED] for process in (FETCH, FILESYSTEM)),
                "fast_path": int(self._link is not None),
                "passthrough": int(self._passthrough),
            },
            times={name: times + theirs[name] for name, times in self.metrics.times().items()},
            processes=[Process(*waiter) for waiter in waiters[:MOST_SHOWN]],
        ).to_json()

    def _shared_cache(self) -> dict[str, str] | None:
        """How it is, as the process for small objects and the one for large ones see it."""
        if self._shared is None:
            return None
        small, large = (State(self._page.own(process)[Own.SHARED]) for process in (FETCH, FILESYSTEM))
        url = self._config.options.shared_cache or ""
        return {"url": url, "small": small.name.lower(), "large": large.name.lower()}

    def _supervisor(self) -> int:
        """The pid of the supervisor; 0 when there is none (any more)."""
        parent = os.getppid()
        return parent if self._link is not None and parent == self._started_by else 0

    def _pids(self) -> list[int]:
        """Every process behind the mount, this one first, the supervisor last."""
        pids = os.getpid(), self._fastpath_pid, self._objects.pid, self._supervisor()
        return [pid for pid in pids if pid]

    async def _refresh(self, request: dict[str, Any]) -> dict[str, Any]:
        result = await self._tree.refresh(_path(request))
        if self._operations is not None:
            await self._operations.told()
        return dict(result)

    async def _warm_start(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"job": self._warmups.start(int(request["jobs"]), dry_run=bool(request["dry_run"]))}

    async def _warm_add(self, request: dict[str, Any]) -> dict[str, Any]:
        """Name `paths` to warm, or only files, before all others; the positions of those not there."""
        warmup = self._warmups.get(request["job"])
        paths = [os.fsencode(str(path)) for path in request["paths"]]
        return {"missing": await warmup.add(paths, only_files=bool(request["files"]))}

    async def _warm_go(self, request: dict[str, Any]) -> dict[str, Any]:
        self._warmups.get(request["job"]).go()
        return {}

    async def _warm_progress(self, request: dict[str, Any]) -> dict[str, Any]:
        warmup = self._warmups.get(request["job"])
        await warmup.changed(min(float(request["wait"]), LONGEST_WAIT))
        return warmup.progress()

    async def _warm_stop(self, request: dict[str, Any]) -> dict[str, Any]:
        self._warmups.get(request["job"]).scope.cancel()
        return {}

    async def _evict(self, request: dict[str, Any]) -> dict[str, Any]:
        await self._objects.settle()  # or what it has just kept would come back into the catalogue
        return await self._workers.run(self._evict_below, _path(request))

    def _evict_below(self, path: bytes) -> dict[str, int]:
        """Worker thread: drop the cached bytes of the file at `path` or of all files below it."""
        inode = self._index.resolve(path)
        if inode is None:
            raise NotFound(f"no such path in the tree: {os.fsdecode(path)!r}")
        files = freed = 0
        pending = [inode]
        while pending:
            inode = pending.pop()
            if inode.kind is Kind.FILE:
                amount = self._cache.evict(inode.digest)
                files += amount > 0
                freed += amount
            after: bytes | None = None
            while inode.kind is Kind.DIRECTORY and (batch := self._index.children(inode.number, after, 1000)):
                pending += batch
                after = batch[-1].name
        return {"files": files, "bytes": freed}


def run(config: MountConfig, ready: Callable[[], None], link: Link | None = None) -> int:
    """Serve one mount in this process until it is unmounted. Raises GpufsError when it cannot be."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # credentials live in this memory
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    Mount(config, link).run(ready)
    return 0


def main() -> int:
    """`python -m gpufs.service READY_FD [PAIR_FD FEED_FD RESUMED]`: its configuration on stdin.

    With only READY_FD it mounts by itself; with the others it is the supervisor's filesystem process.
    """
    document = sys.stdin.read()
    if not document:  # whoever started this was ended before it could say what to do
        return 1
    config = MountConfig.from_json(document)
    setup_logging(config.options.log_level, config.options.log_format)
    ready_fd, *rest = map(int, sys.argv[1:])
    link = Link(rest[0], rest[1], bool(rest[2])) if rest else None
    if link is not None:
        # While requests are served it is acted on. Later it must not cut the putting away short: the
        # supervisor sends it when the tree is unmounted already, and kills whoever takes too long.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return report_to(ready_fd, lambda ready: run(config, ready, link))


def _first(group: BaseExceptionGroup[BaseException]) -> GpufsError | None:
    """The error of ours that brought everything down, when it was one of ours."""
    for error in group.exceptions:
        found = _first(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, GpufsError):
            return found
    return None


def _path(request: dict[str, Any]) -> bytes:
    return os.fsencode(str(request.get("path", ""))).strip(b"/")


if __name__ == "__main__":
    sys.exit(main())
