"""A slow watched query holds nobody but its own watchers, and nobody sees two snapshots at once."""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from stage.databases import sql
from stage.stories import Stage
from stage.watching import burn, settle, step

from penstock import Id, QueryCtx, Table
from penstock.changes.demand import Demands
from penstock.clock import random_of
from penstock.errors import Conflict, DatabaseBusy, DatabaseUnavailable, TryAgain
from penstock.live.view import View
from penstock.services.live import batch
from penstock.services.live.live import LiveQueries
from penstock.store.postgres.session import PostgresSession
from penstock.store.sqlite.store import ReadSession
from penstock.testing import TestApp

LATER = timedelta(seconds=10)


def conflict() -> Conflict:
    return Conflict("of the query's own making")


class Account(Table):
    owner: str
    amount: int = 0


class Bank(Stage):
    """Two accounts that hold 100 together, and queries. Some end when the test lets them.

    These take long, and all others take no time: how busy the machine is does not matter.
    """

    keys: list[Id[Any]]
    live: LiveQueries

    def __init__(self) -> None:
        super().__init__(Account)
        self.is_open, self.permits, self.changed = True, 0, asyncio.Event()
        self.begun, self.most_at_once, self.time = list[int](), 0, 0.0
        self.held_tasks = set[Any]()
        self.raises: Callable[[], BaseException] = ValueError

        @self.app.query
        async def quick(ctx: QueryCtx, number: int) -> int:
            row = await ctx.db.get(Account, self.keys[number])
            assert row is not None
            return int(row.amount)

        @self.app.query
        async def slow(ctx: QueryCtx, number: int) -> int:
            self.begun.append(number)
            row = await ctx.db.get(Account, self.keys[number])
            await self.may_end()
            assert row is not None
            return int(row.amount)

        @self.app.query
        async def raising(ctx: QueryCtx) -> int:
            await ctx.db.query(Account).collect()
            raise self.raises()

        @self.app.query
        async def held(ctx: QueryCtx, number: int) -> int:
            self.begun.append(number)
            await self.may_end()
            return number + await ctx.db.query(Account).count()

        @self.app.query
        async def by_sql(ctx: QueryCtx, number: int) -> int:
            await self.may_end()
            return number + len(await ctx.sql("select 1"))

        self.quick, self.slow, self.raising, self.held, self.by_sql = quick, slow, raising, held, by_sql

    @asynccontextmanager
    async def started(self, url: str, **settings: Any) -> AsyncIterator[TestApp]:
        """The app under test with two accounts; the test makes the ticks."""
        async with self.open(url, **settings) as test:
            patches = pytest.MonkeyPatch()
            patches.setattr(batch, "profile_timer", lambda: self.time)
            patches.setattr(batch.Batch, "_spend", lambda _batch, task: self.spend(task))
            self.keys = await self.insert(test, Account(owner="a", amount=50), Account(owner="b", amount=50))
            self.live = LiveQueries(test.runner, self.app.definitions())
            try:
                yield test
            finally:
                patches.undo()
                await self.live.close()

    async def spend(self, task: asyncio.Task[None]) -> None:
        """Wait until all queries of a batch are done, or one is held."""
        while not task.done() and task not in self.held_tasks:
            await asyncio.wait([task], timeout=0.001)

    def view(self, *queries: Any) -> View:
        """A view of queries, each of the account whose number is its own."""
        view = self.live.view()
        for number, query in enumerate(queries):
            view.add(number, query, {"number": number})
        return view

    async def transfer(self, test: TestApp, by: int) -> None:
        one, two = self.keys
        await sql(
            test,
            f"update account set amount = amount - {by} where id = '{one}'",
            f"update account set amount = amount + {by} where id = '{two}'",
        )

    async def may_end(self) -> None:
        """Wait until the test lets a run end."""
        task = asyncio.current_task()
        try:
            while not self.is_open and not self.permits:
                self.time += 1.0
                self.held_tasks.add(task)
                self.most_at_once = max(self.most_at_once, len(self.held_tasks))
                self.changed.clear()
                await self.changed.wait()
        finally:
            self.held_tasks.discard(task)
        self.permits = max(0, self.permits - 1)

    def let_end(self, *, all_of_them: bool) -> None:
        """Let one held run end, or all, now and later."""
        self.is_open, self.permits = all_of_them, self.permits + 1
        self.changed.set()

    async def next_of(self, view: View) -> dict[int, Any]:
        """The next answers of a view, when one held run has ended."""
        self.let_end(all_of_them=False)
        return await self.soon(view)

    async def soon(self, view: View) -> dict[int, Any]:
        """The next answers of a view."""
        while (found := taken(view)) is None:
            await step(self.live)
        return found


def taken(view: View) -> dict[int, Any] | None:
    found = view.step()
    return None if found is None else {number: one.error or one.result for number, one in found.answers.items()}


