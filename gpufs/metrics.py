"""The names and values of everything gpufs counts; no counter is named anywhere else."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

MOST_CELLS = 256  # of one process
# Upper bounds of a histogram's buckets in seconds: 100 us to 105 s, each 1.41 times the one before.
BOUNDS = tuple(0.0001 * 2 ** (step / 2) for step in range(41))

# What is not counted, but so or so at the moment: the unit, and what it is.
GAUGES = {
    "uptime": ("seconds", "Since this daemon has started."),
    "files": ("", "Files known so far."),
    "directories": ("", "Directories known so far."),
    "tree_bytes": ("bytes", "Sizes of the files known so far."),
    "index_bytes": ("bytes", "Disk space of the index of names."),
    "cache_bytes": ("bytes", "Disk space the cache takes, of all mounts that share it."),
    "cache_limit_bytes": ("bytes", "Disk space the cache may take."),
    "cache_objects": ("", "Objects in the cache."),
    "requests_under_way": ("", "Objects, or pieces of large ones, that are on their way from the source."),
    "requests_under_way_bytes": (
        "bytes",
        "Bytes of what is on its way from the source.",
    ),
    "requests_allowed": ("", "How many objects or pieces may be on their way at once."),
    "bandwidth_limit_bytes": ("bytes", "Bytes a second that may be fetched; 0: any number."),
    "readers_waiting": ("", "Threads of programs that wait for bytes or names that are not here."),
    "orders": ("", "Orders of reading that are known, by announcement or by themselves."),
    "warm_ups": ("", "Warm-ups under way."),
    "source_failing": ("", "1 when the latest request to the source has failed."),
    "shared_cache": ("", "0: there is none; 1: all is well; 2: it takes nothing; 3: it is left alone."),
    "fast_path": ("", "1 when the fast path process stands before the filesystem process."),
    "passthrough": ("", "1 when the kernel reads cached files by itself."),
}


class Cells(Protocol):
    """Numbers that stay where they are, perhaps in memory that another process looks at."""

    def __getitem__(self, at: int, /) -> int: ...

    def __setitem__(self, at: int, value: int, /) -> Any: ...


class Counter:
    """A number that only grows; may be added to from any thread of the process whose cells these are.

    `unit`: of the number, where the name does not say it.
    """

    __slots__ = ("_at", "_cells", "_lock", "help", "unit")

    def __init__(self, help: str, unit: str = "") -> None:
        self.help = help
        self.unit = unit
        self._lock = threading.Lock()
        self._cells: Cells = [0]
        self._at = 0

    def live_in(self, cells: Cells, at: int) -> int:
        """Use the cell `at`; the next one that is free."""
        self._cells, self._at = cells, at
        return at + 1

    @property
    def value(self) -> int:
        return self._cells[self._at]

    def add(self, amount: int = 1) -> None:
        with self._lock:
            self._cells[self._at] += amount


class Histogram:
    """Times in seconds, by size: how many there were up to each of BOUNDS, and beyond the last."""

    __slots__ = ("_at", "_cells", "_lock", "help")

    def __init__(self, help: str) -> None:
        self.help = help
        self._lock = threading.Lock()
        self._cells: Cells = []
        self._at = 0

    def live_in(self, cells: Cells, at: int) -> int:
        """Use the cells from `at` on: the sum in nanoseconds, then the buckets; the next one that is free."""
        self._cells, self._at = cells, at
        return at + len(BOUNDS) + 2

    def observe(self, seconds: float) -> None:
        bucket = self._at + 1 + bisect_left(BOUNDS, seconds)
        with self._lock:
            self._cells[self._at] += int(seconds * 1e9)
            self._cells[bucket] += 1

    @property
    def times(self) -> Times:
        values = [self._cells[at] for at in range(self._at, self._at + len(BOUNDS) + 2)]
        return Times(values[0] / 1e9, values[1:])


@dataclass(frozen=True, slots=True)
class Times:
    """What a histogram holds: the sum in seconds, and the number in each bucket, one more than BOUNDS."""

    seconds: float
    buckets: Sequence[int]

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def __add__(self, other: Times) -> Times:
        return self._with(other, lambda mine, others: mine + others)

    def __sub__(self, other: Times) -> Times:
        """What came since `other`; all of it when counting has begun anew meanwhile."""
        since = self._with(other, lambda mine, others: mine - others)
        return self if min(since.buckets) < 0 else since

    def _with(self, other: Times, do: Callable[[Any, Any], Any]) -> Times:
        buckets = [do(mine, others) for mine, others in zip(self.buckets, other.buckets, strict=True)]
        return Times(do(self.seconds, other.seconds), buckets)

    def quantile(self, share: float) -> float:
        """Seconds that this share took at most, as exactly as the buckets tell; 0 when there are none."""
        wanted, seen = share * self.count, 0
        for at, number in enumerate(self.buckets):
            if number and seen + number >= wanted:
                upper = BOUNDS[min(at, len(BOUNDS) - 1)]
                lower = BOUNDS[at - 1] if 0 < at < len(BOUNDS) else upper
                return float(lower * (upper / lower) ** ((wanted - seen) / number))
            seen += number
        return 0.0


class Metrics:
    """What one process of a mount counts.

    `cells`: of zeros, or of a process that was here before, which is gone on from.
    """

    def __init__(self, cells: Cells | None = None) -> None:
        self.opens = Counter("Files opened.")
        self.hits = Counter("Opens of an object that was wholly on this host.")
        self.misses = Counter("Opens of an object that was not.")
        self.passthrough_opens = Counter("Hits whose bytes the kernel reads from the cache by itself.")
        self.fast_path_opens = Counter("Hits whose bytes the fast path process reads from the cache.")
        self.served_bytes = Counter(
            "Sizes of the files opened that are wholly here, and bytes read of those that are not."
        )
        self.lookups = Counter("Names, attributes and parts of directories the kernel has asked for.")
        self.listings = Counter("Directories listed one by one.")
        self.prefetched = Counter("Objects fetched before anybody asked for them.")
        self.prefetched_used = Counter("Objects fetched before anybody asked, kept, and used since.")
        self.prefetched_wasted = Counter("Objects fetched before anybody asked, kept, and evicted unused.")
        self.remote_requests = Counter("Requests sent to the source, repeats included.")
        self.remote_bytes = Counter("Payload bytes received from the source.")
        self.remote_errors = Counter("Requests to the source that failed, repeats included.")
        self.retries = Counter("Requests that were repeats of a failed one.")
        self.throttled = Counter("Requests the source was too busy for: 503, 429, silence, refused.")
        self.shared_hits = Counter("Objects and chunks that the shared cache had.")
        self.shared_misses = Counter("Objects and chunks that it did not have, or not in time.")
        self.shared_corrupt = Counter("Entries of it that were damaged, or something else.")
        self.shared_writes = Counter("Objects and chunks written into it.")
        self.shared_dropped = Counter("Objects and chunks that were not, for it is slow, full or gone.")
        self.shared_errors = Counter("Requests to it that failed.")
        self.evictions = Counter("Cache entries removed to keep the limits.")
        self.not_admitted = Counter("Objects and chunks served without being kept, for what is kept.")
        self.compressed = Counter("Objects that were kept compressed.")
        self.compressed_saved = Counter("How much less disk space they took.", "bytes")
        self.cache_errors = Counter("Cache operations that failed and were bypassed.")
        self.corrupt_entries = Counter("Cache entries whose checksum did not match.")
        self.stale_served = Counter("Listings served past their ttl, the source being down.")
        self.miss_wait = Histogram("How long opens and reads waited for bytes that were not here.")
        self.listing_wait = Histogram("How long lookups and readdirs waited for a directory to be listed.")
        self.fetch_time = Histogram(
            "From sending the first request for an object, or a piece of one, until its bytes were here."
        )
        self.answer_time = Histogram(
            "From sending a request until its answer began, or where that is not known, was here."
        )

        self.counters = {name: item for name, item in vars(self).items() if isinstance(item, Counter)}
        self.histograms = {name: item for name, item in vars(self).items() if isinstance(item, Histogram)}
        free = 0
        cells = [0] * MOST_CELLS if cells is None else cells
        for counter in self.counters.values():
            free = counter.live_in(cells, free)
        for histogram in self.histograms.values():
            free = histogram.live_in(cells, free)
        assert free <= MOST_CELLS

    def snapshot(self) -> dict[str, int]:
        """All counters by name."""
        return {name: counter.value for name, counter in self.counters.items()}

    def times(self) -> dict[str, Times]:
        """All histograms by name."""
        return {name: histogram.times for name, histogram in self.histograms.items()}
