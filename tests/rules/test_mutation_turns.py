"""How many mutations of one function one process runs at once, and when they join a queue of the database."""

from __future__ import annotations

import asyncio

import pytest
from stage.waits import SOON

from penstock.calls.run.attempts import Admission, Call, Turn
from penstock.clock import SystemClock
from penstock.store.contract.session import EVERY_QUEUE, QUEUES


def call(function: str = "add", arguments: object = "", *, conflicts: int = 0) -> Call:
    return Call(function, arguments, conflicts)


async def try_begin(turns: Admission, of: Call) -> asyncio.Task[Turn]:
    task = asyncio.ensure_future(turns.begin(of))
    for _ in range(3):
        await SystemClock().sleep(0)
    return task


async def run(turns: Admission, times: int, *, conflict: bool, arguments: object = "", in_a_row: int = 1) -> int | None:
    """Run a function so many times, one after another; the queue that it joined last."""
    queue = None
    for _ in range(times):
        turn = await turns.begin(call(arguments=arguments))
        queue, turn.call.conflicts = turn.queue, in_a_row * conflict
        turn.end(conflict=conflict)
    return queue


def test_as_many_as_allowed_run_at_once_and_the_next_waits_its_turn() -> None:
    async def main() -> None:
        turns = Admission(3)
        begun = [await try_begin(turns, call()) for _ in range(4)]
        assert [turn.done() for turn in begun] == [True, True, True, False]
        (await begun[0]).end(conflict=False)
        await begun[3]

    asyncio.run(main())


def test_conflicts_halve_how_many_run_down_to_two_and_successes_raise_it_again() -> None:
    async def main() -> None:
        turns = Admission(4)
        await run(turns, 5, conflict=True)
        first, second, third = [await try_begin(turns, call()) for _ in range(3)]
        assert (first.done(), second.done(), third.done()) == (True, True, False)
        for turn in (first, second, third):
            (await turn).end(conflict=False)
        await run(turns, 300, conflict=False)
        assert [(await try_begin(turns, call())).done() for _ in range(4)] == [True] * 4
        assert not turns._calls, "calls that conflict no more are forgotten"

    asyncio.run(main())


def test_calls_queue_after_conflicts_then_in_all_queues_and_leave_them_after_successes() -> None:
    async def main() -> None:
        turns = Admission(4)
        assert await run(turns, 2, conflict=True) is None
        own = await run(turns, 1, conflict=True)
        assert own in range(1, QUEUES + 1)
        assert turns.queues(call())
        assert await run(turns, 2, conflict=True) == EVERY_QUEUE
        assert await run(turns, 30, conflict=False) == own
        assert await run(turns, 200, conflict=False) is None
        assert not turns.queues(call())

    asyncio.run(main())


@pytest.mark.parametrize("other", [call("other"), call(arguments={"row": 2})])
def test_conflicts_hold_up_no_other_function_and_no_other_row(other: Call) -> None:
    async def main() -> None:
        turns = Admission(4)
        await run(turns, 5, conflict=True, arguments={"row": 1})
        assert [(await (await try_begin(turns, other))).queue for _ in range(4)] == [None] * 4
        assert not turns.queues(other)

    asyncio.run(main())


def test_a_call_that_conflicts_in_spite_of_its_turn_has_its_function_queue() -> None:
    async def main() -> None:
        turns, other = Admission(4), call(arguments="other")
        await run(turns, 1, conflict=True, in_a_row=3)
        assert (await turns.begin(other)).queue is None
        await run(turns, 1, conflict=True, in_a_row=3)
        assert (await turns.begin(other)).queue in range(1, QUEUES + 1)
        assert turns.queues(other)

    asyncio.run(main())


def test_whoever_starts_again_goes_first() -> None:
    async def main() -> None:
        turns = Admission(1)
        first = await turns.begin(call())
        newcomer = await try_begin(turns, call())
        again = await try_begin(turns, call(conflicts=1))
        first.end(conflict=False)
        (await again).end(conflict=False)
        await newcomer

    asyncio.run(main())


def test_nobody_waits_long_for_a_slow_one() -> None:
    async def main() -> None:
        turns = Admission(1)
        await turns.begin(call())
        async with asyncio.timeout(SOON):
            await turns.begin(call())

    asyncio.run(main())


def test_one_who_gives_up_waiting_passes_the_turn_on() -> None:
    async def main() -> None:
        turns = Admission(1)
        first = await turns.begin(call())
        gives_up, next_one = await try_begin(turns, call()), await try_begin(turns, call())
        gives_up.cancel()
        first.end(conflict=False)
        await next_one
        assert gives_up.cancelled()

    asyncio.run(main())
