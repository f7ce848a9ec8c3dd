"""The retry policy: what is repeated, how long, and what the caller is told in the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpufs.errors import AccessDenied, DeadlineExceeded, NotFound, RemoteFailed
from gpufs.metrics import Metrics
from gpufs.source.retry import Retry, Transient


class Bench:
    """A Retry on a clock that only sleeping (and `cost` per attempt) moves; jitter is always the whole."""

    def __init__(self, cost: float = 0.0, jitter: float = 1.0) -> None:
        self.now = 0.0
        self.cost = cost
        self.waits: list[float] = []
        self.lefts: list[float] = []
        self.metrics = Metrics()
        self.retry = Retry(
            self.metrics, deadline=60.0, clock=lambda: self.now, sleep=self._sleep, jitter=lambda: jitter
        )

    def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def failing(self, times: int, error: Callable[[], Exception]) -> Callable[[float], str]:
        """An attempt that fails `times` times, then succeeds."""

        def attempt(left: float) -> str:
            self.lefts.append(left)
            self.now += min(self.cost, left)
            if len(self.lefts) <= times:
                raise error()
            return "done"

        return attempt


def test_transient_failures_are_repeated_and_counted() -> None:
    bench = Bench()
    assert bench.retry.run("x", bench.failing(3, lambda: Transient("503"))) == "done"
    counted = bench.metrics.snapshot()
    assert (counted["remote_requests"], counted["remote_errors"], counted["retries"]) == (4, 3, 3)


def test_waits_double_up_to_the_cap() -> None:
    bench = Bench()
    bench.retry.run("x", bench.failing(9, lambda: Transient("503")))
    assert bench.waits == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])


def test_jitter_covers_the_whole_wait() -> None:
    bench = Bench(jitter=0.0)
    bench.retry.run("x", bench.failing(3, lambda: Transient("503")))
    assert bench.waits == [0.0, 0.0, 0.0]


def test_an_attempt_is_told_what_is_left() -> None:
    bench = Bench(cost=10.0)
    bench.retry.run("x", bench.failing(2, lambda: Transient("stalled")))
    assert bench.lefts == pytest.approx([60.0, 49.95, 39.85])


@pytest.mark.parametrize(("timed_out", "kind"), [(True, DeadlineExceeded), (False, RemoteFailed)])
def test_the_last_failure_decides_the_error(timed_out: bool, kind: type[Exception]) -> None:
    bench = Bench(cost=7.0)
    with pytest.raises(kind, match=r"^reading k: why \(gave up after 7 tries in 50\.0 s\)$"):
        bench.retry.run(
            "reading k",
            bench.failing(99, lambda: Transient("why", timed_out=timed_out)),
            deadline=50.0,
        )
    assert bench.now == pytest.approx(50.0)


def test_an_attempt_is_never_started_that_could_not_end_in_time() -> None:
    bench = Bench(jitter=0.0, cost=1.0)
    with pytest.raises(RemoteFailed):
        bench.retry.run("x", bench.failing(99, lambda: Transient("503")), deadline=5.2)
    assert min(bench.lefts) == pytest.approx(1.2)


def test_what_was_spent_on_a_first_attempt_is_a_part_of_the_deadline() -> None:
    bench = Bench(cost=1.0)
    with pytest.raises(RemoteFailed, match=r"gave up after 7 tries in 5\d\.\d s"):
        bench.retry.run("x", bench.failing(99, lambda: Transient("503")), spent=50.0)
    assert bench.now <= 10.0
    assert bench.waits[:3] == pytest.approx([0.05, 0.1, 0.2]), "the first attempt here is a second one"
    counted = bench.metrics
    assert (counted.remote_requests.value, counted.retries.value, counted.remote_errors.value) == (6, 6, 6)


@pytest.mark.parametrize("spent", [59.9, 60.0, 61.0, 300.0])
def test_with_all_spent_there_is_one_short_attempt_which_says_what_is_wrong(spent: float) -> None:
    bench = Bench(cost=1.0)
    with pytest.raises(DeadlineExceeded, match="silent"):
        bench.retry.run("x", bench.failing(99, lambda: Transient("silent", timed_out=True)), spent=spent)
    assert bench.lefts == pytest.approx([0.3])


def test_a_final_error_is_not_repeated() -> None:
    bench = Bench()
    with pytest.raises(AccessDenied, match="no"):
        bench.retry.run("x", bench.failing(1, lambda: AccessDenied("no")))
    assert bench.lefts == [60.0]
    assert bench.metrics.remote_errors.value == 1


def test_not_found_is_an_answer_and_no_error() -> None:
    bench = Bench()
    with pytest.raises(NotFound):
        bench.retry.run("x", bench.failing(1, lambda: NotFound("gone")))
    assert bench.metrics.remote_errors.value == 0


def test_a_repaired_error_is_repeated_at_once() -> None:
    bench = Bench()
    repaired: list[Exception] = []

    def repair(error: Exception) -> bool:
        repaired.append(error)
        return True

    assert bench.retry.run("x", bench.failing(1, lambda: AccessDenied("expired")), repair=repair) == "done"
    assert len(repaired) == 1
    assert bench.waits == []


def test_a_repair_that_does_not_help_ends() -> None:
    bench = Bench()
    with pytest.raises(AccessDenied):
        bench.retry.run("x", bench.failing(99, lambda: AccessDenied("expired")), repair=lambda _: True)
    assert len(bench.lefts) == 3


def test_foreign_exceptions_are_not_swallowed() -> None:
    bench = Bench()
    with pytest.raises(ZeroDivisionError):
        bench.retry.run("x", bench.failing(1, ZeroDivisionError))
