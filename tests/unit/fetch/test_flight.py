"""Single flight: one call per key, whoever is cancelled."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from gpufs.fetch.flight import SingleFlight


def run(main) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_many_waiters_cause_one_call() -> None:
    async def main() -> None:
        calls = 0

        async def call() -> int:
            nonlocal calls
            calls += 1
            await trio.sleep(1)
            return calls

        results: list[int] = []
        async with trio.open_nursery() as nursery:
            flights: SingleFlight[str, int] = SingleFlight(nursery)

            async def wait() -> None:
                results.append(await flights.run("key", call))

            async with trio.open_nursery() as waiters:
                for _ in range(10):
                    waiters.start_soon(wait)
        assert results == [1] * 10

    run(main)


@pytest.mark.parametrize("cancelled", [0, 1, 2])
def test_cancelling_one_waiter_disturbs_no_other(cancelled: int) -> None:
    """The first waiter is not special: the call is nobody's own."""

    async def main() -> None:
        results: list[int] = []
        async with trio.open_nursery() as nursery:
            flights: SingleFlight[str, int] = SingleFlight(nursery)

            async def call() -> int:
                await trio.sleep(10)
                return 7

            async def wait(patience: float) -> None:
                with trio.move_on_after(patience):
                    results.append(await flights.run("key", call))

            for number in range(3):
                nursery.start_soon(wait, 1 if number == cancelled else 100)
                await trio.sleep(0.1)
        assert results == [7, 7]
        assert "key" not in flights

    run(main)


def test_a_failure_reaches_all_waiters_and_is_not_remembered() -> None:
    async def main() -> None:
        attempts = 0

        async def call() -> int:
            nonlocal attempts
            attempts += 1
            await trio.sleep(1)
            if attempts == 1:
                raise ValueError("broken")
            return attempts

        failures = 0
        async with trio.open_nursery() as nursery:
            flights: SingleFlight[str, int] = SingleFlight(nursery)

            async def wait() -> None:
                nonlocal failures
                with pytest.raises(ValueError, match="broken"):
                    await flights.run("key", call)
                failures += 1

            async with trio.open_nursery() as waiters:
                waiters.start_soon(wait)
                waiters.start_soon(wait)
            assert failures == 2
            assert await flights.run("key", call) == 2

    run(main)


def test_keys_do_not_wait_for_each_other() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            flights: SingleFlight[int, int] = SingleFlight(nursery)

            async def call(seconds: int) -> int:
                await trio.sleep(seconds)
                return seconds

            nursery.start_soon(flights.run, 1000, lambda: call(1000))
            assert await flights.run(1, lambda: call(1)) == 1
            assert trio.current_time() - began < 2
            nursery.cancel_scope.cancel()

    began = 0.0

    async def timed() -> None:
        nonlocal began
        began = trio.current_time()
        await main()

    run(timed)


def test_a_call_under_way_is_not_enough_for_run_anew() -> None:
    """What was asked before may have seen less; what was asked after, by anybody, will do."""

    async def main() -> None:
        began: list[float] = []
        async with trio.open_nursery() as nursery:
            flights: SingleFlight[str, float] = SingleFlight(nursery)

            async def call() -> float:
                began.append(trio.current_time())
                await trio.sleep(10)
                return began[-1]

            flights.start("key", call)
            await trio.sleep(1)
            asked = trio.current_time()
            results: list[float] = []

            async def ask() -> None:
                results.append(await flights.run_anew("key", call))

            async with trio.open_nursery() as askers:
                askers.start_soon(ask)
                askers.start_soon(ask)
            assert len(began) == 2 and results == [began[1]] * 2
            assert began[0] < asked <= began[1]

    run(main)
