"""A line for things that are dear: never more than there may be, first come, first served, none lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import SystemClock
from penstock.errors import Overloaded
from penstock.store.places import Line


async def settle() -> None:
    for _ in range(5):
        await SystemClock().sleep(0)


async def test_what_is_free_is_used_again_the_last_first() -> None:
    line: Line[str] = Line(3, 10)
    for _ in range(3):
        await line.take()
    for thing in "abc":
        line.give(thing)
    assert await line.take() == "c"
    assert line.take_free(lambda thing: thing == "a") == ["a"]
    assert line.drop_free() == ["b"]
    assert await line.take() is None, "of b's place"


async def test_who_waits_too_long_is_told_so() -> None:
    line: Line[str] = Line(1, 0.01)
    await line.take()
    with pytest.raises(Overloaded, match=r"No database connection was free for 0.01 seconds: all 1 are in use"):
        await line.take()
    line.give("a")
    assert await line.take() == "a"


class Story:
    """Callers who take and give, and whatever else may happen."""

    def __init__(self, size: int) -> None:
        self.line: Line[Any] = Line(size, 1000)
        self.size = size
        self.made = 0
        self.held: list[Any] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def take(self) -> None:
        self.tasks.append(asyncio.create_task(self._take()))

    async def _take(self) -> None:
        thing = await self.line.take()
        if thing is None:
            self.made += 1
            thing = object()
        self.held.append(thing)
        assert self.made <= self.size

    async def give(self) -> None:
        if self.held:
            self.line.give(self.held.pop())

    async def lose(self) -> None:
        if self.held:
            self.held.pop()
            self.made -= 1
            self.line.give(None)

    async def cancel(self) -> None:
        if self.tasks:
            self.tasks.pop().cancel()

    async def drop(self) -> None:
        self.made -= len(self.line.drop_free())

    async def settle(self) -> None:
        await settle()

    async def end(self) -> None:
        await settle()
        while self.held:
            await self.give()
            await settle()
        assert [await self.line.take() is not None for _ in range(self.size)].count(True) == self.made


@given(st.lists(st.sampled_from(["take", "give", "lose", "cancel", "drop", "settle"]), max_size=60), st.integers(1, 4))
def test_never_more_than_there_may_be_and_none_lost(moves: list[str], size: int) -> None:
    async def tell() -> None:
        story = Story(size)
        for move in moves:
            await getattr(story, move)()
        await story.end()

    asyncio.run(tell())