async def test_who_watches_a_slow_query_waits_for_it_and_sees_one_snapshot_while_others_move_on(
    database_url: str,
) -> None:
    stage = Bank()
    async with stage.started(database_url) as test:
        both, other = stage.view(stage.slow, stage.quick), stage.view(stage.quick, stage.quick)
        await settle(stage.live)
        assert (taken(both), taken(other)) == ({0: 50, 1: 50}, {0: 50, 1: 50})
        slow = both.queries[0]
        slow.took = slow.last = 1.0  # known to be slow, it goes last
        stage.is_open = False
        for amount in (60, 70):
            await stage.transfer(test, 10)
            assert (await stage.soon(other), taken(both)) == ({0: 100 - amount, 1: amount}, None)
        assert await stage.next_of(both) == {0: 40, 1: 60}, "as of the tick at which it began"
        assert (taken(both), taken(other)) == (None, {})
        assert await stage.next_of(both) == {0: 30, 1: 70}


@pytest.mark.parametrize("seed", range(4))
async def test_nobody_ever_sees_two_snapshots_at_once(database_url: str, seed: int) -> None:
    stage, choice = Bank(), random_of(seed)
    async with stage.started(database_url) as test:
        stage.is_open = bool(seed % 2)  # first answers may come late, of tables that nobody has captured yet
        kinds = ((stage.slow, stage.quick), (stage.quick, stage.slow), (stage.quick, stage.quick), (stage.slow,) * 2)
        views = [stage.view(*queries) for queries in kinds]
        seen: list[dict[int, int]] = [{} for _ in views]
        ticks = [0 for _ in views]

        def look() -> None:
            for place, view in enumerate(views):
                while (found := view.step()) is not None:
                    seen[place].update((number, one.result) for number, one in found.answers.items())
                    assert sum(seen[place].values()) == 100
                    assert found.tick.number > ticks[place]
                    ticks[place] = found.tick.number

        for _ in range(60):
            match choice.choice(["transfer", "transfer", "tick", "tick", "open", "close", "watch"]):
                case "transfer":
                    await stage.transfer(test, choice.randint(1, 9))
                case "tick":
                    await stage.live.tick()
                case "open":
                    stage.let_end(all_of_them=True)
                case "close":
                    stage.is_open = False
                case _:
                    place = choice.randint(0, len(views) - 1)
                    views[place].close()
                    views[place], seen[place], ticks[place] = stage.view(*kinds[place]), {}, 0
            look()
        stage.let_end(all_of_them=True)
        await stage.transfer(test, 1)
        await settle(stage.live)
        look()
        now = [await test.run_query(stage.quick, number=number) for number in (0, 1)]
        assert [list(dict(sorted(one.items())).values()) for one in seen] == [now] * len(views)


async def test_queries_that_come_with_a_slow_one_do_not_wait_for_it(database_url: str) -> None:
    stage = Bank()
    async with stage.started(database_url):
        stage.is_open = False
        slow, quick = stage.view(stage.slow), stage.view(stage.quick)
        assert (await stage.soon(quick), taken(slow)) == ({0: 50}, None)
        also_slow, also_quick = stage.view(stage.held), stage.view(stage.quick, stage.quick)
        assert (await stage.soon(also_quick), taken(also_slow)) == ({0: 50, 1: 50}, None)
        stage.let_end(all_of_them=True)
        await settle(stage.live)
        assert (taken(slow), taken(also_slow)) == ({0: 50}, {0: 2})


async def test_new_queries_of_many_clients_begin_one_after_another_the_oldest_first(sqlite_url: str) -> None:
    stage = Bank()
    async with stage.started(sqlite_url) as test:
        stage.is_open = False
        for number in range(6):
            stage.live.view().add(0, stage.held, {"number": number})
            test.clock.advance(timedelta(seconds=1))
            if number % 2:
                await stage.live.tick()
        while len(stage.begun) < 6:
            await stage.live.tick()
        assert (stage.begun, stage.most_at_once) == ([*range(6)], 2)
        stage.let_end(all_of_them=True)
        await settle(stage.live)


@pytest.mark.parametrize("lost", ["dropped", "restored"])
async def test_all_queries_run_again_when_the_feed_is_lost_during_a_late_one(database_url: str, lost: str) -> None:
    sqlite = database_url.startswith("sqlite")
    if sqlite and lost == "restored":
        pytest.skip("its numbers move with the file")
    stage = Bank()
    async with stage.started(database_url) as test:
        view = stage.view(stage.slow, stage.quick)
        await settle(stage.live)
        assert taken(view) == {0: 50, 1: 50}
        stage.is_open = False
        await stage.transfer(test, 10)
        await stage.live.tick()
        await stage.transfer(test, 10)
        if lost == "restored":
            await sql(test, "update penstock.change_slot set origin = 'elsewhere'")
        elif sqlite:
            await sql(test, "update penstock_change_dropped set seq = (select max(seq) from penstock_change)")
        else:
            await sql(test, "update penstock.change_slot set dropped = (select max(xid) from penstock.change)")
        if lost == "dropped":
            await sql(test, "delete from penstock_change" if sqlite else "delete from penstock.change")
        for _ in range(2):
            await stage.live.tick()
        stage.let_end(all_of_them=True)
        seen: dict[int, int] = {}
        while seen != {0: 30, 1: 70}:
            seen.update(await stage.soon(view))
            assert sum(seen.values()) == 100


