"""What a store promises of transactions side by side: snapshots that stay, and writes as if one came after another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest

from conformance.bench import Bench, Suite, story
from penstock.errors import (
    Conflict,
    PenstockError,
)
from penstock.store.session import EVERY_QUEUE, QUEUES, Session

Steps = Callable[[Session], AsyncIterator[None]]


class Isolation(Suite):
    """`store.Session`: what it sees of others."""

    # ----- snapshots

    @story
    async def test_a_snapshot_stays_as_it_was_and_neither_waits_nor_writes(self, bench: Bench) -> None:
        await bench.write_notes(note=1)
        reader, writer = await bench.store.begin_read(), await bench.store.begin_write()
        assert await bench.amount(reader, "note") == 1
        await bench.change(writer, "note", 2)
        await bench.insert(writer, "second")
        late_reader = await bench.store.begin_read()
        assert await bench.amount(late_reader, "note") == 1
        await writer.commit()
        for session in (reader, late_reader):
            assert (await bench.amount(session, "note"), await bench.titles(session)) == (1, ["note"])
            with pytest.raises(PenstockError):
                await bench.insert(session, "smuggled")
            await session.rollback()
        assert await bench.kept() == ["note", "second"]

    # ----- serializable transactions

    @story
    async def test_transactions_of_a_queue_see_what_those_before_them_have_written(self, bench: Bench) -> None:
        await bench.write_notes(counter=0)

        async def add_one(queue: int) -> None:
            session = await bench.store.begin_write(queue)
            try:
                amount = await bench.amount(session, "counter") or 0
                await bench.change(session, "counter", amount + 1)
                await session.commit()
            finally:
                await session.rollback()

        first = await bench.store.begin_write(QUEUES)
        amount = await bench.amount(first, "counter") or 0
        others = [asyncio.create_task(add_one(queue)) for queue in (QUEUES, EVERY_QUEUE, QUEUES)]
        await asyncio.wait(others, timeout=0.05)
        others[2].cancel()
        await bench.change(first, "counter", amount + 1)
        await first.commit()
        assert [type(found) for found in await asyncio.gather(*others, return_exceptions=True)] == [
            type(None),
            type(None),
            asyncio.CancelledError,
        ]
        assert await bench.reading(lambda session: bench.amount(session, "counter")) == amount + 3

    @story
    async def test_transactions_that_cannot_be_put_in_an_order_are_refused(self, bench: Bench) -> None:
        both = await self._overlap(bench, add_if_none(bench, "phantom"), add_if_none(bench, "another"))
        assert (both, await bench.kept()) == (self.one_writer, ["phantom"])
        both = await self._overlap(bench, insert_unless(bench, "a", "b"), insert_unless(bench, "b", "a"))
        assert (both, await bench.kept()) == (self.one_writer, ["a", "phantom"]), "a missing row counts as read"
        await bench.write_notes(ada=1, bob=1, counter=0)
        assert await self._overlap(bench, leave(bench, "ada"), leave(bench, "bob")) is self.one_writer, "write skew"
        assert await self._overlap(bench, add_one(bench), add_one(bench)) is self.one_writer, "a lost update"
        amounts = [await bench.reading(partial(bench.amount, title=title)) for title in ("ada", "bob", "counter")]
        assert amounts == [0, 1, 1 + self.one_writer]

    @story
    async def test_transactions_that_do_not_meet_both_succeed(self, bench: Bench) -> None:
        await bench.write_notes(**{f"note{number}": number for number in range(20)})

        def change(title: str) -> Steps:
            async def steps(session: Session) -> AsyncIterator[None]:
                await bench.amount(session, title)
                yield
                await bench.change(session, title, 100)

            return steps

        assert await self._overlap(bench, change("note3"), change("note17"))

    async def _overlap(self, bench: Bench, first: Steps, second: Steps) -> bool:
        """Two transactions overlap: both read, then the first writes and commits, then the second does if it may.

        Where there is one writer, the second begins when the first has ended.
        """
        second_has_read, first_has_ended = asyncio.Event(), asyncio.Event()

        async def run_second() -> bool:
            session = await bench.store.begin_write()
            try:
                steps = second(session)
                await anext(steps)
                if not self.one_writer:
                    second_has_read.set()
                    await first_has_ended.wait()
                await anext(steps, None)
                await session.commit()
            except Conflict:
                return False
            finally:
                await session.rollback()
            return True

        session = await bench.store.begin_write()
        steps = first(session)
        await anext(steps)
        task = asyncio.create_task(run_second())
        if not self.one_writer:
            await second_has_read.wait()
        await anext(steps, None)
        await session.commit()
        first_has_ended.set()
        return await task


def add_if_none(bench: Bench, title: str) -> Steps:
    """Add a note if there is none."""

    async def steps(session: Session) -> AsyncIterator[None]:
        found = await bench.titles(session)
        yield
        if not found:
            await bench.insert(session, title)

    return steps


def insert_unless(bench: Bench, title: str, other: str) -> Steps:
    """Add a note if another does not exist."""

    async def steps(session: Session) -> AsyncIterator[None]:
        found = await bench.amount(session, other)
        yield
        if found is None:
            await bench.insert(session, title)

    return steps


def leave(bench: Bench, who: str) -> Steps:
    """Of two doctors on call one leaves, if the other one stays."""

    async def steps(session: Session) -> AsyncIterator[None]:
        on_call = [await bench.amount(session, name) or 0 for name in ("ada", "bob")]
        yield
        if sum(on_call) > 1:
            await bench.change(session, who, 0)

    return steps


def add_one(bench: Bench) -> Steps:
    """Count one further."""

    async def steps(session: Session) -> AsyncIterator[None]:
        amount = await bench.amount(session, "counter") or 0
        yield
        await bench.change(session, "counter", amount + 1)

    return steps
