"""Hints of training jobs: who may give them, and what they name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import trio

from gpufs.control.server import Peer
from gpufs.errors import GpufsError, UsageError
from gpufs.fetch.prefetch import Announcer
from gpufs.fetch.survey import Finder, Names
from gpufs.index import ROOT, Index
from gpufs.view import View

NAME_LENGTH = 100  # characters of an order's name that count
SLICE = 256  # paths looked up between turns of other tasks
LISTINGS = 16  # directories listed at once
PATIENCE = 3.0  # seconds for the listings of a request; whoever asks waits for 5 in all


class Announce(Protocol):
    """Prefetch.announce."""

    def __call__(self, announcer: Announcer, numbers: Sequence[int], unknown: int, *, begin: bool) -> int: ...


def may_read(index: Index, view: View, others: bool) -> Callable[[Peer], bool]:
    """Who may give hints: root, who mounted, and who may list the root of the tree if `others` see it."""

    def admits(peer: Peer) -> bool:
        if peer.uid in (0, os.geteuid()):
            return True
        root = index.get(ROOT) if others else None
        if root is None:
            return False
        shown = view.show(root)
        shift = 6 if shown.uid == peer.uid else 3 if shown.gid in peer.groups else 0
        return shown.mode >> shift & 0o5 == 0o5

    return admits


class Hints:
    """Takes announced orders, in pieces of a request each."""

    def __init__(self, names: Names, index: Index, announce: Announce) -> None:
        self._names = names
        self._index = index
        self._announce = announce

    async def announce(self, request: dict[str, Any]) -> dict[str, Any]:
        """Paths in the order in which the peer will read them; how many were taken.

        It is not told which of them are there: who may not look into a directory learns nothing of it.
        """
        peer: Peer = request["peer"]
        name, paths = request.get("name", ""), request.get("paths")
        if not isinstance(name, str) or not isinstance(paths, list):
            raise UsageError('an announcement has a text "name" and a list "paths"')
        announcer = Announcer(peer.uid, peer.pid, name[:NAME_LENGTH])
        finder = Finder(self._names, self._index)
        directories: dict[bytes, int | None] = {}  # asked about in this request, by path
        deadline = trio.current_time() + PATIENCE
        begin, taken = bool(request.get("begin", True)), 0
        for at in range(0, max(len(paths), 1), SLICE):
            some = [_split(path) for path in paths[at : at + SLICE]]
            await self._look_up(
                {above for above, _ in some} - directories.keys(), directories, finder, deadline
            )
            places = [(directories.get(above), name_there) for above, name_there in some]
            known = [(directory, name_there) for directory, name_there in places if directory is not None]
            numbers = [number for number in self._index.numbers(known) if number]
            unknown = len(some) - len(numbers)
            accepted = self._announce(announcer, numbers, unknown, begin=begin)
            if accepted < len(numbers):
                return {"taken": taken + accepted}
            taken += len(some)
            begin = False
            await trio.lowlevel.checkpoint()
        return {"taken": taken}

    async def _look_up(
        self, paths: set[bytes], found: dict[bytes, int | None], finder: Finder, deadline: float
    ) -> None:
        """Find directories. Those never listed, or too long ago, are listed, as for a reader."""
        limiter = trio.CapacityLimiter(LISTINGS)

        async def look_up(path: bytes) -> None:
            async with limiter:
                with suppress(GpufsError), trio.move_on_at(deadline):
                    directory = found[path] = await finder.directory(path)
                    if directory is not None and self._names.fresh_for(directory) <= 0:
                        await self._names.children(directory, None, 1)

        async with trio.open_nursery() as nursery:
            for path in paths:
                nursery.start_soon(look_up, path)


def _split(path: object) -> tuple[bytes, bytes]:
    """The directory, and the name in it."""
    if not isinstance(path, str):
        raise UsageError("a path must be a text")
    above, _, name = os.fsencode(path).rpartition(b"/")
    return above, name
