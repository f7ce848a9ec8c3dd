"""What limits the readers, from figures made up; tests/mount/test_limit.py has real situations."""

from __future__ import annotations

from typing import Any

import pytest

from gpufs.observe.limit import limit_of
from gpufs.observe.rates import Interval
from tests.unit.observe.helpers import figures

GB = 1 << 30
ROOMY = {"cache_limit_bytes": 100 * GB, "cache_bytes": GB, "tree_bytes": 50 * GB}
FULL = {"cache_limit_bytes": 100 * GB, "cache_bytes": 99 * GB, "tree_bytes": 200 * GB}
NEAR_BY = [0.002] * 100  # answers that began after so long
FAR_AWAY = [0.05] * 100


def verdict(
    counters: dict[str, int] | None = None,
    times: dict[str, list[float]] | None = None,
    gauges: dict[str, float] | None = None,
    distance: list[float] = NEAR_BY,
    **about: Any,
) -> str:
    """Of one second."""
    before = figures(1000.0, gauges=ROOMY | (gauges or {}), times={"answer_time": distance})
    now = figures(
        1001.0,
        counters=counters,
        gauges=ROOMY | (gauges or {}),
        times={"answer_time": distance} | (times or {}),
        **about,
    )
    found = limit_of(Interval(before, now))
    assert found.why and (found.advice or found.what == "nothing")
    return found.what


def test_an_idle_mount_is_limited_by_nothing() -> None:
    assert verdict() == "nothing"


def test_readers_that_find_all_here_are_limited_by_nothing() -> None:
    assert verdict({"opens": 20_000, "hits": 20_000, "lookups": 25_000}) == "nothing"


def test_few_misses_among_many_hits_limit_nobody() -> None:
    counters = {"opens": 5000, "hits": 4999, "misses": 1, "lookups": 5000}
    assert verdict(counters, {"miss_wait": [0.05], "fetch_time": [0.05]}, distance=FAR_AWAY) == "nothing"


def test_one_reader_of_a_source_that_is_far_away_waits_for_the_distance() -> None:
    counters = {"opens": 18, "misses": 18, "remote_requests": 18, "remote_bytes": 18 * 100_000}
    times = {"miss_wait": [0.054] * 18, "fetch_time": [0.053] * 18}
    assert verdict(counters, times, distance=FAR_AWAY) == "remote latency"


def test_of_a_source_that_says_nothing_no_latency_is_told() -> None:
    gauges = ROOMY | {"readers_waiting": 3.0}
    found = limit_of(Interval(figures(1000.0, gauges=gauges), figures(1005.0, gauges=gauges)))
    assert found.why == "3.0 readers wait, and nothing came from the source for 5 s"
    assert "gpufs doctor" in found.advice


def test_objects_that_take_much_longer_than_the_way_there_and_back_have_queued_for_the_link() -> None:
    counters = {"opens": 40, "misses": 40, "remote_requests": 40, "remote_bytes": 40 << 20}
    times = {"miss_wait": [0.2] * 40, "fetch_time": [0.2] * 40}
    assert verdict(counters, times, distance=FAR_AWAY) == "remote bandwidth"
    assert verdict(counters, times, distance=NEAR_BY) == "remote bandwidth"


def test_the_bandwidth_limit_is_a_limit() -> None:
    counters = {"opens": 10, "misses": 10, "remote_requests": 10, "remote_bytes": 9_000_000}
    times = {"miss_wait": [0.06] * 10, "fetch_time": [0.055] * 10}
    assert verdict(counters, times, {"bandwidth_limit_bytes": 1e7}, FAR_AWAY) == "remote bandwidth"
    assert verdict(counters, times, {"bandwidth_limit_bytes": 1e8}, FAR_AWAY) == "remote latency"


def test_a_source_that_refuses_gives_no_more() -> None:
    counters = {"opens": 10, "misses": 10, "remote_requests": 20, "throttled": 5}
    times = {"miss_wait": [0.06] * 10, "fetch_time": [0.055] * 10}
    assert verdict(counters, times, distance=FAR_AWAY) == "remote bandwidth"


@pytest.mark.parametrize("displaced", ["evictions", "not_admitted"])
def test_a_full_cache_that_displaces_what_it_will_need_is_too_small(displaced: str) -> None:
    counters = {"opens": 100, "hits": 50, "misses": 50, displaced: 50}
    times = {"miss_wait": [0.05] * 50, "fetch_time": [0.05] * 50}
    assert verdict(counters, times, FULL, FAR_AWAY) == "cache too small"
    # Room is made for another data set, which will be cached as a whole: that is no limit.
    fits = FULL | {"tree_bytes": 50 * GB}
    assert verdict(counters, times, fits, FAR_AWAY) == "remote latency"
    assert verdict(counters | {displaced: 1}, times, FULL, FAR_AWAY) == "remote latency"


def test_readers_that_wait_for_listings_are_limited_by_metadata() -> None:
    times = {"listing_wait": [0.05] * 15, "miss_wait": [0.05] * 2, "fetch_time": [0.05] * 2}
    assert verdict({"opens": 2, "misses": 2}, times, distance=FAR_AWAY) == "metadata"


def test_a_storm_of_stats_is_limited_by_metadata() -> None:
    assert verdict({"lookups": 12_000, "opens": 10, "hits": 10}) == "metadata"


def test_who_waits_for_an_answer_that_has_not_come_yet_waits_too() -> None:
    assert verdict(gauges={"readers_waiting": 4.0}) == "remote latency"


def test_who_waits_for_names_does_not_wait_for_bytes() -> None:
    times = {"listing_wait": [0.2] * 19}
    assert verdict(times=times, gauges={"readers_waiting": 4.0}) == "metadata"


def test_a_source_that_fails_is_said_before_all_else() -> None:
    assert verdict({"lookups": 12_000}, source_error="no route to host") == "the source fails"


def test_without_small_requests_the_distance_is_that_of_the_fastest_fetches() -> None:
    counters = {"opens": 40, "misses": 40}
    times = {"miss_wait": [0.06] * 40, "fetch_time": [0.055] * 40}
    assert verdict(counters, times, distance=[]) == "remote latency"
