"""How many mutations of one process run beside each other."""

from __future__ import annotations

import asyncio

from penstock.calls.turns import Turns
from penstock.clock import SystemClock


async def try_begin(turns: Turns, *, again: bool = False) -> asyncio.Task[None]:
    task = asyncio.ensure_future(turns.begin(again=again))
    for _ in range(3):
        await SystemClock().sleep(0)
    return task


def test_as_many_as_allowed_run_beside_each_other_and_the_next_waits_its_turn() -> None:
    async def main() -> None:
        turns = Turns(2)
        first, second, third = [await try_begin(turns) for _ in range(3)]
        assert (first.done(), second.done(), third.done()) == (True, True, False)
        turns.end(conflict=False)
        await third

    asyncio.run(main())


def test_conflicts_halve_how_many_run_down_to_one_and_successes_raise_it_again() -> None:
    async def main() -> None:
        turns = Turns(4)
        for _ in range(5):
            await turns.begin(again=False)
            turns.end(conflict=True)
        first, second = await try_begin(turns), await try_begin(turns)
        assert (first.done(), second.done()) == (True, False)
        turns.end(conflict=False)
        await second
        turns.end(conflict=False)
        for _ in range(100):
            await turns.begin(again=False)
            turns.end(conflict=False)
        assert [(await try_begin(turns)).done() for _ in range(4)] == [True] * 4

    asyncio.run(main())


def test_whoever_starts_again_goes_first() -> None:
    async def main() -> None:
        turns = Turns(1)
        await turns.begin(again=False)
        newcomer = await try_begin(turns)
        again = await try_begin(turns, again=True)
        turns.end(conflict=False)
        await again
        assert not newcomer.done()
        turns.end(conflict=False)
        await newcomer

    asyncio.run(main())


def test_nobody_waits_long_for_a_slow_one() -> None:
    async def main() -> None:
        turns = Turns(1)
        await turns.begin(again=False)
        async with asyncio.timeout(5):
            await turns.begin(again=False)

    asyncio.run(main())


def test_one_who_gives_up_waiting_passes_the_turn_on() -> None:
    async def main() -> None:
        turns = Turns(1)
        await turns.begin(again=False)
        gives_up, next_one = await try_begin(turns), await try_begin(turns)
        gives_up.cancel()
        turns.end(conflict=False)
        await next_one
        assert gives_up.cancelled()

    asyncio.run(main())
