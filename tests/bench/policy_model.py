"""A cache without files, for policies to be tried in: the real rules, and others beside them."""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import NamedTuple, Protocol

from gpufs.cache.ghosts import Ghosts
from gpufs.cache.policy import SPENT, History, Shortage, needless


class Cached(Protocol):
    """Objects of one size, `capacity` of them at most."""

    def use(self, digest: bytes) -> bool:
        """Read an object; whether it was there."""
        ...


class _Entry(NamedTuple):
    accessed: int
    charge: int = 1


class Epochs:
    """The rules of gpufs, as two processes go by them: one sees the hits, the other one the misses, and
    each tells the history of them once a second."""

    def __init__(self, capacity: int, *, rate: int) -> None:
        """`rate`: uses a second."""
        self._capacity = capacity
        self._half = max(1, rate // 2)
        self._history = History(1)
        self._ghosts = Ghosts()
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()  # oldest first
        self._hits: dict[bytes, None] = {}
        self._misses: dict[bytes, None] = {}
        self._staged: set[bytes] = set()
        self._refusing = False
        self._uses = 0
        self.allowance = 0

    def use(self, digest: bytes) -> bool:
        hit = digest in self._entries
        if hit:
            self._hits[digest] = None
        else:
            self._keep(digest)
            self._misses[digest] = None
        self._uses += 1
        if self._uses % self._half == 0:
            self._tell(self._uses // self._half)
        return hit

    def stage(self, digest: bytes) -> bool:
        """Keep what is going to be read; whether there was room for it."""
        if digest in self._entries:
            return True
        kept = self._keep(digest, staged=True)
        if kept:
            self._staged.add(digest)
        return kept

    def holds(self, digest: bytes) -> bool:
        return digest in self._entries

    def _keep(self, digest: bytes, *, staged: bool = False) -> bool:
        if len(self._entries) >= self._capacity:
            if self._refusing and not staged:
                return False
            history, allowance = self._history, self.allowance if staged else 0
            # What was touched since the history was told of it is no victim.
            oldest = ((d, e) for d, e in self._entries.items() if d not in self._hits)
            shortage = Shortage(0, 1, 1 + self._capacity // 32)
            victims, taken = needless(oldest, shortage, lambda *_: False, history.needless_before, allowance)
            self._refusing = not victims
            if not victims:
                return False
            self.allowance -= taken
            for victim in victims:
                self._ghosts.put(victim, self._entries.pop(victim).accessed)
        self._entries[digest] = _Entry(self._history.clock + len(self._misses))
        return True

    def _tell(self, second: int) -> None:
        history = self._history
        if second % 2:
            told, self._hits = self._hits, {}
        else:
            told, self._misses = self._misses, {}
        for tick, digest in enumerate(told, history.advance(len(told))):
            entry = self._entries.get(digest)
            before = entry.accessed if entry and second % 2 else self._ghosts.get(digest, history.clock)
            history.used(tick, before, kept=bool(entry and second % 2))
            if entry is None:
                self._ghosts.put(digest, tick)
            elif digest in self._staged:
                self._staged.discard(digest)
                self._entries[digest] = _Entry(SPENT)
                self._entries.move_to_end(digest, last=False)
            else:
                self._entries[digest] = _Entry(tick)
                self._entries.move_to_end(digest)
        history.settle(len(self._entries), second * 5 * 10**8)
        self._refusing = False


class LeastRecentlyUsed:
    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[bytes, None] = OrderedDict()

    def use(self, digest: bytes) -> bool:
        if digest in self._entries:
            self._entries.move_to_end(digest)
            return True
        if len(self._entries) >= self._capacity:
            self._entries.popitem(last=False)
        self._entries[digest] = None
        return False


class Random:
    """Replaces anything by whatever comes."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._choice = random.Random(1)
        self._entries: list[bytes] = []
        self._places: dict[bytes, int] = {}

    def use(self, digest: bytes) -> bool:
        if digest in self._places:
            return True
        if len(self._entries) < self._capacity:
            self._places[digest] = len(self._entries)
            self._entries.append(digest)
            return False
        place = self._choice.randrange(self._capacity)
        del self._places[self._entries[place]]
        self._entries[place] = digest
        self._places[digest] = place
        return False
