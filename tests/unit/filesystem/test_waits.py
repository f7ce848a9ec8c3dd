"""Who waits for what is not here: seconds by process, exact, bounded, and named outside of requests."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import trio
import trio.testing

from gpufs.fetch.workers import Workers
from gpufs.filesystem.waits import MOST_WAITERS, Waiter, Waits, What, processes_of
from gpufs.metrics import Metrics


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.metrics = Metrics()
        self.waits = Waits(self.metrics, lambda: self.now)

    def wait(self, tid: int, seconds: float, what: What = What.BYTES) -> None:
        with self.waits.of(tid, what):
            self.now += seconds


@pytest.fixture
def world() -> Iterator[World]:
    yield World()


def test_waits_add_up_by_thread_and_by_what_was_waited_for(world: World) -> None:
    world.wait(7, 1.0)
    world.wait(7, 0.5)
    world.wait(8, 0.25, What.NAMES)
    assert world.waits.shown() == [Waiter(7, "?", 1.5, 0.0, 2, 0), Waiter(8, "?", 0.0, 0.25, 1, 0)]
    assert world.metrics.miss_wait.times.count == 2 and world.metrics.miss_wait.times.seconds == 1.5
    assert world.metrics.listing_wait.times.seconds == 0.25


def test_who_waits_now_is_seen_while_he_does(world: World) -> None:
    with world.waits.of(7, What.BYTES):
        world.now += 3
        assert world.waits.shown() == [Waiter(7, "?", 3.0, 0.0, 1, 1)]
    world.now += 5
    assert world.waits.shown() == [Waiter(7, "?", 3.0, 0.0, 1, 0)]


def test_waits_of_one_thread_that_overlap_count_once(world: World) -> None:
    """As the kernel's requests of one reader do that reads ahead."""
    with ExitStack() as stack:
        stack.enter_context(world.waits.of(7, What.BYTES))
        world.now += 1
        with world.waits.of(7, What.BYTES):
            world.now += 1
        world.now += 1
    assert world.waits.shown()[0].seconds == 3.0


def test_a_wait_that_fails_counts_too(world: World) -> None:
    with pytest.raises(OSError), world.waits.of(7, What.BYTES):
        world.now += 2
        raise OSError
    assert world.waits.shown() == [Waiter(7, "?", 2.0, 0.0, 1, 0)]


def test_only_so_many_are_remembered_and_those_that_wait_are_never_forgotten(world: World) -> None:
    with world.waits.of(1, What.BYTES):
        for tid in range(2, 3 * MOST_WAITERS):
            world.wait(tid, tid / 1000)
        shown = world.waits.shown()
        assert len(shown) == MOST_WAITERS
        assert shown[0].pid == 1 and shown[0].waiting == 1
        assert {waiter.pid for waiter in shown} == {1} | set(range(2 * MOST_WAITERS + 1, 3 * MOST_WAITERS))


def test_a_thread_is_shown_as_its_process_with_its_command(world: World) -> None:
    let_go = threading.Event()
    thread = threading.Thread(target=let_go.wait, args=[60])
    thread.start()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.waits.name, Workers(1))
            for tid in (os.getpid(), thread.native_id or 0):
                world.wait(tid, 1.0)
            with trio.fail_after(30):
                while len(world.waits.shown()) > 1:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    try:
        trio.run(main)
    finally:
        let_go.set()
        thread.join()
    command = subprocess.run(["cat", f"/proc/{os.getpid()}/comm"], capture_output=True, text=True).stdout
    assert world.waits.shown() == [Waiter(os.getpid(), command.strip(), 2.0, 0.0, 2, 0)]


def test_a_process_that_has_gone_is_left_without_a_name() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert processes_of([gone.pid]) == {}
