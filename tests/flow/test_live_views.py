"""A view moves all queries of a client together from one snapshot to the next."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from stage.databases import in_transaction, sql
from stage.stories import Stage
from stage.watching import settle

from penstock import Id, QueryCtx, Table
from penstock.errors import LimitExceeded
from penstock.live import cache
from penstock.live.view import MOST_QUERIES, View
from penstock.services.live.live import LiveQueries
from penstock.store.nouns.requests import RequestKey
from penstock.store.session import Session
from penstock.testing import TestApp


class Account(Table):
    owner: str
    amount: int = 0


class Bank(Stage):
    """Accounts, and queries of one or of all."""

    def __init__(self) -> None:
        super().__init__(Account)
        self.runs = 0

        @self.app.query
        async def amount(ctx: QueryCtx, key: str) -> int:
            row = await ctx.db.get(Account, Id(key))
            return 0 if row is None else row.amount

        @self.app.query
        async def total(ctx: QueryCtx) -> int:
            self.runs += 1
            return sum([row.amount async for row in ctx.db.query(Account)])

        self.amount, self.total = amount, total

    def live(self, test: TestApp) -> LiveQueries:
        return LiveQueries(test.runner, self.app.definitions())


def taken(view: View) -> dict[int, Any] | None:
    """The answers that a client gets next."""
    step = view.step()
    return None if step is None else {number: one.result for number, one in step.answers.items()}


async def test_a_step_has_the_answers_that_have_changed_since_the_last_one(database_url: str) -> None:
    stage = Bank()
    async with stage.open(database_url) as test:
        one, two = await stage.insert(test, Account(owner="a", amount=1), Account(owner="b", amount=2))
        live = stage.live(test)
        view = live.view()
        for number, key in enumerate((one, two)):
            view.add(number, stage.amount, {"key": key})
        assert taken(view) is None
        await settle(live)
        assert view.moved.is_set()
        assert taken(view) == {0: 1, 1: 2}
        assert (taken(view), view.moved.is_set()) == (None, False)
        await sql(test, "update account set amount = 3 where owner = 'b'")
        await settle(live)
        assert view.moved.is_set()
        assert taken(view) == {1: 3}
        for amount in (4, 3):
            await sql(test, f"update account set amount = {amount} where owner = 'b'")
            await settle(live)
        assert taken(view) == {}
        view.remove(1)
        await sql(test, "update account set amount = 5")
        await settle(live)
        assert taken(view) == {0: 5}


async def test_the_first_answer_of_a_query_is_not_older_than_its_request(database_url: str) -> None:
    stage = Bank()
    async with stage.open(database_url) as test:
        live = stage.live(test)
        one, other = live.view(), live.view()
        one.add(0, stage.total, {})
        await settle(live)
        await stage.insert(test, Account(owner="a", amount=1))
        other.add(7, stage.total, {})
        assert (taken(one), taken(other)) == ({0: 0}, None)
        await settle(live)
        assert (taken(one), taken(other), stage.runs) == ({0: 1}, {7: 1}, 2)


async def test_an_expected_tick_comes_and_shows_what_was_committed_before(database_url: str) -> None:
    stage = Bank()
    async with stage.open(database_url) as test:
        live = stage.live(test)
        view, idle = live.view(), live.view()
        number = view.expect()
        assert live.wake.is_set()
        await settle(live)
        assert (view.moved.is_set(), idle.moved.is_set()) == (True, False)
        step = view.step()
        assert step is not None
        assert (step.tick.number, dict(step.answers)) == (number, {})
        view.add(0, stage.total, {})
        await settle(live)
        taken(view)
        await stage.insert(test, Account(owner="a", amount=1))
        number = view.expect()
        await settle(live)
        step = view.step()
        assert step is not None
        assert (step.tick.number, step.answers[0].result) == (number, 1)


async def test_the_clock_of_ticks_never_falls_in_any_process(database_url: str) -> None:
    stage = Bank()
    async with stage.open(database_url) as test:
        clocks = []
        for _ in range(4):
            live = stage.live(test)  # of another process
            for _ in range(2):
                live.view().expect()
                await settle(live)
                clocks.append(live.newest.clock)
                await stage.insert(test, Account(owner="a"))
        lite = database_url.startswith("sqlite")  # where writes count that are captured
        assert clocks == sorted(clocks if lite else set(clocks))


async def test_a_request_is_looked_for_until_all_who_seek_it_have_let_it_go(database_url: str) -> None:
    """As two connections of one client do."""
    stage, request = Bank(), RequestKey("session", 1, 2)
    async with stage.open(database_url) as test:
        live = stage.live(test)
        for _ in range(2):
            live.seek(request)
        live.let_go(request)
        assert live.view().expect() == 1
        await settle(live)
        assert request not in live.shown

        async def record(session: Session) -> None:
            assert await test.engine.store.requests.record(session, request, "", test.clock.now())

        await in_transaction(test, record)
        live.seek(request)
        assert live.view().expect() == 2
        await settle(live)
        live.let_go(request)
        assert live.shown == {request: 2}
        live.let_go(request)
        assert live.shown == {}


async def test_a_view_takes_so_many_queries_and_none_once_it_is_closed(database_url: str) -> None:
    stage = Bank()
    async with stage.open(database_url) as test:
        live = stage.live(test)
        view = live.view()
        for number in range(MOST_QUERIES):
            view.add(number, stage.amount, {"key": str(number)})
        with pytest.raises(LimitExceeded, match="can watch 1000 queries"):
            view.add(MOST_QUERIES, stage.total, {})
        view.remove(0)
        view.add(MOST_QUERIES, stage.total, {})
        view.close()
        await settle(live)
        assert (taken(view), view.closed, stage.runs, live.report()) == (None, True, 0, [])


async def test_an_answer_is_kept_for_who_comes_back_as_long_as_it_is_valid(database_url: str) -> None:
    stage = Bank()
    async with stage.open(database_url) as test:
        live = stage.live(test)
        view = live.view()
        view.add(0, stage.total, {})
        for _ in range(2):  # the table is captured from the second time on
            await settle(live)
        runs = stage.runs
        view.remove(0)
        assert await live.tick() == 30, "nobody watches: there is nothing to do until it is dropped"
        test.clock.advance(timedelta(seconds=29))
        view.add(1, stage.total, {})
        assert taken(view) is None
        await settle(live)
        assert (taken(view), stage.runs) == ({1: 0}, runs)
        view.remove(1)
        await stage.insert(test, Account(owner="a", amount=1))
        view.add(2, stage.total, {})
        await settle(live)
        assert (taken(view), stage.runs) == ({2: 1}, runs + 1)
        view.remove(2)
        test.clock.advance(timedelta(seconds=30))
        await live.tick()
        assert live.report() == []
        view.add(3, stage.total, {})
        for _ in range(2):
            await settle(live)
        runs = stage.runs
        view.close()
        await settle(live)
        assert [one.watchers for one in live.report()] == [0]
        live.view().add(0, stage.amount, {"key": "another"})
        await sql(test, "update account set amount = 2")
        await settle(live)
        assert ([one.watchers for one in live.report()], stage.runs) == ([1], runs), "it is dropped, and not run"


async def test_answers_of_so_many_bytes_are_watched_and_kept_ones_make_room(sqlite_url: str) -> None:
    stage = Bank()
    async with stage.open(sqlite_url, max_watched_bytes=8) as test:
        keys = await stage.insert(test, Account(owner="a", amount=1000), Account(owner="b", amount=1000))
        live = stage.live(test)
        views = [live.view() for _ in keys]
        for view, key in zip(views, keys, strict=True):
            view.add(0, stage.amount, {"key": key})
        await settle(live)
        assert not live.has_room
        with pytest.raises(LimitExceeded, match="answers of 8 bytes"):
            views[0].add(1, stage.total, {})
        views[1].close()
        assert (live.has_room, len(live.report())) == (True, 2)
        views[0].add(1, stage.total, {})
        for _ in range(2):
            await settle(live)
        assert (taken(views[0]), len(live.report()), live.has_room) == ({0: 1000, 1: 2000}, 2, False)


async def test_so_many_answers_are_kept_and_no_more(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MOST_KEPT", 20)
    stage = Bank()
    async with stage.open(database_url) as test:
        live = stage.live(test)
        for part in range(2):
            view = live.view()
            for number in range(12):
                view.add(number, stage.amount, {"key": f"{part} {number}"})
            await settle(live)
            view.close()
        kept = [one.arguments for one in live.report()]
        assert (len(kept), kept[0], kept[-1]) == (20, "key='0 4'", "key='1 11'")
