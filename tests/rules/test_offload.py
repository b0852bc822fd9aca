"""Large texts are read in a thread, one after another, and the event loop answers others in between."""

from __future__ import annotations

import asyncio
import threading

import pytest
from stage.waits import SOON

from penstock.calls.run import threads
from penstock.clock import SystemClock


def test_the_event_loop_turns_often_enough_to_answer_others_between_two_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_TURNS_WAIT", SOON)
    turns, begun, ended = 0, list[int](), list[int]()

    def work() -> None:
        begun.append(turns)
        ended.append(turns)

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await SystemClock().sleep(0)

    async def main() -> None:
        counting = asyncio.create_task(count())
        await asyncio.gather(*(threads.offload(1 << 20, work) for _ in range(4)))
        counting.cancel()

    asyncio.run(main())
    assert min(later - before for before, later in zip(ended, begun[1:], strict=False)) >= threads._TURNS


def test_a_piece_that_outlives_its_event_loop_ends_and_lets_others_work() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go_on.wait(SOON)

    async def give_up() -> None:
        call = asyncio.create_task(threads.offload(1 << 20, work))
        await asyncio.to_thread(begun.wait)
        call.cancel()

    async def next_one() -> int:
        return await asyncio.wait_for(threads.offload(1 << 20, lambda: 7), SOON)

    asyncio.run(give_up())
    go_on.set()
    assert asyncio.run(next_one()) == 7
