"""What a store promises of transactions side by side: snapshots that stay, and writes as if one came after another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

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
    async def test_a_snapshot_stays_as_it_was_while_others_write(self, bench: Bench) -> None:
        await bench.write_notes(first=1)
        reader = await bench.store.begin_read()
        assert await bench.titles(reader) == ["first"]
        await bench.write_notes(second=2)
        assert await bench.titles(reader) == ["first"]
        await reader.rollback()
        assert await bench.kept() == ["first", "second"]

    @story
    async def test_readers_and_the_writer_do_not_wait_for_each_other(self, bench: Bench) -> None:
        await bench.write_notes(note=1)
        reader, writer = await bench.store.begin_read(), await bench.store.begin_write()
        assert await bench.amount(reader, "note") == 1
        await bench.change(writer, "note", 2)
        assert await bench.amount(reader, "note") == 1
        late_reader = await bench.store.begin_read()
        assert await bench.amount(late_reader, "note") == 1
        await writer.commit()
        assert await bench.amount(late_reader, "note") == 1
        for session in (reader, late_reader):
            await session.rollback()

    @story
    async def test_a_snapshot_refuses_to_write(self, bench: Bench) -> None:
        reader = await bench.store.begin_read()
        with pytest.raises(PenstockError):
            await bench.insert(reader, "smuggled")
        await reader.rollback()
        assert await bench.kept() == []
        await bench.write_notes(proper=1)

    # ----- serializable transactions

    @story
    async def test_a_lost_update_is_refused(self, bench: Bench) -> None:
        await bench.write_notes(counter=0)

        async def add_one(session: Session) -> AsyncIterator[None]:
            amount = await bench.amount(session, "counter") or 0
            yield
            await bench.change(session, "counter", amount + 1)

        both = await self._overlap(bench, add_one, add_one)
        assert both is self.one_writer
        assert await bench.reading(lambda session: bench.amount(session, "counter")) == 1 + both

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
    async def test_write_skew_is_refused(self, bench: Bench) -> None:
        """Two doctors are on call; each may leave if the other one stays."""
        await bench.write_notes(ada=1, bob=1)

        def leave(who: str) -> Steps:
            async def steps(session: Session) -> AsyncIterator[None]:
                on_call = [await bench.amount(session, name) or 0 for name in ("ada", "bob")]
                yield
                if sum(on_call) > 1:
                    await bench.change(session, who, 0)

            return steps

        assert await self._overlap(bench, leave("ada"), leave("bob")) is self.one_writer
        assert await bench.reading(lambda session: bench.amount(session, "ada")) == 0
        assert await bench.reading(lambda session: bench.amount(session, "bob")) == 1

    @story
    async def test_a_phantom_is_refused(self, bench: Bench) -> None:
        """Each adds a note if there is none: what was read and found empty counts as read."""

        def add_if_none(title: str) -> Steps:
            async def steps(session: Session) -> AsyncIterator[None]:
                found = await bench.titles(session)
                yield
                if not found:
                    await bench.insert(session, title)

            return steps

        assert await self._overlap(bench, add_if_none("first"), add_if_none("second")) is self.one_writer
        assert await bench.kept() == ["first"]

    @story
    async def test_a_missing_row_counts_as_read(self, bench: Bench) -> None:
        """Each inserts its note if the other's does not exist."""

        def insert_unless(title: str, other: str) -> Steps:
            async def steps(session: Session) -> AsyncIterator[None]:
                found = await bench.amount(session, other)
                yield
                if found is None:
                    await bench.insert(session, title)

            return steps

        assert await self._overlap(bench, insert_unless("a", "b"), insert_unless("b", "a")) is self.one_writer
        assert await bench.kept() == ["a"]

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
