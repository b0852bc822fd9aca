"""What a store promises of one session: all or nothing, savepoints, errors, and clean endings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from conformance.bench import Bench, Suite, story, values
from penstock.errors import (
    ContextError,
    DatabaseBusy,
    DataError,
    UniqueViolation,
    ValueInvalid,
)
from penstock.store.session import Session, Statement
from penstock.store.sql.dialect import placeholder

_STARTED = 0.05  # seconds after which a slow statement is surely under way


class Sessions(Suite):
    """`store.Session`, and how a store begins one."""

    # ----- all or nothing

    @story
    async def test_others_see_all_of_a_transaction_once_it_commits_or_nothing(self, bench: Bench) -> None:
        other = await bench.another()
        for end, expected in (("rollback", []), ("commit", ["kept"])):
            session = await bench.store.begin_write()
            await bench.insert(session, "kept", 7)
            assert await bench.kept() == [], "nobody sees it before the commit"
            await getattr(session, end)()
            assert await bench.kept() == await bench.reading(bench.titles, other) == expected

    @story
    async def test_a_transaction_sees_its_own_writes(self, bench: Bench) -> None:
        async def write(session: Session) -> None:
            await bench.insert(session, "mine", 1)
            assert await bench.change(session, "mine", 2) == 1
            assert await bench.amount(session, "mine") == 2
            assert await bench.change(session, "unknown", 2) == 0

        await bench.writing(write)

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
        """More than there are connections: all get their turn."""
        store = await bench.another(max_connections=3)
        await asyncio.gather(
            *(bench.writing(partial(bench.insert, title=f"n{number:02}"), store) for number in range(30)),
            *(bench.reading(bench.titles, store) for _ in range(30)),
        )
        assert len(await bench.kept()) == 30
