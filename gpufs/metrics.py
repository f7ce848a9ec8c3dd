"""The names and values of everything gpufs counts; no counter is named anywhere else."""

from __future__ import annotations

import threading
import time


class Counter:
    """A number that only grows; may be added to from any thread."""

    __slots__ = ("_lock", "value")

    def __init__(self) -> None:
        self.value = 0
        self._lock = threading.Lock()

    def add(self, amount: int = 1) -> None:
        with self._lock:
            self.value += amount


class Metrics:
    """The counters of one mount, all zero at its start."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.opens = Counter()  # OPEN requests for files
        self.hits = Counter()  # opens of an object that was wholly on this host
        self.misses = Counter()  # opens of an object that was not
        self.prefetched = Counter()  # objects fetched before anybody asked for them
        self.prefetched_used = Counter()  # of those, as far as they were kept: used since
        self.prefetched_wasted = Counter()  # and evicted without having been used
        self.remote_requests = Counter()  # requests sent to the source, repeats included
        self.remote_bytes = Counter()  # payload bytes received from the source
        self.remote_errors = Counter()  # requests that failed, repeats included
        self.retries = Counter()  # requests that were repeats of a failed one
        self.throttled = Counter()  # requests the source was too busy for: 503, 429, silence, refused
        self.evictions = Counter()  # cache entries removed to keep the limits
        self.not_admitted = Counter()  # objects and chunks served without being kept, for what is kept
        self.compressed = Counter()  # objects that were kept compressed
        self.compressed_saved = Counter()  # bytes of disk blocks they took less
        self.cache_errors = Counter()  # cache operations that failed and were bypassed
        self.corrupt_entries = Counter()  # cache entries whose checksum did not match
        self.stale_served = Counter()  # listings served past their ttl, the source being down

        self._counters = {name: c for name, c in vars(self).items() if isinstance(c, Counter)}
        self._told = [0] * len(self._counters)
        self._telling = threading.Lock()

    def snapshot(self) -> dict[str, int]:
        """All counters by name."""
        return {name: counter.value for name, counter in self._counters.items()}

    def growth(self) -> tuple[int, ...]:
        """By what each counter has grown since the last call: for the add_growth() of another process."""
        with self._telling:
            before, self._told = self._told, [counter.value for counter in self._counters.values()]
            return tuple(now - then for now, then in zip(self._told, before, strict=True))

    def add_growth(self, grown: tuple[int, ...]) -> None:
        for counter, amount in zip(self._counters.values(), grown, strict=True):
            if amount:
                counter.add(amount)
