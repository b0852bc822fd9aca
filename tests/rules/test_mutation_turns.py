"""How many mutations of one function one process runs at once, and when they join a queue of the database."""

from __future__ import annotations

import asyncio

from stage.waits import SOON

from penstock.calls.run.attempts import Admission
from penstock.clock import SystemClock
from penstock.store.contract.session import EVERY_QUEUE, QUEUES


async def try_begin(turns: Admission, function: str = "add", *, again: bool = False) -> asyncio.Task[int | None]:
    task = asyncio.ensure_future(turns.begin(function, again=again))
    for _ in range(3):
        await SystemClock().sleep(0)
    return task


async def run(turns: Admission, times: int, *, conflict: bool) -> int | None:
    """Run a function so many times, one after another; the queue that it joined last."""
    queue = None
    for _ in range(times):
        queue = await turns.begin("add", again=False)
        turns.end("add", conflict=conflict)
    return queue


def test_as_many_as_allowed_run_at_once_and_the_next_waits_its_turn() -> None:
    async def main() -> None:
        turns = Admission(3)
        begun = [await try_begin(turns) for _ in range(4)]
        assert [turn.done() for turn in begun] == [True, True, True, False]
        turns.end("add", conflict=False)
        await begun[3]

    asyncio.run(main())


def test_conflicts_halve_how_many_run_down_to_two_and_successes_raise_it_again() -> None:
    async def main() -> None:
        turns = Admission(4)
        await run(turns, 5, conflict=True)
        first, second, third = [await try_begin(turns) for _ in range(3)]
        assert (first.done(), second.done(), third.done()) == (True, True, False)
        for turn in (first, second, third):
            await turn
            turns.end("add", conflict=False)
        await run(turns, 300, conflict=False)
        assert [(await try_begin(turns)).done() for _ in range(4)] == [True] * 4

    asyncio.run(main())


def test_a_function_queues_after_conflicts_then_in_all_queues_and_leaves_them_after_successes() -> None:
    async def main() -> None:
        turns = Admission(4)
        assert await run(turns, 2, conflict=True) is None
        own = await run(turns, 1, conflict=True)
        assert own in range(1, QUEUES + 1)
        assert turns.queues("add")
        assert await run(turns, 2, conflict=True) == EVERY_QUEUE
        assert await run(turns, 30, conflict=False) == own
        assert await run(turns, 200, conflict=False) is None
        assert not turns.queues("add")

    asyncio.run(main())


def test_conflicts_of_one_function_hold_up_no_other() -> None:
    async def main() -> None:
        turns = Admission(4)
        await run(turns, 5, conflict=True)
        assert [await (await try_begin(turns, "other")) for _ in range(4)] == [None] * 4
        assert not turns.queues("other")

    asyncio.run(main())


def test_whoever_starts_again_goes_first() -> None:
    async def main() -> None:
        turns = Admission(1)
        await turns.begin("add", again=False)
        newcomer = await try_begin(turns)
        again = await try_begin(turns, again=True)
        turns.end("add", conflict=False)
        await again
        assert not newcomer.done()
        turns.end("add", conflict=False)
        await newcomer

    asyncio.run(main())


def test_nobody_waits_long_for_a_slow_one() -> None:
    async def main() -> None:
        turns = Admission(1)
        await turns.begin("add", again=False)
        async with asyncio.timeout(SOON):
            await turns.begin("add", again=False)

    asyncio.run(main())


def test_one_who_gives_up_waiting_passes_the_turn_on() -> None:
    async def main() -> None:
        turns = Admission(1)
        await turns.begin("add", again=False)
        gives_up, next_one = await try_begin(turns), await try_begin(turns)
        gives_up.cancel()
        turns.end("add", conflict=False)
        await next_one
        assert gives_up.cancelled()

    asyncio.run(main())