async def test_a_run_that_takes_too_long_ends_as_the_answer_of_its_query(database_url: str) -> None:
    stage = Bank()
    async with stage.started(database_url, call_timeout=0.5) as test:
        stage.is_open = False
        view, other = stage.view(stage.slow), stage.view(stage.quick)
        await settle(stage.live)
        found = view.step()
        assert found is not None
        assert "`slow` execution timed out (maximum duration 0.5 s)" in str(found.answers[0].error)
        assert taken(other) == {0: 50}
        stage.let_end(all_of_them=True)
        test.clock.advance(LATER)
        await settle(stage.live)
        assert taken(view) == {0: 50}, "it was tried again"


async def test_whatever_a_query_raises_is_its_answer_alone(database_url: str) -> None:
    stage = Bank()
    async with stage.started(database_url) as test:
        view = stage.live.view()
        view.add(0, stage.quick, {"number": 0})
        view.add(1, stage.raising, {})
        errors: list[Any] = [ValueError, SystemExit, CancelledError, TimeoutError, conflict, RecursionError]
        for number, raises in enumerate(errors):
            stage.raises = raises
            await settle(stage.live)
            assert (taken(view) or {})[0] == 50 - number
            answer = view.queries[1].answer
            assert answer is not None
            assert answer.error is not None, raises
            await stage.transfer(test, 1)


def fail(monkeypatch: pytest.MonkeyPatch, url: str, errors: list[Exception]) -> None:
    """Have the next reads of accounts fail."""
    session: Any = ReadSession if url.startswith("sqlite") else PostgresSession
    fetch = session.fetch

    async def failing(self: Any, statement: Any, args: Any = ()) -> Any:
        if errors and 'from "account"' in statement.sql:
            raise errors.pop()
        return await fetch(self, statement, args)

    monkeypatch.setattr(session, "fetch", failing)


@pytest.mark.parametrize("late", [False, True], ids=["in the tick", "late"])
@pytest.mark.parametrize(
    ("error", "times"),
    [(Conflict, 1), (Conflict, 9), (DatabaseBusy, 2), (DatabaseUnavailable, 12)],
)
async def test_an_error_of_the_database_has_a_watched_query_run_again_and_is_nobodys_answer(
    database_url: str, monkeypatch: pytest.MonkeyPatch, error: type[TryAgain], times: int, late: bool
) -> None:
    stage = Bank()
    async with stage.started(database_url) as test:
        view = stage.view(stage.held, stage.quick)
        await settle(stage.live)
        assert taken(view) == {0: 2, 1: 50}
        errors: list[Exception] = [error("of the database") for _ in range(times)]
        fail(monkeypatch, database_url, errors)
        stage.is_open = not late
        await stage.transfer(test, 10)
        await stage.insert(test, Account(owner="c"))
        found = None
        while found is None:
            with suppress(DatabaseUnavailable):  # the service goes on after it
                await step(stage.live)
            stage.let_end(all_of_them=True)
            found = taken(view)
        assert (found, errors) == ({0: 3, 1: 60}, [])


@pytest.mark.parametrize("error", [Conflict("for ever"), DatabaseBusy("as it reads too much", slow=True)])
async def test_an_error_of_the_database_that_stays_is_the_answer_of_its_query_alone(
    database_url: str, monkeypatch: pytest.MonkeyPatch, error: TryAgain
) -> None:
    stage = Bank()
    async with stage.started(database_url, conflict_attempts=3) as test:
        view, other = stage.view(stage.slow), stage.view(stage.by_sql)
        errors: list[Exception] = [error] * (1 if "slow" in error.facts else 3)
        fail(monkeypatch, database_url, errors)
        await stage.live.tick()
        assert taken(other) == {0: 1}, "it does not wait for the other"
        while (found := view.step()) is None:
            await stage.live.tick()
        assert (found.answers[0].error, errors) == (error, [])
        test.clock.advance(LATER)
        await settle(stage.live)
        assert taken(view) == {0: 50}, "it was tried again"


async def test_a_change_that_was_not_captured_while_a_query_ran_late_is_not_missed(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Demands, "room", 8)
    stage = Bank()
    async with stage.started(database_url) as test:
        view, other = stage.view(stage.slow), stage.view(stage.held)
        for _ in range(2):  # the table is captured then
            await settle(stage.live)
        assert taken(view) == {0: 50}
        other.close()
        stage.is_open = False
        await stage.transfer(test, 10)
        await stage.live.tick()
        assert taken(view) is None
        await burn(test, 20)
        await stage.transfer(test, 10)
        await stage.live.tick()
        stage.let_end(all_of_them=True)
        await settle(stage.live)
        await settle(stage.live)
        assert [one.answer and one.answer.result for one in view.queries.values()] == [30]
