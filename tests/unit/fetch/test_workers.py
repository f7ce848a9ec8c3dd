"""The worker threads: never more than their number, nobody's failure lost, nobody's result kept."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from gpufs.fetch.workers import Workers


class Gate:
    """Jobs that wait in it, and how many do at once."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.most = self.inside = self.done = 0
        self._changed = threading.Condition()

    def job(self, number: int = 0) -> int:
        with self._changed:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self._changed.notify_all()
        assert self.open.wait(30)
        with self._changed:
            self.inside -= 1
            self.done += 1
            self._changed.notify_all()
        return number

    async def until(self, condition: Callable[[], bool]) -> None:
        def wait() -> None:
            with self._changed:
                assert self._changed.wait_for(condition, 30)

        await trio.to_thread.run_sync(wait)


def play(scene: Callable[[Gate], Awaitable[None]]) -> None:
    gate = Gate()

    async def main() -> None:
        try:
            await scene(gate)
        finally:
            gate.open.set()

    trio.run(main)


def test_no_more_jobs_at_once_than_threads_and_each_gets_its_own_result() -> None:
    async def scene(gate: Gate) -> None:
        workers = Workers(4)
        results: dict[int, int] = {}

        async def ask(number: int) -> None:
            results[number] = await workers.run(gate.job, number)

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(ask, number)
            await gate.until(lambda: gate.inside == 4)
            await trio.testing.wait_all_tasks_blocked()
            gate.open.set()
        assert results == {n: n for n in range(50)}
        assert gate.most == 4

    play(scene)


def test_threads_are_started_only_when_all_others_are_busy() -> None:
    async def scene(gate: Gate) -> None:
        workers = Workers(16)
        used = {await workers.run(threading.get_ident) for _ in range(100)}
        assert len(used) == 1

    play(scene)


def test_what_a_job_raises_is_the_callers_and_the_thread_lives_on() -> None:
    async def scene(gate: Gate) -> None:
        workers = Workers(1)

        def fail() -> None:
            raise KeyError("broken")

        for _ in range(3):
            with pytest.raises(KeyError, match="broken"):
                await workers.run(fail)
        assert await workers.run(lambda: 5) == 5

    play(scene)


def test_a_cancelled_caller_goes_at_once_and_the_job_goes_on() -> None:
    """Its result is dropped; the thread takes the next job, and queued jobs are not lost."""

    async def scene(gate: Gate) -> None:
        workers = Workers(1)
        results: list[int] = []

        async def ask(number: int) -> None:
            results.append(await workers.run(gate.job, number))

        async with trio.open_nursery() as others:
            async with trio.open_nursery() as cancelled:
                cancelled.start_soon(ask, 1)
                await gate.until(lambda: gate.inside == 1)
                cancelled.start_soon(ask, 2)
                await trio.testing.wait_all_tasks_blocked()
                cancelled.cancel_scope.cancel()
            assert results == []
            others.start_soon(ask, 3)
            await trio.testing.wait_all_tasks_blocked()
            gate.open.set()
        assert results == [3]
        assert gate.done == 2 and gate.most == 1  # the second was never begun: nobody waited for it

    play(scene)


def test_a_caller_cancelled_before_starts_nothing() -> None:
    async def scene(gate: Gate) -> None:
        workers = Workers(1)
        gate.open.set()
        with trio.CancelScope() as scope:
            scope.cancel()
            await workers.run(gate.job)
        assert scope.cancelled_caught and await workers.run(lambda: gate.done) == 0

    play(scene)


def test_results_do_not_outlive_their_use() -> None:
    """A chunk of 4 MiB held by each idle thread would be memory nobody accounts for."""

    class Result:
        pass

    async def scene(gate: Gate) -> None:
        workers = Workers(1)
        kept: list[weakref.ref[Result]] = []

        def make() -> Result:
            result = Result()
            kept.append(weakref.ref(result))
            return result

        def make_slowly() -> Result:
            gate.job()
            return make()

        async def ask_slowly() -> None:
            await workers.run(make_slowly)

        await workers.run(make)
        async with trio.open_nursery() as nursery:  # one whose caller is gone when it comes
            nursery.start_soon(ask_slowly)
            await gate.until(lambda: gate.inside == 1)
            nursery.cancel_scope.cancel()
        gate.open.set()
        await workers.run(lambda: None)
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
        assert len(kept) == 2 and [ref() for ref in kept] == [None, None]

    play(scene)


def test_a_thread_can_call_into_trio() -> None:
    async def scene(gate: Gate) -> None:
        workers = Workers(1)
        task = trio.lowlevel.current_task()

        def job() -> bool:
            return workers.call_in_trio(lambda: trio.lowlevel.current_trio_token() is task_token)

        task_token = trio.lowlevel.current_trio_token()
        assert task is not None and await workers.run(job)

    play(scene)


def test_join_waits_for_work_that_outlives_its_trio() -> None:
    """What a cancelled caller left behind is not cut off: the owner can wait for it, as long as it likes."""
    began, let_go = threading.Event(), threading.Event()
    done: list[str] = []
    left: list[Workers] = []

    def work() -> None:
        began.set()
        let_go.wait(30)
        done.append("work")

    async def main() -> None:
        workers = Workers(1)
        left.append(workers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(workers.run, work)
            await trio.to_thread.run_sync(began.wait, 30)
            nursery.start_soon(workers.run, work)  # never begun: nobody waits for it by then
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert not left[0].join(0.05)
    let_go.set()
    assert left[0].join(30)
    assert done == ["work"]
