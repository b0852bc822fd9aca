"""How many mutations of one function one process runs at once, and when they join a queue of the database."""

from __future__ import annotations

import asyncio

import pytest
from stage.waits import SOON

from penstock.calls.run.attempts import Admission, Turn
from penstock.clock import SystemClock
from penstock.store.session import EVERY_QUEUE, QUEUES


async def try_begin(call: Turn) -> asyncio.Task[int | None]:
    task = asyncio.ensure_future(call.begin())
    for _ in range(3):
        await SystemClock().sleep(0)
    return task


async def run(turns: Admission, times: int, *, conflict: bool, arguments: object = "", in_a_row: int = 1) -> int | None:
    """Run a function so many times, one after another; the queue that it joined last."""
    queue = None
    for _ in range(times):
        call = Turn(turns, "add", arguments)
        call.conflicts = in_a_row - 1
        queue = await call.begin()
        call.end(conflict=conflict)
    return queue


async def test_all_run_at_once_until_one_conflicts_and_then_the_next_waits_its_turn() -> None:
    turns = Admission(6)
    assert [(await try_begin(Turn(turns, "add"))).done() for _ in range(9)] == [True] * 9
    await run(turns, 1, conflict=True)
    calls = [Turn(turns, "add") for _ in range(4)]
    begun = [await try_begin(call) for call in calls]
    assert [turn.done() for turn in begun] == [True, True, True, False]
    calls[0].end(conflict=False)
    await begun[3]


async def test_conflicts_halve_how_many_run_down_to_two_and_successes_raise_it_again() -> None:
    turns = Admission(4)
    await run(turns, 5, conflict=True)
    calls = [Turn(turns, "add") for _ in range(3)]
    begun = [await try_begin(call) for call in calls]
    assert [turn.done() for turn in begun] == [True, True, False]
    for call, turn in zip(calls, begun, strict=True):
        await turn
        call.end(conflict=False)
    await run(turns, 300, conflict=False)
    assert [(await try_begin(Turn(turns, "add"))).done() for _ in range(4)] == [True] * 4


async def test_calls_queue_after_conflicts_then_in_all_queues_and_leave_them_after_successes() -> None:
    turns = Admission(4)
    assert await run(turns, 2, conflict=True) is None
    own = await run(turns, 1, conflict=True)
    assert own in range(1, QUEUES + 1)
    assert await run(turns, 2, conflict=True) == EVERY_QUEUE
    assert await run(turns, 30, conflict=False) == own
    assert await run(turns, 200, conflict=False) is None


@pytest.mark.parametrize("other", [("other", ""), ("add", {"row": 2})])
async def test_conflicts_hold_up_no_other_function_and_no_other_row(other: tuple[str, object]) -> None:
    turns = Admission(4)
    await run(turns, 5, conflict=True, arguments={"row": 1})
    assert [await (await try_begin(Turn(turns, *other))) for _ in range(4)] == [None] * 4


async def test_whoever_starts_again_goes_first() -> None:
    turns = Admission(1)
    first, newcomer, again = (Turn(turns, "add") for _ in range(3))
    again.conflicts = 1
    await first.begin()
    later, sooner = await try_begin(newcomer), await try_begin(again)
    first.end(conflict=False)
    await sooner
    again.end(conflict=False)
    await later


async def test_one_who_gives_up_waiting_passes_the_turn_on() -> None:
    turns = Admission(1)
    await run(turns, 1, conflict=True)
    first = Turn(turns, "add")
    await first.begin()
    gives_up, next_one = await try_begin(Turn(turns, "add")), await try_begin(Turn(turns, "add"))
    gives_up.cancel()
    first.end(conflict=False)
    await next_one
    assert gives_up.cancelled()


async def test_nobody_waits_long_for_a_slow_one() -> None:
    turns = Admission(1)
    await Turn(turns, "add").begin()
    async with asyncio.timeout(SOON):
        await Turn(turns, "add").begin()
