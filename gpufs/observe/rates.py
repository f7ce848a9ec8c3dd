"""What happened between two moments: everything that `gpufs top` and the dashboard show."""

from __future__ import annotations

from dataclasses import dataclass

from gpufs.metrics import Times
from gpufs.observe.figures import Figures, Process


class Interval:
    """From `before` to `now`, two moments of one mount."""

    def __init__(self, before: Figures, now: Figures) -> None:
        self.before = before
        self.now = now
        self.seconds = max(now.when - before.when, 1e-3)
        self._anew = before.started != now.started  # a daemon that has begun in between counts from zero

    def count(self, name: str) -> int:
        """By how much a counter has grown."""
        return self.now.counters[name] - (0 if self._anew else self.before.counters[name])

    def rate(self, name: str) -> float:
        return self.count(name) / self.seconds

    def times(self, name: str) -> Times:
        times = self.now.times[name]
        return times if self._anew else times - self.before.times[name]

    def waiting(self, name: str) -> float:
        """How many readers have waited for this (`miss_wait` or `listing_wait`), on average.

        A wait is counted when it ends.
        """
        return self.times(name).seconds / self.seconds

    def stalled(self, process: Process) -> float:
        """How many of its threads have waited, on average; 1.0 is one all the time."""
        before = 0.0
        if not self._anew:
            key = process.pid, process.command
            same = [each for each in self.before.processes if (each.pid, each.command) == key]
            before = sum(each.seconds + each.names_seconds for each in same)
        return max(0.0, process.seconds + process.names_seconds - before) / self.seconds


@dataclass(frozen=True, slots=True)
class Stall:
    """A process that has waited; `now`: how many of its threads lately, on average."""

    pid: int
    command: str
    now: float
    seconds: float
    names_seconds: float
    waits: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Rates are a second, times in seconds; None where nothing has happened to tell it from.

    Shares are of all opens: `kernel_share`, `fast_path_share` and `filesystem_share` add up to `hit_ratio`.
    """

    opens: float
    hit_ratio: float | None
    kernel_share: float | None
    fast_path_share: float | None
    filesystem_share: float | None
    served_bytes: float
    lookups: float
    listings: float
    misses: float
    miss_p50: float | None
    miss_p95: float | None
    miss_p99: float | None
    waiting: float
    names_waiting: float
    remote_bytes: float
    requests: float
    fetch_p50: float | None
    errors: float
    retries: float
    throttled: float
    evictions: float
    not_admitted: float
    prefetched: float
    prefetched_used: float
    prefetched_wasted: float
    shared_hits: float
    shared_misses: float
    prefetch_value: float | None  # of those whose fate is known, the used ones, since the daemon began
    stalls: list[Stall]


def summary(interval: Interval) -> Summary:
    opens, hits = interval.count("opens"), interval.count("hits")
    kernel, fast_path = interval.count("passthrough_opens"), interval.count("fast_path_opens")
    missed, fetched = interval.times("miss_wait"), interval.times("fetch_time")
    used, wasted = (interval.now.counters[f"prefetched_{fate}"] for fate in ("used", "wasted"))

    def share(count: int, total: int = opens) -> float | None:
        return count / total if total else None

    def quantile(times: Times, at: float) -> float | None:
        return times.quantile(at) if times.count else None

    return Summary(
        opens=interval.rate("opens"),
        hit_ratio=share(hits),
        kernel_share=share(kernel),
        fast_path_share=share(fast_path),
        filesystem_share=share(hits - kernel - fast_path),
        served_bytes=interval.rate("served_bytes"),
        lookups=interval.rate("lookups"),
        listings=interval.rate("listings"),
        misses=interval.rate("misses"),
        miss_p50=quantile(missed, 0.5),
        miss_p95=quantile(missed, 0.95),
        miss_p99=quantile(missed, 0.99),
        waiting=interval.waiting("miss_wait"),
        names_waiting=interval.waiting("listing_wait"),
        remote_bytes=interval.rate("remote_bytes"),
        requests=interval.rate("remote_requests"),
        fetch_p50=quantile(fetched, 0.5),
        errors=interval.rate("remote_errors"),
        retries=interval.rate("retries"),
        throttled=interval.rate("throttled"),
        evictions=interval.rate("evictions"),
        not_admitted=interval.rate("not_admitted"),
        prefetched=interval.rate("prefetched"),
        prefetched_used=interval.rate("prefetched_used"),
        prefetched_wasted=interval.rate("prefetched_wasted"),
        shared_hits=interval.rate("shared_hits"),
        shared_misses=interval.rate("shared_misses"),
        prefetch_value=share(used, used + wasted),
        stalls=[
            Stall(
                process.pid,
                process.command,
                interval.stalled(process),
                process.seconds,
                process.names_seconds,
                process.waits,
            )
            for process in interval.now.processes
        ],
    )
