"""A differential fuzz of live queries: whatever is watched, by whom, and whoever writes, answers are as run afresh.

A seed makes up an app with tables, queries, clients and writers. Everything happens in one task, at moments that the
seed chooses, also inside of ticks: so a seed repeats itself.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from flow.livetables import Plan, Writer, make_plan, make_table, other_program, page_options, run_plan, scan_of
from stage.stories import tell_in
from stage.watching import PagedList, Subscription

from penstock import App, Page, PaginationOptions, PenstockError, QueryCtx, public
from penstock.clock import Random, SystemClock, random_of
from penstock.identity.caller import ANONYMOUS, SYSTEM, Caller
from penstock.identity.identity import Identity
from penstock.live.entry import Answer, Entry
from penstock.schema.table import definition_of
from penstock.services.live import batch
from penstock.services.live.live import LiveQueries
from penstock.store.session import Session
from penstock.store.sql.statements import TableStatements
from penstock.testing import TestApp, TestClock
from penstock.transaction import scan

_CALLERS = [ANONYMOUS, SYSTEM, *(Caller(Identity(subject=name, issuer="https://a.example")) for name in "ab")]


class _Runner:
    """The runner of a backend, at whose runs other things happen, and some of whose runs are held."""

    def __init__(self, fuzz: Fuzz, runner: Any) -> None:
        self._fuzz, self._runner = fuzz, runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    async def watch(self, session: Session, entry: Entry) -> Answer:
        await self._fuzz.moment()
        answer: Answer = await self._runner.watch(session, entry)
        await self._fuzz.hold()
        return answer


class Client:
    def __init__(self, fuzz: Fuzz, caller: Caller) -> None:
        self._fuzz = fuzz
        self.view = fuzz.live.view(caller)
        self.shown: list[Subscription] = []
        self._numbers = itertools.count()

    def add(self, function: Any, arguments: dict[str, Any]) -> None:
        self.shown.append(Subscription(self.view, next(self._numbers), function, arguments))

    def leave(self, dice: Random) -> None:
        if self.shown:
            self.shown.pop(dice.randrange(len(self.shown))).close()

    def reconnect(self) -> None:
        """Come back over another connection, with the journals of the answers."""
        caller = self.view.caller
        self.view.close()
        self.view = self._fuzz.live.view(caller)
        for one in self.shown:
            one.watch(self.view)

    async def look(self) -> None:
        if (step := self.view.step()) is not None:
            for one in self.shown:
                before = one.answer
                one.take(step)
                if one.answer is not before and one.answer is not None and step.tick == self._fuzz.live.newest:
                    await self._fuzz.check_news(self.view, one, None if before is None else before.journal)

    def close(self) -> None:
        self.view.close()


class Fuzz:
    """One seed: its app, and what happens to it."""

    def __init__(self, seed: int, url: str) -> None:
        self.dice = random_of(seed)
        self.store, self.url, self.seed = "sqlite" if url.startswith("sqlite") else "postgres", url, seed
        self.tables = [make_table(self.dice, f"t{place}", self.store) for place in range(self.dice.randint(1, 3))]
        self.plans = [make_plan(self.dice, self.tables) for _ in range(12)]
        self.paged = [make_plan(self.dice, self.tables, "page") for _ in range(3)]
        self.options = [page_options(self.dice) for _ in range(2)]
        self.app = App(tables=[made.table for made in self.tables])
        self.write, self.read, _ = tell_in(self.app)
        self.said: list[str] = []
        self.calm, self.holds, self.writes, self.begun_with = True, False, 0, 0
        self.time, self.held, self.let_go = 0.0, set[Any](), asyncio.Event()
        self.clients: list[Client] = []
        self.lists: list[tuple[PagedList, Plan]] = []

        async def ask(ctx: QueryCtx, plan: Plan) -> Any:
            return await ctx.run_query(self.nested, number=self.plans.index(plan))

        @self.app.query(access=public)
        async def asked(ctx: QueryCtx, number: int) -> str:
            return repr(await run_plan(ctx, self.plans[number], ask))

        @self.app.query(access=public)
        async def nested(ctx: QueryCtx, number: int) -> str:
            return repr(await scan_of(ctx, self.plans[number]).take(self.plans[number].size))

        @self.app.query(access=public)
        async def listed(
            ctx: QueryCtx, number: int, pagination_opts: PaginationOptions, most: int | None = None
        ) -> Page[Any]:
            plan = self.paged[number]
            options = (
                pagination_opts if most is None else pagination_opts.model_copy(update={"maximum_rows_read": most})
            )
            found: Page[Any] = await scan_of(ctx, plan).paginate(options)
            return Page(**{**dict(found), "page": [repr(row) for row in found.page]})

        self.asked, self.nested, self.listed = asked, nested, listed

    # ----- the whole

    async def run(self, batches: int) -> None:
        """Let things happen, and look after each batch of them whether all answers are right."""
        with other_program(self.url) as outside:
            for statement in (one for made in self.tables for one in made.created):
                outside.execute(statement)
            clock = TestClock(seed=self.seed)
            async with TestApp(self.app, self.url, clock=clock, max_rows_read=60) as self.test:
                self.writer = Writer(self.dice, self.tables, outside, self.test, self.write)
                with self.patched():
                    await self.go_through(batches)

    async def go_through(self, batches: int) -> None:
        runner: Any = _Runner(self, self.test.runner)
        self.live = LiveQueries(runner, self.app.definitions())
        try:
            for _ in range(20):
                self.come()
            for _ in range(batches):
                await self.batch()
            await self.leave()
        finally:
            self.let_go.set()
            await self.live.close()

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Read in small pieces; let things happen inside of ticks; let runs take no time, but those that are held."""
        patches, look = pytest.MonkeyPatch(), LiveQueries._look

        async def looked(live: LiveQueries, session: Session) -> Any:
            await self.moment()
            found = await look(live, session)
            await self.moment()
            return found

        patches.setattr(LiveQueries, "_look", looked)
        patches.setattr(scan, "_FIRST_PIECE", 2)
        patches.setattr(scan, "_LARGEST_PIECE", 4)
        patches.setattr(TableStatements, "piece_rows", lambda _statements, count: min(count, 3))
        patches.setattr(batch, "profile_timer", lambda: self.time)
        patches.setattr(batch.Batch, "_spend", lambda _batch, task: self.spend(task))
        try:
            yield
        finally:
            patches.undo()

    async def batch(self) -> None:
        """Some writes, comings and goings, and the ticks that follow."""
        dice = self.dice
        self.said.clear()
        self.calm, self.holds = dice.random() < 0.5, dice.random() < 0.2
        for _ in range(dice.randint(1, 2)):
            await self.happen(dice.choice(["write", "write", "write", "come", "go", "look", "tick"]))
        if dice.random() < 0.1:
            self.test.clock.advance(timedelta(seconds=dice.choice([1, 40, 70])))
        if dice.random() < 0.3:
            self.said.append("the indexer looks")
            await self.test.indexer.tick()
        await self.settle()
        await self.check()

    async def leave(self) -> None:
        for client in self.clients:
            client.close()
        for shown, _ in self.lists:
            shown.close()
        for _ in range(2):
            self.test.clock.advance(timedelta(minutes=1))
            await self.live.tick()
        assert self.live.report() == []

    async def settle(self) -> None:
        """Make ticks until all have their answers."""
        restless = 0 if self.calm and not self.holds else self.dice.randint(1, 4)
        enough = restless + 2 if restless else 0  # what is held may take that long
        for count in range(60):
            if count >= restless:
                self.calm, self.holds = True, False
                self.let_go.set()
            writes = self.writes
            self.test.clock.advance(timedelta(seconds=10))  # so that tables that are not captured are polled
            await self.tick()
            if count < enough or writes != self.writes or any(one.stale for one in self.live.report()):
                continue
            done = all(one.answer is not None for one in self.subscriptions())
            if done and not any(shown.splitting and not shown.fails for shown, _ in self.lists):
                return
        left = [one.asked for one in self.subscriptions() if one.answer is None]
        raise AssertionError(self.tell(f"no rest: {left} {self.live.report()}", None, None, None))

    async def tick(self) -> None:
        self.begun_with = self.writes
        await self.live.tick()
        await SystemClock().sleep(0)
        await self.look()
        if self.calm and "a run is held" not in self.said:
            await self.check_lists([one for one in self.lists if one[1].is_live])

    async def look(self) -> None:
        for client in self.clients:
            await client.look()
        for shown, _ in self.lists:
            with suppress(PenstockError):  # of a page
                shown.render()

    def subscriptions(self) -> list[Subscription]:
        listed = [one for shown, _ in self.lists for one in shown.subscriptions]
        return [*listed, *(one for client in self.clients for one in client.shown)]

    # ----- what happens

    async def moment(self) -> None:
        """A moment inside of a tick, at which other things may happen."""
        if not self.calm and self.dice.random() < 0.1:
            await self.happen(self.dice.choice(["write", "write", "come", "go", "look"]))

    async def hold(self) -> None:
        """Let a run take long."""
        task = asyncio.current_task()
        if not self.holds or self.dice.random() < 0.7:
            return
        self.said.append("a run is held")
        self.time += 0.1
        self.let_go.clear()
        self.held.add(task)
        try:
            await self.let_go.wait()
        finally:
            self.held.discard(task)

    async def spend(self, task: asyncio.Task[None]) -> None:
        """Wait until all queries of a batch are done, or one is held."""
        while not task.done() and task not in self.held:
            await asyncio.wait([task], timeout=0.001)

    async def happen(self, what: str) -> None:
        if what == "write":
            self.writes += 1
            self.said.append(await self.writer.write())
        elif what == "tick":
            self.said.append("a tick")
            await self.tick()
        elif what == "look":
            self.said.append("clients look")
            for client in self.clients:
                await client.look()
        elif what == "go":
            self.go()
        else:
            self.come()

    def come(self) -> None:
        dice = self.dice
        choice = dice.random()
        if choice < 0.25 and len(self.lists) < 4:
            number = dice.randrange(len(self.paged))
            self.said.append(f"a list of {self.paged[number]} is opened")
            arguments = {"number": number, "most": dice.choice([None, None, 4])}
            shown = PagedList(self.live, self.listed, arguments, dice.randint(1, 3))
            self.lists.append((shown, self.paged[number]))
        elif choice < 0.35 and self.lists:
            self.said.append("more of a list is loaded")
            shown = dice.choice(self.lists)[0]
            with suppress(PenstockError):  # of its last page
                shown.load_more(dice.randint(1, 3))
        else:
            if not self.clients or (choice < 0.5 and len(self.clients) < 4):
                self.clients.append(Client(self, dice.choice(_CALLERS)))
            client = dice.choice(self.clients)
            if len(client.shown) > 5:
                client.leave(dice)
            if dice.random() < 0.7:
                number = dice.randrange(len(self.plans))
                self.said.append(f"{number}: {self.plans[number]} is watched for {client.view.caller.key[:60]}")
                client.add(self.asked, {"number": number})
            else:
                number = dice.randrange(len(self.paged))
                options = dice.choice(self.options)
                self.said.append(f"a page of {self.paged[number]} is watched: {options}")
                client.add(self.listed, {"number": number, "pagination_opts": options})

    def go(self) -> None:
        dice = self.dice
        choice = dice.random()
        if choice < 0.15 and self.lists:
            self.said.append("a list is closed")
            self.lists.pop(dice.randrange(len(self.lists)))[0].close()
        elif choice < 0.3 and self.lists:
            self.said.append("a list is connected anew")
            dice.choice(self.lists)[0].reconnect()
        elif self.clients:
            place = dice.randrange(len(self.clients))
            client = self.clients[place]
            if choice < 0.4:
                self.said.append("a client is gone")
                self.clients.pop(place).close()
            elif choice < 0.6:
                self.said.append("a client reconnects")
                client.reconnect()
            elif choice < 0.8:
                caller = dice.choice(_CALLERS)
                self.said.append(f"a client becomes {caller.key[:60]}")
                client.view.become(caller)
                for one in client.shown:
                    one.dirty = True
            else:
                self.said.append("a query is left")
                client.leave(dice)

    # ----- checking

    async def check(self) -> None:
        known: dict[Any, Answer] = {}
        session = await self.test.engine.store.begin_read()
        try:
            await session.savepoint("query")
            for view, one in self.watched():
                assert one.answer is not None
                fresh = await self.fresh(session, known, view, one, one.answer.journal)
                assert fresh.digest == one.answer.digest, self.tell("stale", view, one, fresh)
        finally:
            await session.rollback()
        await self.check_lists(self.lists)

    async def check_lists(self, lists: list[tuple[PagedList, Plan]]) -> None:
        for shown, plan in lists:
            if definition_of(plan.made.table).rules is None:  # which hold for the list, and not for the whole
                await self.check_list(shown, plan)

    def watched(self) -> Iterator[tuple[Any, Subscription]]:
        for client in self.clients:
            yield from ((client.view, one) for one in client.shown)
        for shown, _ in self.lists:
            yield from ((shown.view, one) for one in shown.subscriptions)

    async def fresh(
        self, session: Session, known: dict[Any, Answer], view: Any, one: Subscription, journal: str | None
    ) -> Answer:
        function, arguments = one.asked
        key = (function.name, repr(arguments), view.caller.key, journal)
        if key not in known:
            entry = Entry(("", "", "", None), function, arguments, view.caller, journal, 0, 0.0)
            answer = await self.test.runner.watch(session, entry)
            assert answer is not None, "no conflict"
            known[key] = answer
        return known[key]

    async def check_news(self, view: Any, one: Subscription, journal: str | None) -> None:
        """A new answer is that of the query with the pages that its client had before, be it those of nobody."""
        given, one.dirty = one.dirty, False
        plan = self.paged[one.asked[1]["number"]] if one.asked[0] is self.listed else None
        if plan is None or given or self.writes != self.begun_with or not plan.is_live:
            return
        session = await self.test.engine.store.begin_read()
        try:
            await session.savepoint("query")
            fresh = await self.fresh(session, {}, view, one, journal)
            assert one.answer is not None
            assert fresh.digest == one.answer.digest, self.tell("pages of another client", view, one, fresh)
        finally:
            await session.rollback()

    async def check_list(self, shown: PagedList, plan: Plan) -> None:
        """Pages that are joined are the list, as far as they have come."""
        try:
            render = shown.render()
            rows = await self.test.run_query(self.read, lambda ctx: scan_of(ctx, plan).take(59))
        except PenstockError:
            return
        everything = [repr(row) for row in rows]
        assert render.rows == everything[: len(render.rows)], self.tell(f"list {render} {everything}", None, None, None)

    def tell(self, what: str, view: Any, one: Any, fresh: Any) -> str:
        lines = [f"{what}: seed {self.seed} on {self.store}", *self.said]
        if one is not None:
            function, arguments = one.asked
            plan = (self.paged if function is self.listed else self.plans)[arguments["number"]]
            entry = view.queries[one._number]
            lines += [f"{function.name} {arguments}: {plan}", f"for {view.caller.key}", plan.made.said]
            lines += [f"shown {one.answer.result!r} {one.answer.error!r} {one.answer.journal}"]
            lines += [f"right {fresh.result!r} {fresh.error!r} {fresh.journal}", *map(str, entry.noted)]
            lines += [f"{entry.key} {entry.journal} {entry.causes} {entry.stale}"]
        return "\n".join(lines)
