"""What may be sent when: readers first, the rest so far as that does not slow them; the bandwidth limit."""

from __future__ import annotations

import math

import pytest

from gpufs.fetch.bandwidth import SAVED
from gpufs.fetch.courtesy import LEARNED, LEAST, SILENCE
from gpufs.fetch.page import FETCH, FILESYSTEM, Own, SharedPage
from gpufs.fetch.traffic import (
    ADVANCE_BYTES,
    ADVANCE_REQUESTS,
    MOST_ADVANCE_BYTES,
    READERS_BYTES,
    Importance,
    Sent,
    Traffic,
)
from gpufs.metrics import Metrics

MIB = 1 << 20
USUAL = 0.03  # seconds that a reader's request takes when nothing else is on its way


class World:
    """Both processes of a mount, and a link that passes on `rate` bytes a second, in one queue."""

    def __init__(self, limit: int | None = None, rate: float = 50e6) -> None:
        self.now = 1000.0
        self.rate = rate
        self.page = SharedPage()
        self.small, self.large = (
            Traffic(self.page, process, limit, Metrics(), lambda: self.now) for process in (FETCH, FILESYSTEM)
        )

    def read(self, traffic: Traffic, seconds: float, size: int = 100_000) -> None:
        """A reader's request that takes so long."""
        sent = traffic.began(Importance.DEMAND, size)
        self.now += seconds
        sent.took = seconds
        traffic.ended(sent, succeeded=True)

    def fill_up(
        self, traffic: Traffic, size: int = 100_000, kind: Importance = Importance.WARM
    ) -> list[Sent]:
        sent = []
        while traffic.wait(kind) <= 0:
            sent.append(traffic.began(kind, size))
        return sent


@pytest.fixture
def world() -> World:
    return World()


def test_in_advance_only_so_many_are_on_their_way_and_so_many_bytes(world: World) -> None:
    assert len(world.fill_up(world.small, 1000)) == ADVANCE_REQUESTS
    assert sum(sent.size for sent in world.fill_up(world.large, 4 * MIB)) == ADVANCE_BYTES
    assert ADVANCE_BYTES * 8 == MOST_ADVANCE_BYTES


def test_the_bytes_in_advance_are_bounded_at_the_largest_scale(world: World) -> None:
    world.small.concurrency.scale = 8.0
    assert sum(sent.size for sent in world.fill_up(world.small, 4 * MIB)) == MOST_ADVANCE_BYTES


def test_readers_do_not_wait_for_what_is_in_advance(world: World) -> None:
    world.fill_up(world.small)
    assert world.small.wait(Importance.DEMAND) == 0


def test_the_bytes_of_readers_are_bounded(world: World) -> None:
    sent = world.fill_up(world.small, 4 * MIB, Importance.DEMAND)
    assert sum(each.size for each in sent) == READERS_BYTES
    world.small.ended(sent[0], succeeded=True)
    assert world.small.wait(Importance.DEMAND) == 0


def test_readers_wait_when_the_endpoint_bears_no_more(world: World) -> None:
    sent = [world.small.began(Importance.DEMAND, 1000) for _ in range(20)]
    world.small.concurrency.trouble(world.now)
    for each in sent[:10]:
        assert world.small.wait(Importance.DEMAND) == math.inf
        world.small.ended(each, succeeded=True)
    world.small.ended(sent[10], succeeded=True)
    assert world.small.wait(Importance.DEMAND) == 0


