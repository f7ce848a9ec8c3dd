"""What has failed several times is left alone, looked at now and then, and used again when it works."""

from __future__ import annotations

from gpufs.shared.breaker import FAILURES, Breaker


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def opened() -> tuple[Breaker, Clock]:
    clock = Clock()
    breaker = Breaker(clock)
    assert [breaker.failed() for _ in range(FAILURES)] == [False] * (FAILURES - 1) + [True]
    return breaker, clock


def test_it_opens_after_failures_in_a_row() -> None:
    breaker = Breaker(Clock())
    for _ in range(3):
        for _ in range(FAILURES - 1):
            breaker.failed()
        breaker.succeeded()
    assert breaker.closed
    assert not opened()[0].closed


def test_one_failure_is_enough_when_it_is_said_so() -> None:
    breaker = Breaker(Clock())
    assert breaker.failed(at_once=True) and not breaker.closed
    assert not breaker.failed(at_once=True)  # said once


def test_one_probe_at_a_time_and_each_pause_is_longer() -> None:
    breaker, clock = opened()
    pauses = []
    for _ in range(8):
        begin = clock.now
        while not breaker.probe():
            clock.now += 0.25
        pauses.append(clock.now - begin)
        assert not breaker.probe()
        breaker.failed()
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_probe_that_succeeds_closes_it() -> None:
    breaker, clock = opened()
    clock.now += 1
    assert breaker.probe() and breaker.succeeded() and breaker.closed


def test_what_was_sent_before_it_opened_changes_nothing() -> None:
    breaker, clock = opened()
    assert not breaker.succeeded() and not breaker.closed
    assert not breaker.failed()
    clock.now += 1
    assert breaker.probe()
