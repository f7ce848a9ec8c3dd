"""Everything that follows readers through a known order: announced, repeated, or the order of names."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import count as numbers_from
from typing import Any, NamedTuple

import trio

from gpufs.cache import CHUNK, Cache, charge_of
from gpufs.errors import DeadlineExceeded, GpufsError, RemoteFailed
from gpufs.fetch.ahead import spare_of
from gpufs.fetch.fetcher import Fetcher
from gpufs.fetch.following import LARGE_CHUNKS, Follower, Portion
from gpufs.fetch.learning import Neighbours, Replay
from gpufs.fetch.messages import Through, failure_of
from gpufs.fetch.orders import Announced, History, Listing
from gpufs.index import Index, Inode
from gpufs.source.base import ObjectRef

REMEMBERED = 1 << 21  # files of the history: 32 MiB at most
MOST_FILES = 1 << 22  # in all announced orders: 64 MiB
MOST_ORDERS = 64  # announced
LEARNED_ORDERS = 16
AHEAD_BYTES = 256 << 20  # fetched and not read yet, in all orders; and of the cache's limit:
AHEAD_SHARE = 32  # a part of what staged objects may have
ANNOUNCED_WINDOW, REPEATED_WINDOW, NEIGHBOURS_WINDOW = 256, 64, 8  # files, at first
AT_ONCE = 64  # objects on their way for orders
IDLE = 3600.0  # seconds without an open of it, after which an announced order is forgotten

log = logging.getLogger("gpufs.prefetch")

# Of some files: see FetchProcess.ahead.
SmallFiles = Callable[[Sequence[int], int, int], Awaitable[tuple[Through, GpufsError | None]]]


class Announcer(NamedTuple):
    """Whose order it is: a process, which may have several by name."""

    uid: int
    pid: int
    name: str


class _Followed:
    """A follower, and for whom."""

    __slots__ = ("announced", "announcer", "follower", "number", "source", "unknown", "used")

    def __init__(self, number: int, source: str, follower: Follower) -> None:
        self.number = number
        self.source = source  # announced, repeated, neighbours
        self.follower = follower
        self.announcer: Announcer | None = None
        self.announced: Announced | None = None
        self.unknown = 0  # names that were announced and are not there
        self.used = trio.current_time()


class _Outcome:
    """Of a portion."""

    __slots__ = ("all_here", "later")

    def __init__(self) -> None:
        self.all_here = True
        self.later = False  # for some there was no room, or the source is down


class Prefetch:
    """Told of every open of a file, and of announced orders; has fetched what comes next. In trio."""

    def __init__(
        self,
        index: Index,
        cache: Cache,
        fetcher: Fetcher,
        small_files: SmallFiles,
        nursery: trio.Nursery,
    ) -> None:
        self._index = index
        self._cache = cache
        self._fetcher = fetcher
        self._small_files = small_files
        self._nursery = nursery
        self._history = History(REMEMBERED)
        self._replay = Replay(self._history)
        self._neighbours = Neighbours(index)
        self._followed: list[_Followed] = []
        self._orders = numbers_from(1)

    def hit(self, numbers: Sequence[int]) -> None:
        """These files were opened, in this order, and were here."""
        numbers = list(dict.fromkeys(numbers))  # a library that opens a file to look at it opens it twice
        self._history.record(numbers)
        for followed in self._followed:
            seen = followed.follower.seen
            if sum([seen(number, missed=False) for number in numbers]):
                self._used(followed)
        self._forget_ended()

    def missed(self, inode: Inode) -> None:
        """This file is being opened, and its reader waits."""
        number = inode.number
        before = self._history.find(number)
        self._history.record((number,))
        known = [f for f in self._followed if f.follower.seen(number, missed=True)]
        for followed in known:
            self._used(followed)
        self._forget_ended()
        if not known:
            self._learn(inode, before)

    def announce(self, announcer: Announcer, numbers: Sequence[int], unknown: int, *, begin: bool) -> int:
        """More of the order in which `announcer` will read; how many could be taken.

        With `begin` it is a new order, in place of the one of before.
        """
        followed = next((f for f in self._followed if f.announcer == announcer), None)
        if begin or followed is None:
            if followed is not None:
                self._followed.remove(followed)
            if not self._make_room(announcer.uid):
                return 0
            order = Announced()
            followed = self._follow("announced", order, 0, ANNOUNCED_WINDOW)
            followed.announcer, followed.announced = announcer, order
        assert followed.announced is not None
        room = self._room_for(announcer.uid)
        followed.announced.extend(numbers[:room])
        followed.unknown += unknown
        self._used(followed)
        return min(len(numbers), room)

    def shown(self) -> list[dict[str, Any]]:
        """For the status."""
        self._forget_idle()
        return [
            {
                "source": f.source,
                "announced_by": f.announcer._asdict() if f.announcer else None,
                "files": len(f.announced) if f.announced is not None else None,
                "unknown": f.unknown,
                "position": f.follower.position,
                "window": f.follower.window,
            }
            for f in self._followed
        ]

    # -- which orders there are

    def _learn(self, inode: Inode, before: int | None) -> None:
        start = self._replay.missed(before)
        if start is not None:
            self._follow_learned("repeated", self._history, start, REPEATED_WINDOW)
        elif (listing := self._neighbours.missed(inode)) is not None:
            self._follow_learned("neighbours", listing, 0, NEIGHBOURS_WINDOW)

    def _follow_learned(self, source: str, order: History | Listing, start: int, window: int) -> None:
        learned = [f for f in self._followed if f.announcer is None]
        if len(learned) >= LEARNED_ORDERS:
            self._followed.remove(min(learned, key=lambda f: f.used))
        self._pump(self._follow(source, order, start, window))

    def _follow(
        self, source: str, order: Announced | History | Listing, start: int, window: int
    ) -> _Followed:
        follower = Follower(order, start, window, self._size_of, guessed=source != "announced")
        followed = _Followed(next(self._orders), source, follower)
        self._followed.append(followed)
        return followed

    def _used(self, followed: _Followed) -> None:
        followed.used = trio.current_time()
        self._pump(followed)

    def _forget_ended(self) -> None:
        if any(f.follower.ended for f in self._followed):
            self._followed = [f for f in self._followed if not f.follower.ended]

    def _forget_idle(self) -> None:
        now = trio.current_time()
        self._followed = [f for f in self._followed if now - f.used < IDLE]

    def _make_room(self, uid: int) -> bool:
        """For one more announced order: the oldest of the same user goes, and nobody else's."""
        self._forget_idle()
        while self._count(None)[0] >= MOST_ORDERS or self._count(uid)[0] >= MOST_ORDERS // 2:
            own = [f for f in self._followed if f.announcer is not None and f.announcer.uid == uid]
            if not own:
                return False
            self._followed.remove(min(own, key=lambda f: f.used))
        return True

    def _room_for(self, uid: int) -> int:
        """Files that may be announced; one user has half at most."""
        return max(0, min(MOST_FILES - self._count(None)[1], MOST_FILES // 2 - self._count(uid)[1]))

    def _count(self, uid: int | None) -> tuple[int, int]:
        """Announced orders, and files in them."""
        orders = [
            f.announced for f in self._followed
            if f.announcer is not None and f.announced is not None and uid in (None, f.announcer.uid)
        ]  # fmt: skip
        return len(orders), sum(map(len, orders))

    # -- fetching

    def _size_of(self, number: int) -> int:
        contents = self._index.contents(number)
        return contents[1] if contents is not None and contents[0] else 0

    def _pump(self, followed: _Followed) -> None:
        """Ask for all that it is time for."""
        if followed not in self._followed:
            return  # forgotten
        most = min(AHEAD_BYTES, self._cache.limit // AHEAD_SHARE) // len(self._followed)
        while (portion := followed.follower.take(most)) is not None:
            self._nursery.start_soon(self._fetch, followed, portion)

    async def _fetch(self, followed: _Followed, portion: Portion) -> None:
        outcome = _Outcome()
        async with trio.open_nursery() as nursery:
            if portion.small:
                nursery.start_soon(self._fetch_small, followed.number, portion.small, outcome)
            for number in portion.large:
                nursery.start_soon(self._fetch_large, number, outcome)
        followed.follower.answered(portion, all_here=outcome.all_here, later=outcome.later)
        self._pump(followed)

    async def _fetch_small(self, order: int, numbers: list[int], outcome: _Outcome) -> None:
        try:
            through, error = await self._small_files(numbers, AT_ONCE, order)
        except GpufsError as failure:
            through, error = Through(failed=len(numbers)), failure
        if error is not None:  # whoever needs it will meet it as his own
            outcome.later |= isinstance(error, RemoteFailed | DeadlineExceeded)
            log.debug("not fetched in advance: %s", error)
        outcome.all_here &= through.cached == len(numbers) and not through.fetched
        outcome.later |= through.cached + through.failed < len(numbers)

    async def _fetch_large(self, number: int, outcome: _Outcome) -> None:
        """The first chunks of a large file, if there is room for them without evicting anything."""
        inode = self._index.get(number)
        if inode is None or self._cache.has_object(inode.digest):
            return
        outcome.all_here = False
        try:
            ref = ObjectRef(self._index.path(number), inode.version, inode.size)
            partial = await self._fetcher.open_partial(inode.digest, inode.size)
            try:
                missing = [c for c in range(min(partial.chunks, LARGE_CHUNKS)) if not partial.has(c)]
                if charge_of(len(missing) * CHUNK) <= self._cache.room(spare_of(self._cache)):
                    for chunk in missing:
                        await self._fetcher.ahead(partial, inode.digest, ref, chunk)
            finally:
                partial.close()
        except Exception as error:
            log.debug("not fetched in advance: %s", failure_of(error, log))