@pytest.mark.parametrize("reader_here", [True, False])
def test_while_somebody_reads_there_is_a_window_in_both_processes(world: World, reader_here: bool) -> None:
    reader = (world.small if reader_here else world.large).began(Importance.DEMAND, 1000)
    assert len(world.fill_up(world.small, LEAST // 4)) == 4
    assert 0 < world.large.wait(Importance.WARM) < 1, "the window is for both together"
    (world.small if reader_here else world.large).ended(reader, succeeded=True)
    assert world.small.wait(Importance.WARM) > 0, "the reader is expected to go on"
    world.now += SILENCE + 0.01
    assert world.small.wait(Importance.WARM) == 0


def test_a_fill_heeds_only_readers_that_it_does_not_serve(world: World) -> None:
    world.small.began(Importance.DEMAND, 1000, outside=False)
    assert len(world.fill_up(world.small, 1000, Importance.FILL)) == ADVANCE_REQUESTS - 1
    world.large.began(Importance.DEMAND, 1000)
    assert world.small.piece(4 * MIB, 1000) < 4 * MIB


def learn(world: World) -> None:
    for _ in range(LEARNED):
        world.read(world.small, USUAL)


def window(world: World) -> int:
    size = world.small._courtesy.window(of_fill=False)
    assert size is not None
    return size


def test_the_window_follows_the_time_that_readers_wait(world: World) -> None:
    """The link's queue holds what is in advance beyond 20 ms; the window ends where a reader waits for a
    quarter longer than usual."""
    learn(world)
    ratios = []
    for _ in range(200):
        advance = world.fill_up(world.small)
        queue = max(0.0, sum(sent.size for sent in advance) / world.rate - 0.02)
        world.read(world.small, USUAL + queue)
        ratios.append((USUAL + queue) / USUAL)
        for sent in advance:
            world.small.ended(sent, succeeded=True)
    late = ratios[100:]
    assert 1.05 < sum(late) / len(late) < 1.35
    assert max(late) < 1.5


def test_the_window_of_a_slow_link_shrinks_to_the_least_and_no_further(world: World) -> None:
    learn(world)
    advance = world.fill_up(world.small, 4 * MIB)
    for _ in range(50):
        world.read(world.small, 10 * USUAL)
    assert window(world) == LEAST
    for sent in advance:
        world.small.ended(sent, succeeded=True)
    assert world.small.wait(Importance.WARM) == 0, "one is always on its way"


def test_a_link_that_has_become_slow_by_itself_is_the_new_measure(world: World) -> None:
    learn(world)
    for _ in range(60):
        world.read(world.small, 3 * USUAL)
    for _ in range(40):
        advance = world.fill_up(world.small)
        world.read(world.small, 3 * USUAL)
        for sent in advance:
            world.small.ended(sent, succeeded=True)
    assert window(world) > 2 * LEAST


def test_large_requests_are_cut_into_pieces_while_somebody_reads(world: World) -> None:
    assert world.large.piece(4 * MIB, 1000) == 4 * MIB
    world.small.began(Importance.DEMAND, 1000)
    assert world.large.piece(4 * MIB, 1000) == LEAST // 8
    assert world.large.piece(4 * MIB, LEAST) == LEAST
    assert world.large.piece(1000, LEAST) == 1000


def test_a_process_that_is_started_anew_forgets_what_the_old_one_had_on_its_way(world: World) -> None:
    world.small.began(Importance.DEMAND, 1000)
    world.small.began(Importance.WARM, 1000)
    Traffic(world.page, FETCH, None, Metrics(), lambda: world.now)
    assert not any(world.page.total(field) for field in (Own.READERS, Own.ADVANCE_BYTES, Own.BYTES))


def send_all(world: World, seconds: float, size: int) -> int:
    """Both processes send whatever they may; the bytes."""
    sent = 0
    end = world.now + seconds
    while world.now < end:
        for traffic, kind in ((world.small, Importance.WARM), (world.large, Importance.DEMAND)):
            while traffic.wait(kind) <= 0:
                traffic.ended(traffic.began(kind, size), succeeded=True)
                sent += size
        world.now += 0.001
    return sent


@pytest.mark.parametrize("size", [1000, 100_000, 4 * MIB])
def test_both_processes_together_keep_the_bandwidth_limit(size: int) -> None:
    """Also when a request is larger than what may come in a second."""
    limit = 2_000_000
    sent = send_all(World(limit), 60, size)
    assert 0.95 * limit * 60 <= sent <= 1.05 * limit * 60 + size


def test_nothing_is_saved_up_for_later_under_a_bandwidth_limit() -> None:
    world = World(1_000_000)
    world.now += 100
    assert send_all(world, 1, 100_000) <= 1_200_000


def test_readers_are_the_first_under_a_bandwidth_limit() -> None:
    world = World(1_000_000)
    world.small.ended(world.small.began(Importance.WARM, 500_000), succeeded=True)
    assert world.large.wait(Importance.DEMAND) == pytest.approx(0.5 - SAVED)
    world.large.readers_wait(1)
    world.now += 0.6
    assert world.small.wait(Importance.WARM) > 0, "a reader of the other process waits"
    assert world.large.wait(Importance.DEMAND) == 0
    world.large.readers_wait(0)
    world.now += SILENCE
    assert world.small.wait(Importance.WARM) == 0
