"""What limits the readers of a mount now, and what to try."""

from __future__ import annotations

from dataclasses import dataclass

from gpufs.observe.rates import Interval

# Readers that wait, on average. A training job has a few readers; with less than a tenth of one waiting, 99%
# of the time of ten of them goes into something else.
WAITING = 0.1
# Names asked for a second, and for each open. One process answers about 20,000 a second; an open takes a
# lookup for each part of the path that the kernel has forgotten.
LOOKUPS, LOOKUPS_PER_OPEN = 3000, 5
# Of the misses, how many brought something that was not kept, or evicted something. In a first epoch that is
# none, and with half of the data set cached all.
DISPLACING = 0.5
FULL = 0.9  # of the cache's limit; it stays a little below by itself
NEAR = 0.8  # of the bandwidth limit
# A request that takes so many times as long as the way there and back has waited for its turn at the server
# or on the link; what comes alone takes about once as long.
QUEUED = 3.0
LEAST_DISTANCE = 0.001  # seconds; shorter ways there and back are not told from the server's own time
BUSY = 0.01  # of the requests, refused because the source was too busy


@dataclass(frozen=True, slots=True)
class Verdict:
    """`what`: nothing, the source fails, metadata, cache too small, remote bandwidth or remote latency."""

    what: str
    why: str
    advice: str


def limit_of(interval: Interval) -> Verdict:
    """The first of these that holds; see the constants."""
    if interval.now.source_error is not None:
        return Verdict(
            "the source fails", interval.now.source_error, "only what is cached can be read; see gpufs status"
        )
    for_bytes, for_names = _waiting(interval, "miss_wait"), _waiting(interval, "listing_wait")
    if for_names >= WAITING and for_names > for_bytes:
        return Verdict(
            "metadata",
            f"{for_names:.1f} readers wait for directories to be listed",
            "metadata_ttl=forever if the data never change; index_from, or one `ls -R` before the job",
        )
    lookups = interval.rate("lookups")
    if for_bytes < WAITING:
        if lookups >= LOOKUPS and lookups >= LOOKUPS_PER_OPEN * interval.rate("opens"):
            return Verdict(
                "metadata",
                f"{lookups:,.0f} names a second are asked for, and few files opened",
                "os.scandir in place of stat for each file; a list of the files that is kept",
            )
        return Verdict("nothing", "readers find nearly everything here", "")
    return _of_bytes(interval, for_bytes)


def _waiting(interval: Interval, name: str) -> float:
    """Waits are counted when they end; so who waits all the time is looked at too."""
    waiting = interval.waiting(name)
    if name == "miss_wait" and not interval.times(name).count:
        waiting = min(interval.before.gauges["readers_waiting"], interval.now.gauges["readers_waiting"])
        waiting = max(waiting - interval.waiting("listing_wait"), 0.0)  # the gauge has both
    return waiting


def _of_bytes(interval: Interval, waiting: float) -> Verdict:
    gauges = interval.now.gauges
    displaced = interval.count("evictions") + interval.count("not_admitted")
    if (
        interval.count("misses")
        and displaced >= DISPLACING * interval.count("misses")
        and gauges["cache_bytes"] >= FULL * gauges["cache_limit_bytes"]
        and gauges["tree_bytes"] > gauges["cache_limit_bytes"]
    ):
        share = gauges["cache_limit_bytes"] / gauges["tree_bytes"]
        return Verdict(
            "cache too small",
            f"it has room for {100 * share:.0f}% of the files, and {waiting:.1f} readers wait for the rest",
            "a larger cache_size; compress=auto for text; a job that reads less of the data set",
        )
    if interval.count("throttled") > BUSY * interval.count("remote_requests"):
        return Verdict(
            "remote bandwidth",
            f"the source is too busy: it refused {interval.rate('throttled'):.1f} requests a second",
            "ask the provider for more; gpufs warm before the job; data spread over more prefixes",
        )
    rate, limit = interval.rate("remote_bytes"), gauges["bandwidth_limit_bytes"]
    if limit and rate >= NEAR * limit:
        return Verdict(
            "remote bandwidth",
            f"bandwidth_limit is reached, and {waiting:.1f} readers wait",
            "a higher bandwidth_limit; gpufs warm before the job",
        )
    took, distance = interval.times("fetch_time").quantile(0.5), _distance(interval)
    if took > QUEUED * distance:
        return Verdict(
            "remote bandwidth",
            f"link or server give no more than {rate / 1e6:,.1f} MB/s: an object takes {_ms(took)}, "
            f"the way there and back {_ms(distance)}",
            "gpufs warm before the job; a faster link or server; smaller or compressed data",
        )
    if not (rate or interval.times("fetch_time").count or interval.times("miss_wait").count):
        return Verdict(
            "remote latency",
            f"{waiting:.1f} readers wait, and nothing came from the source for {interval.seconds:,.0f} s",
            "gpufs status and gpufs doctor, which tell whether the source answers at all",
        )
    return Verdict(
        "remote latency",
        f"{waiting:.1f} readers wait {_ms(interval.times('miss_wait').quantile(0.5))} for each miss",
        "more readers (num_workers); an announced order (gpufs.hints); gpufs warm before the job",
    )


def _distance(interval: Interval) -> float:
    """Seconds to the source and back: of the request that was answered soonest since the daemon began.

    When the link is full all the time, answers begin late too; but the first request, which comes before any
    reader's, met nobody else.
    """
    times = interval.now.times
    seen = times["answer_time"] if times["answer_time"].count else times["fetch_time"]
    return max(seen.quantile(0.0), LEAST_DISTANCE)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"
