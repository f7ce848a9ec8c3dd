"""Keeping ahead of a reader whose order is known: what to fetch next, and how far it has come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gpufs.cache import CHUNK
from gpufs.fetch.orders import Order

PORTION = 64  # files asked for together
PORTION_BYTES = 32 << 20
WAITING = 256  # files asked for and not answered; the rest of the window waits here
FULL = 256  # files a window grows to as it is used; beyond that only when the reader had to wait
MOST = 4096  # files of a window
LARGE_CHUNKS = 4  # of a large file, its first, that are fetched: then its own read-ahead goes on
BEHIND = 1024  # positions behind the furthest reader in which others may still be
BEYOND = 1024  # positions beyond the window in which a reader is noticed
CERTAIN = 512  # files in a row that were here: the rest is only sampled
STRIDE = 16  # of the files of a sample one is looked at
PAUSE_SHARE = 8  # of the window, to be read before it is tried again
STRAYS = 16  # opens at other places of the order, most of them close together, before it is looked for there
AGREEING = 12
CLOSE = 1024  # positions
LEAD = 512  # positions that the first of many workers may be ahead of the others
SPARSEST = 16  # positions to a file that was opened; a guess of which fewer are opened ends
OPENS = 256  # after which those before count half


class Portion:
    """Files to have here now. `small` ones whole, of `large` ones the first chunks."""

    __slots__ = ("large", "small", "start", "stop")

    def __init__(self, start: int) -> None:
        self.start = start
        self.stop = start
        self.small: list[int] = []
        self.large: list[int] = []

    @property
    def files(self) -> int:
        return len(self.small) + len(self.large)


class Follower:
    """One order and its readers. Knows nothing of time; the window grows when a reader had to wait.

    The reader's position is behind the furthest file that was opened: many workers read one order in
    bunches, each a little ahead of or behind the others. A `guessed` order ends when they go elsewhere.
    """

    def __init__(
        self, order: Order, start: int, window: int, size_of: Callable[[int], int], *, guessed: bool
    ) -> None:
        """`size_of` gives the bytes of a file; 0 for what need not or cannot be fetched."""
        self.order = order
        self.position = start
        self.window = window
        self.ended = False
        self._size_of = size_of
        self._guessed = guessed
        self._asked = start  # all before this position was asked for, or looked at
        self._opened: set[int] = set()  # positions behind that which were opened all the same
        self._waiting = 0
        self._resumes_at = start  # where it is tried again
        self._places: dict[int, int] = {}  # where files are from _places_from to _places_to
        self._places_from = self._places_to = max(0, start - BEHIND)
        self._sizes: dict[int, int] = {}  # of what was asked for, at positions that no reader has passed
        self._bytes = 0
        self._used = 0  # files opened since the window grew
        self._certain = 0
        self._stride = 1
        self._strays: deque[int] = deque(maxlen=STRAYS)
        self._since, self._opens = start, 0  # of a guess
        self._learn_places()

    def seen(self, number: int, *, missed: bool) -> bool:
        """A file was opened; `missed`: its reader had to wait. Whether it is of this order, here and now."""
        position = self._places.get(number)
        if position is None:
            self._stray(number)
            return False
        if self._strays:
            self._strays.clear()
        if position >= self._asked:
            self._opened.add(position)
        if position >= self.position:
            self._go_to(position + 1)
        if self._guessed:
            self._check()
        self._used += 1
        if self._used >= self.window // 2 and (missed or self.window < FULL):
            self.window = min(2 * self.window, MOST)
            self._used = 0
        return True

    def take(self, most_bytes: int) -> Portion | None:
        """What to ask for next, if it is time, answered() being told; no more than `most_bytes` ahead."""
        full = self._bytes >= most_bytes or self.position < self._resumes_at
        if self.ended or self._waiting >= WAITING or full:
            return None
        self._learn_places()
        self._asked = max(self._asked, self.position - BEHIND)
        end = self.position + self.window
        numbers = self.order.numbers(self._asked, min(end, self._asked + PORTION * self._stride))
        few = min(PORTION * self._stride // 4, self.window // 2)
        if not numbers or end - self._asked < few:  # not one by one: a message for a few
            return None
        portion = Portion(self._asked)
        portion_bytes = 0
        position = self._asked
        for number in numbers[:: self._stride]:
            size = self._size_of(number) if position not in self._opened else 0
            if size:
                (portion.small if size <= CHUNK else portion.large).append(number)
                size = min(size, LARGE_CHUNKS * CHUNK)
                portion_bytes += size
                if position >= self.position:
                    self._bytes += size - self._sizes.get(position, 0)
                    self._sizes[position] = size
            position += self._stride
            if portion_bytes >= PORTION_BYTES or self._bytes >= most_bytes:
                break
        self._asked = portion.stop = min(position, portion.start + len(numbers))
        if self._opened:
            self._opened = {place for place in self._opened if place >= self._asked - BEHIND}
        self._waiting += portion.files
        return portion

    def answered(self, portion: Portion, *, all_here: bool, later: bool = False) -> None:
        """The portion is through; `all_here`: it was in the cache already; `later`: try again."""
        self._waiting -= portion.files
        if later:  # when readers have gone on, and passed some of what takes the room
            self._asked = min(self._asked, portion.start)
            self._resumes_at = self.position + self.window // PAUSE_SHARE
        if all_here:
            self._certain += portion.stop - portion.start
            if self._certain >= CERTAIN:
                self._stride = STRIDE
            return
        self._certain = 0
        if self._stride > 1:
            self._stride = 1
            self._asked = min(self._asked, portion.start)

    def _go_to(self, position: int) -> None:
        if self._sizes:
            for passed in range(self.position, position):
                self._bytes -= self._sizes.pop(passed, 0)
        self.position = position
        if self._places_to < position + self.window + BEYOND // 2:
            self._learn_places()

    def _learn_places(self) -> None:
        until = self.position + self.window + BEYOND
        numbers = self.order.numbers(self._places_to, until) if self._places_to < until else ()
        for number in numbers:
            self._places[number] = self._places_to
            self._places_to += 1
        stop = self.position - BEHIND
        if stop > self._places_from:
            for position, number in enumerate(self.order.numbers(self._places_from, stop), self._places_from):
                if self._places.get(number) == position:
                    del self._places[number]
            self._places_from = stop

    def _stray(self, number: int) -> None:
        position = self.order.find(number) if not self._guessed else None
        if position is None:
            return
        self._strays.append(position)
        if len(self._strays) == STRAYS:
            middle = sorted(self._strays)[STRAYS // 2]
            close = [place for place in self._strays if abs(place - middle) <= CLOSE]
            if len(close) >= AGREEING:
                self._jump(min(close))

    def _check(self) -> None:
        """End when the reader skips most files: it has another order, in which some are near by chance."""
        self._opens += 1
        self.ended = self.position - self._since > LEAD + SPARSEST * self._opens
        if self._opens == OPENS:
            self._opens //= 2
            self._since = (self._since + self.position) // 2

    def _jump(self, position: int) -> None:
        """The reader is somewhere else in the order: it went on from a checkpoint, or began anew."""
        self._strays.clear()
        self._places.clear()
        self._sizes.clear()
        self._opened.clear()
        self._bytes = 0
        self._resumes_at = position
        self.position = self._asked = position
        self._places_from = self._places_to = max(0, position - BEHIND)
        self._used = 0
        self._certain, self._stride = 0, 1
        self._learn_places()
