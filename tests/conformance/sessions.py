"""What a store promises of one session: all or nothing, savepoints, errors, and clean endings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import pytest

from conformance.bench import Bench, Note, Suite, new_job, story, values
from penstock.errors import (
    Conflict,
    ContextError,
    DatabaseBusy,
    DataError,
    PenstockError,
    UniqueViolation,
    ValueInvalid,
)
from penstock.schema.table import definition_of
from penstock.store.push.migrate import push
from penstock.store.session import EVERY_QUEUE, QUEUES, Session, Statement
from penstock.store.sql.dialect import placeholder

_STARTED = 0.05  # seconds after which a slow statement is surely under way


class Sessions(Suite):
    # ----- all or nothing

    @story
    async def test_others_see_all_of_a_transaction_once_it_commits_or_nothing(self, bench: Bench) -> None:
        other = await bench.another()
        for end, expected in (("rollback", []), ("commit", ["kept"])):
            session = await bench.store.begin_write()
            await bench.insert(session, "kept", 7)
            assert (await bench.change(session, "kept", 2), await bench.change(session, "unknown", 2)) == (1, 0)
            assert await bench.amount(session, "kept") == 2, "it sees its own writes"
            assert await bench.kept() == [], "nobody else sees them before the commit"
            await getattr(session, end)()
            assert await bench.kept() == await bench.reading(bench.titles, other) == expected

    @story
    async def test_a_session_ends_once_and_is_of_no_use_then(self, bench: Bench) -> None:
        for begin in (bench.store.begin_read, bench.store.begin_write):
            for end in ("commit", "rollback"):
                session = await begin()
                await getattr(session, end)()
                await session.rollback()  # after the end it does nothing
                await session.rollback()
                for use in (bench.titles, partial(bench.insert, title="late")):
                    with pytest.raises(ContextError):
                        await use(session)
                if begin == bench.store.begin_write:
                    with pytest.raises(ContextError):
                        await session.commit()
        assert await bench.kept() == []

    @story
    async def test_a_statement_is_run_for_many_rows(self, bench: Bench) -> None:
        async def write(session: Session) -> None:
            await session.execute_many(bench.notes.insert(), [bench.note(f"n{n:03}", n) for n in range(500)])
            await session.execute_many(bench.notes.insert(), [])
            await session.execute_many(bench.notes.update(("amount",)), [(-1, "n003"), (-1, "n004")])

        await bench.writing(write)
        count = await bench.store.catalog.count(f"select count(*) from {bench.notes.table} where amount >= 0")
        assert count == 498

    # ----- savepoints

    @story
    async def test_savepoints_nest_and_undo_what_follows_them(self, bench: Bench) -> None:
        await bench.write_notes(taken=1)

        async def write(session: Session) -> None:
            await bench.insert(session, "before")
            await session.savepoint("branch_1")
            await bench.insert(session, "undone")
            await session.rollback_to("branch_1")
            await session.savepoint("branch_1")
            await bench.insert(session, "outer")
            await session.savepoint("branch_2")
            await bench.insert(session, "inner")
            await session.release("branch_2")
            await session.savepoint("branch_2")
            with pytest.raises(UniqueViolation):
                await self._insert_twice(bench, session, "taken")
            await session.rollback_to("branch_2")
            await session.release("branch_1")
            await session.savepoint("branch_1")
            await session.savepoint("branch_2")
            await bench.insert(session, "undone with the outer one")
            await session.release("branch_2")
            await session.rollback_to("branch_1")
            await bench.insert(session, "after")

        await bench.writing(write)
        assert await bench.kept() == ["after", "before", "inner", "outer", "taken"]

    async def _insert_twice(self, bench: Bench, session: Session, title: str) -> None:
        sql = bench.notes.insert().sql.removesuffix("on conflict do nothing")
        await session.execute(Statement(sql), bench.note(title))

    # ----- errors

    @story
    async def test_errors_are_of_the_one_tree(self, bench: Bench) -> None:
        await bench.write_notes(taken=1)
        session = await bench.store.begin_write()
        assert await bench.insert(session, "taken") == 0, "insert tells of it without an error"
        with pytest.raises(UniqueViolation):
            await self._insert_twice(bench, session, "taken")
        await session.rollback()
        first = placeholder(bench.store.dialect.parameter, 1)
        for sql, args, expected in (
            ("select nonsense from nowhere", (), DataError),
            ("this is no sql", (), DataError),
            (f"insert into {bench.notes.table} (amount) values ({first})", (1 << 70,), ValueInvalid),
            (f"update {bench.notes.table} set title = {first}", ("\ud800",), ValueInvalid),
        ):
            session = await bench.store.begin_write()
            with pytest.raises(expected):
                await session.execute(Statement(sql), args)
            await session.rollback()
        await bench.write_notes(healthy=1)

    @story
    async def test_a_failed_transaction_does_not_commit(self, bench: Bench) -> None:
        """Whether or not the database goes on after an error, nothing may be half done."""
        session = await bench.store.begin_write()
        await bench.insert(session, "before")
        with pytest.raises(DataError):
            await session.execute(Statement("select nonsense from nowhere"))
        try:
            await bench.insert(session, "after")
            await session.commit()
        except ContextError:
            expected: list[str] = []
        else:
            expected = ["after", "before"]
        finally:
            await session.rollback()
        assert await bench.kept() == expected

    # ----- SQL of the user's that only reads

    @story
    async def test_reading_sql_gives_names_and_one_row_more_than_asked_for(self, bench: Bench) -> None:
        await bench.write_notes(a=1, b=2, c=3)
        for begin in (bench.store.begin_read, bench.store.begin_write):
            session = await begin()
            sql = f"select title, amount as much from {bench.notes.table} order by title"
            names, rows = await session.fetch_read_only(sql, (), 1, 1000)
            assert (names, values(rows)) == (["title", "much"], [("a", 1), ("b", 2)])
            await session.rollback()

    @story
    async def test_reading_sql_refuses_all_else_and_the_transaction_goes_on(self, bench: Bench) -> None:
        table = bench.notes.table

        async def write(session: Session) -> None:
            await bench.insert(session, "mine", 5)
            _, rows = await session.fetch_read_only(f"select amount from {bench.notes.table}", (), 10, 1000)
            assert values(rows) == [(5,)], "it sees its own transaction"
            for sql in (
                f"delete from {table}",
                f"with gone as (select 1) delete from {table} returning id",
                f"insert into {table} (id) values ('x') returning id",
                "commit",
                "rollback",
                "savepoint own",
                f"drop table {table}",
                f"select 1; delete from {table}",
                "select nonsense from nowhere",
                "",
                "-- nothing",
            ):
                with pytest.raises(DataError):
                    await session.fetch_read_only(sql, (), 10, 1000)
            await bench.insert(session, "more")

        await bench.writing(write)
        assert await bench.kept() == ["mine", "more"]

    # ----- callers that go away

    @story
    async def test_a_statement_that_takes_too_long_is_stopped(self, bench: Bench) -> None:
        store = await bench.another(statement_timeout=0.2, max_connections=1)
        for begin in (store.begin_read, store.begin_write):
            session = await begin()
            with pytest.raises(DatabaseBusy):
                await session.fetch(self.slow)
            await session.rollback()
            await bench.reading(bench.titles, store)
        await bench.write_notes(healthy=1)

    @story
    async def test_a_caller_that_is_cancelled_leaves_nothing_behind(self, bench: Bench) -> None:
        store = await bench.another(max_connections=1)
        for begin in (store.begin_read, store.begin_write):

            async def stuck(begin: Callable[[], object] = begin) -> None:
                session = await begin()  # type: ignore[misc]
                try:
                    await session.fetch(self.slow)
                finally:
                    await session.rollback()

            task = asyncio.create_task(stuck())
            await asyncio.wait([task], timeout=_STARTED)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()
            assert await bench.reading(bench.titles, store) == []
            await bench.writing(bench.titles, store)

    @story
    async def test_whoever_waits_for_a_turn_may_go_away(self, bench: Bench) -> None:
        """One transaction is open and two wait, of which the first is cancelled: the other one still gets its turn."""
        store = await bench.another(max_connections=1)
        session = await store.begin_write()
        waiting = [asyncio.create_task(bench.writing(bench.titles, store)) for _ in range(3)]
        await asyncio.wait(waiting, timeout=0)
        waiting[0].cancel()
        await bench.insert(session, "kept")
        await session.commit()
        waiting[1].cancel()  # in the same moment in which it is its turn
        await asyncio.gather(*waiting[:2], return_exceptions=True)
        assert await waiting[2] == ["kept"]
        assert await bench.kept() == ["kept"]

    @story
    async def test_a_commit_stands_although_all_who_wait_behind_it_go_away(self, bench: Bench) -> None:
        session = await bench.store.begin_write()
        waiting = [asyncio.create_task(bench.writing(bench.titles)) for _ in range(3)]
        await asyncio.wait(waiting, timeout=0)
        await bench.insert(session, "kept")
        for task in waiting:
            task.cancel()
        await session.commit()
        await asyncio.gather(*waiting, return_exceptions=True)
        await bench.write_notes(later=1)
        assert await bench.kept() == ["kept", "later"]
        await bench.store.ping()
        await bench.store.synchronize()

    @story
    async def test_many_sessions_at_once(self, bench: Bench) -> None:
        store = await bench.another(max_connections=3)
        await asyncio.gather(
            *(bench.writing(partial(bench.insert, title=f"n{number:02}"), store) for number in range(30)),
            *(bench.reading(bench.titles, store) for _ in range(30)),
        )
        assert len(await bench.kept()) == 30


Steps = Callable[..., AsyncIterator[None]]


class Isolation(Suite):
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
        both = await self._overlap(bench, add_if_none, ("phantom",), ("another",))
        assert (both, await bench.kept()) == (self.one_writer, ["phantom"])
        both = await self._overlap(bench, insert_unless, ("a", "b"), ("b", "a"))
        assert (both, await bench.kept()) == (self.one_writer, ["a", "phantom"]), "a missing row counts as read"
        await bench.write_notes(ada=1, bob=1, counter=0)
        assert await self._overlap(bench, leave, ("ada",), ("bob",)) is self.one_writer, "write skew"
        assert await self._overlap(bench, add_one, ("counter",), ("counter",)) is self.one_writer, "a lost update"
        amounts = [await bench.reading(partial(bench.amount, title=title)) for title in ("ada", "bob", "counter")]
        assert amounts == [0, 1, 1 + self.one_writer]

    @story
    async def test_transactions_that_do_not_meet_both_succeed(self, bench: Bench) -> None:
        await bench.write_notes(**{f"note{number}": number for number in range(20)})
        assert await self._overlap(bench, add_one, ("note3",), ("note17",))

    async def _overlap(self, bench: Bench, steps_of: Steps, first: Sequence[str], second: Sequence[str]) -> bool:
        """Two transactions overlap: both read, then the first writes and commits, then the second does if it may.

        Where there is one writer, the second begins when the first has ended.
        """
        second_has_read, first_has_ended = asyncio.Event(), asyncio.Event()

        async def run_second() -> bool:
            session = await bench.store.begin_write()
            try:
                steps = steps_of(bench, *second, session)
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
        steps = steps_of(bench, *first, session)
        await anext(steps)
        task = asyncio.create_task(run_second())
        if not self.one_writer:
            await second_has_read.wait()
        await anext(steps, None)
        await session.commit()
        first_has_ended.set()
        return await task


async def add_if_none(bench: Bench, title: str, session: Session) -> AsyncIterator[None]:
    found = await bench.titles(session)
    yield
    if not found:
        await bench.insert(session, title)


async def insert_unless(bench: Bench, title: str, other: str, session: Session) -> AsyncIterator[None]:
    found = await bench.amount(session, other)
    yield
    if found is None:
        await bench.insert(session, title)


async def leave(bench: Bench, who: str, session: Session) -> AsyncIterator[None]:
    """Of two doctors on call one leaves, if the other one stays."""
    on_call = [await bench.amount(session, name) or 0 for name in ("ada", "bob")]
    yield
    if sum(on_call) > 1:
        await bench.change(session, who, 0)


async def add_one(bench: Bench, title: str, session: Session) -> AsyncIterator[None]:
    amount = await bench.amount(session, title) or 0
    yield
    await bench.change(session, title, amount + 1)


_SOON = 5.0


class Signals(Suite):
    @story
    async def test_a_wake_up_reaches_all_who_still_listen_in_this_process(self, bench: Bench) -> None:
        signals, gone, events = bench.store.signals, asyncio.Event(), [asyncio.Event(), asyncio.Event()]
        for event in (gone, *events):
            signals.subscribe(event)
        await self._all(events)
        for _ in range(2):
            signals.unsubscribe(gone)
        gone.clear()
        for _ in range(3):
            for event in events:
                event.clear()
            signals.notify()
            await self._all(events)
        assert not gone.is_set()

    @story
    async def test_committed_jobs_wake_another_process(self, bench: Bench) -> None:
        other, event = await bench.another(), asyncio.Event()
        other.signals.subscribe(event)
        await self._all([event])  # a new listener is told to look by itself
        for many in (1, 1, 10_000):
            event.clear()
            await bench.enqueue(new_job())
            for _ in range(many):
                bench.store.signals.notify()
            await self._all([event])

    async def _all(self, events: list[asyncio.Event]) -> None:
        async with asyncio.timeout(_SOON):
            for event in events:
                await event.wait()


class Catalog(Suite):
    @story
    async def test_a_table_is_known_as_it_was_made_and_its_rows_are_counted(self, bench: Bench) -> None:
        name = definition_of(Note).name
        stored = await bench.store.catalog.read_tables([name, "no_such_table"])
        assert set(stored) == {name}
        assert set(stored[name].columns) == {"id", "creation_time", "title", "amount"}
        await bench.write_notes(a=1, b=2, c=3)
        assert await bench.store.catalog.count(f"select count(*) from {bench.notes.table} where amount > 1") == 2

    @story
    async def test_migrations_are_applied_once_however_many_push(self, bench: Bench) -> None:
        stores = [await bench.another() for _ in range(4)]
        applied = await bench.store.catalog.list_migrations()
        assert applied
        await asyncio.gather(*(push(store, [definition_of(Note)]) for store in stores))
        assert await bench.store.catalog.list_migrations() == applied

    @story
    async def test_one_at_a_time_changes_the_schema(self, bench: Bench) -> None:
        other, inside = await bench.another(), 0

        async def change(store: object) -> None:
            nonlocal inside
            async with store.catalog.lock() as lock:  # type: ignore[attr-defined]
                inside += 1
                assert inside == 1
                await lock.list_migrations()
                inside -= 1

        await asyncio.gather(*(change(store) for store in (bench.store, other) * 3))
