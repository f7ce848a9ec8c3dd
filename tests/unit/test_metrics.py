"""Counters of one process, told to another: nothing is told twice, and nothing is forgotten."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import hypothesis.strategies as st
from hypothesis import given

from gpufs.metrics import Metrics

NAMES = sorted(Metrics().snapshot())


@given(st.lists(st.none() | st.tuples(st.sampled_from(NAMES), st.integers(0, 2**40)), max_size=50))
def test_all_that_was_counted_arrives_once_whenever_it_is_told(steps: list[tuple[str, int] | None]) -> None:
    here, there = Metrics(), Metrics()
    there.opens.add(7)
    for step in steps:
        if step is None:
            there.add_growth(here.growth())
        else:
            getattr(here, step[0]).add(step[1])
    there.add_growth(here.growth())
    expected = here.snapshot()
    expected["opens"] += 7
    assert there.snapshot() == expected
    assert not any(here.growth())


def test_growth_told_by_several_threads_adds_up() -> None:
    here, there = Metrics(), Metrics()

    def work(_: int) -> None:
        here.remote_requests.add()
        there.add_growth(here.growth())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(2000)))
    there.add_growth(here.growth())
    assert there.remote_requests.value == here.remote_requests.value == 2000
