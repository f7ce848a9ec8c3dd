"""What may be replaced by what. The history of all uses, and the victims that follow from it; no I/O.

Training reads a data set again and again, each time in another order. Least recently used is the worst
choice then: it drops what comes next. Keeping what is there is the best possible, as long as it is being
used. So an entry is replaced only when there is a sign that it is not: see History.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar

SPENT = 0  # the tick of an entry that was kept for one use, and has had it

# An era must have lasted so long before what was last used before it counts as abandoned: in uses, a share
# of the entries within limits; and in time, for uses are told once a second, by several processes.
_ERA_SHARE = 1 / 8
_SHORTEST, _LONGEST = 8, 512
_ERA_NS = 3 * 10**9
# Idle for so many times the longest interval between two uses that was seen lately: used no more.
_IDLE = 1.25


class Purpose(Enum):
    """What an object is kept for."""

    DEMAND = "demand"  # a reader waits for it
    FILL = "fill"  # it may be wanted: nothing is evicted for it
    STAGE = "stage"  # it will be wanted soon, and known when: once read, its room is for others


class History:
    """What the uses so far say about which entries will be used again.

    The clock counts uses, of whatever is kept or not; an entry's tick is that of its last use. What is
    noted of an interval between two uses of one object goes by two rules:

    - An *era* begins with the last use of something whose use before was in an earlier era. So it lasts
      for a moment while a job goes through its data set again and again, and as long as the first
      epoch of another one. Once it has lasted for some time, whatever was last used before it is
      *abandoned*, until something of that is used after all.
    - Something unused for longer than any interval that was seen lately is *idle*.
    """

    __slots__ = ("abandoned", "base", "clock", "era", "era_ns", "era_uses", "longest", "longest_before",
                 "period", "reuses")  # fmt: skip
    _ROW = struct.Struct("<10Q")

    def __init__(self, clock: int) -> None:
        """`clock`: behind every tick that was given without a history; those only say who was first."""
        self.clock = self.base = self.era = clock
        self.era_ns = 0  # when the era was first seen
        self.era_uses = _SHORTEST  # how many it must have lasted
        self.abandoned = 0  # what was last used before this tick
        self.longest = self.longest_before = 0  # interval seen in this period, and in the one before
        self.reuses = 0  # seen in this period
        self.period = 0  # the tick of the first of them

    def pack(self) -> bytes:
        return self._ROW.pack(*(getattr(self, name) for name in self.__slots__))

    @classmethod
    def unpack(cls, row: bytes) -> History:
        history = cls(0)
        for name, value in zip(cls.__slots__, cls._ROW.unpack(row), strict=True):
            setattr(history, name, value)
        return history

    def advance(self, uses: int) -> int:
        """Give out the ticks of so many uses; the first of them."""
        first = self.clock + 1
        self.clock += uses
        return first

    def used(self, tick: int, before: int | None, *, kept: bool) -> None:
        """An object was used at `tick`, and last `before`, if that is known; `kept`: it was here."""
        if before is None or before == SPENT:
            return
        interval, idle = tick - before, self._idle_after()
        if not kept and (before < self.abandoned if idle is None else interval > idle):
            return  # of an earlier job: to the cache it is as good as new
        if before >= self.base:
            if not self.reuses:
                self.period = tick
            self.reuses += 1
            # One odd use of something old must not keep everything for as long again.
            self.longest = max(self.longest, interval if idle is None else min(interval, 2 * idle))
        if before < self.abandoned:
            self.abandoned = 0
        if before < self.era or (self.abandoned == self.era and interval > self.era_uses):
            self.era, self.era_ns = max(self.era, tick), 0

    def settle(self, objects: int, now_ns: int) -> None:
        """After some uses: draw the conclusions. `objects` are in the cache."""
        self.era_uses = int(min(_LONGEST, max(_SHORTEST, objects * _ERA_SHARE)))
        if not self.era_ns or now_ns < self.era_ns:
            self.era_ns = now_ns
        lasting = self.clock - self.era > self.era_uses and now_ns - self.era_ns >= _ERA_NS
        if lasting and self.abandoned < self.era:
            self.abandoned = self.era
            # Another job, with intervals of its own.
            self.longest = self.longest_before = self.reuses = 0
        elif self.reuses >= self.era_uses and self.clock - self.period >= self.longest:
            self.longest_before, self.longest, self.reuses = self.longest, 0, 0

    @property
    def needless_before(self) -> int:
        """What was last used before this tick may be replaced."""
        idle = self._idle_after()
        idle_before = self.clock - idle if idle is not None else 0
        return max(self.abandoned, idle_before if idle_before > self.base else 0, SPENT + 1)

    def _idle_after(self) -> int | None:
        """None before the first period is over: too few intervals have been seen to tell."""
        return int(_IDLE * max(self.longest, self.longest_before)) if self.longest_before else None


class Shortage(NamedTuple):
    """Bytes to evict."""

    over: int  # what is kept is over the limits by so much, newcomer or not
    least: int  # the newcomer fits then
    wanted: int  # and some that come after it


class Evictable(Protocol):
    """As much of an entry as matters here."""

    @property
    def accessed(self) -> int: ...
    @property
    def charge(self) -> int: ...


E = TypeVar("E", bound=Evictable)


def least_recently_used(
    oldest_first: Iterable[tuple[bytes, E]], wanted: int, in_use: Callable[[bytes, E], bool]
) -> list[bytes]:
    """Digests whose removal frees what is wanted, fewer when there are no more; what is in use goes last."""
    chosen: list[bytes] = []
    spared: list[tuple[bytes, int]] = []
    for digest, entry in oldest_first:
        if wanted <= 0:
            return chosen
        if in_use(digest, entry):
            spared.append((digest, entry.charge))
            continue
        chosen.append(digest)
        wanted -= entry.charge
    for digest, charge in spared:
        if wanted <= 0:
            break
        chosen.append(digest)
        wanted -= charge
    return chosen


def needless(
    oldest_first: Iterable[tuple[bytes, E]],
    shortage: Shortage,
    in_use: Callable[[bytes, E], bool],
    before: int,
    allowance: int = 0,
) -> tuple[list[bytes], int]:
    """Digests of what may be replaced by a newcomer, enough for it or none; bytes taken of the allowance.

    That is what was last used `before` some tick, and any others of `allowance` bytes together.
    """
    freed = taken = 0
    chosen: list[bytes] = []
    for digest, entry in oldest_first:
        if freed >= shortage.wanted:
            break
        if entry.accessed >= before:  # and so are all that follow
            if freed >= shortage.least or taken + entry.charge > allowance:
                break
            taken += entry.charge
        if in_use(digest, entry):
            continue
        chosen.append(digest)
        freed += entry.charge
    return (chosen, taken) if freed >= shortage.least else ([], 0)
