"""How much is asked of an endpoint at once: what it bears, and what is of use."""

from __future__ import annotations

import threading

from gpufs.fetch.concurrency import HOLD, LEAST, MOST, MOST_SCALE, STEP, Concurrency

ROUND = 0.02  # seconds that a request takes


class World:
    """Requests that all take ROUND. The endpoint complains about what is beyond `bears`."""

    def __init__(self, bears: int = MOST) -> None:
        self.now = 100.0
        self.troubles = 0
        self.bears = bears
        self.concurrency = Concurrency(self._count, lambda: self.now)

    def _count(self) -> None:
        self.troubles += 1

    def round(self, wanted: int = MOST) -> int:
        """As many requests as may be, at once; the number of those that succeed."""
        concurrency = self.concurrency
        sent = [concurrency.began() for _ in range(min(wanted, concurrency.ceiling))]
        self.now += ROUND
        for number, began in enumerate(sent):
            refused = number >= self.bears
            if refused:
                concurrency.trouble(began)
            concurrency.ended(began, 1000, succeeded=not refused)
        return min(len(sent), self.bears)


def test_many_complaints_of_one_round_trip_halve_it_once() -> None:
    world = World(bears=100)
    world.round(200)
    assert world.troubles == 100
    assert world.concurrency.ceiling == 100


def test_it_never_gets_too_small_to_go_on() -> None:
    world = World(bears=0)
    for _ in range(20):
        world.round()
    assert world.concurrency.ceiling == LEAST


def test_each_window_of_successes_adds_one() -> None:
    world = World(bears=64)
    while world.concurrency.ceiling > 32:
        world.round()
    before = world.concurrency.ceiling
    world.round()
    world.round()
    assert world.concurrency.ceiling == before + 2


def test_successes_of_few_say_nothing_of_more() -> None:
    world = World(bears=64)
    world.round()
    before = world.concurrency.ceiling
    for _ in range(50):
        world.round(4)
    assert world.concurrency.ceiling <= before + 1


def test_what_the_endpoint_bears_is_found_and_rarely_exceeded() -> None:
    world = World(bears=16)
    for _ in range(100):
        world.round()
    world.troubles = 0
    rounds = 2000
    succeeded = sum(world.round() for _ in range(rounds))
    assert succeeded > 0.85 * 16 * rounds
    assert world.troubles < 0.005 * succeeded


def test_an_endpoint_that_has_recovered_gets_all_again() -> None:
    world = World(bears=8)
    world.round()
    world.bears = MOST
    world.now += HOLD + 1
    for _ in range(2 * MOST):
        world.round()
    assert world.concurrency.ceiling == MOST


def test_no_more_than_the_ceiling_is_repeated_at_once() -> None:
    world = World(bears=0)
    for _ in range(20):
        world.round()
    concurrency = world.concurrency
    assert concurrency.ceiling == LEAST
    inside = threading.Semaphore(0)
    go_on = threading.Event()
    most = now = 0
    lock = threading.Lock()

    def repeat() -> None:
        nonlocal most, now
        with concurrency.repeat(30):
            with lock:
                now += 1
                most = max(most, now)
            inside.release()
            assert go_on.wait(30)
            with lock:
                now -= 1

    threads = [threading.Thread(target=repeat) for _ in range(3 * LEAST)]
    for thread in threads:
        thread.start()
    for _ in range(LEAST):
        assert inside.acquire(timeout=30)
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert most == LEAST


def test_a_repeat_does_not_wait_longer_than_it_may() -> None:
    world = World()
    world.concurrency._repeating = MOST
    with world.concurrency.repeat(0.0):
        pass


def drive(world: World, seconds: float, throughput: float, *, limited: bool = True) -> None:
    """Requests one after the other, `throughput` of them a second at scale 1 or as a function of it."""
    concurrency = world.concurrency
    end = world.now + seconds
    while world.now < end:
        if limited:
            concurrency.scale_limits()
        began = concurrency.began()
        world.now += 1 / (throughput * (concurrency.scale if throughput < 1000 else 1))
        concurrency.ended(began, 1000, succeeded=True)


def test_more_is_sent_in_advance_as_long_as_that_brings_more() -> None:
    world = World()
    drive(world, 30, 200)
    assert world.concurrency.scale == MOST_SCALE


def test_what_brings_only_latency_is_taken_back() -> None:
    world = World()
    scales = set()
    for _ in range(100):
        drive(world, 0.1, 1000)
        scales.add(world.concurrency.scale)
    assert scales == {1.0, STEP}, "it was tried"
    assert world.concurrency.scale == 1.0


def test_nothing_is_tried_when_there_is_no_more_to_do() -> None:
    world = World()
    drive(world, 30, 200, limited=False)
    assert world.concurrency.scale == 1.0
