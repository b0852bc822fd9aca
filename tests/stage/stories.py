"""Backends on which tests tell stories: an app that writes what a test says, and services whose ticks a test makes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from penstock import ActionCtx, App, Id, JobId, MutationCtx, QueryCtx, Table, TaskCtx
from penstock.app import Backend
from penstock.jobs.job import JobStatus
from penstock.services.planner.planner import Planner
from penstock.services.worker.worker import Worker
from penstock.store.nouns.tasks import RecordRow, TaskRow
from penstock.store.session import Statement, reading
from penstock.testing import TestApp, TestClock
from stage.feed import write

_seeds = itertools.count()
Step = Callable[[MutationCtx], Awaitable[Any]]
Handler = Callable[[TaskCtx[Any]], Awaitable[None]]


@dataclass(frozen=True)
class Ran:
    """A run that came to its end.

    Attributes:
        task: The name of the task.
        doc_id: The id of the row.
        change: Why it ran.
        attempt: Which attempt it was.
        values: What was watched.
    """

    task: str
    doc_id: Any
    change: str
    attempt: int
    values: dict[str, Any]


class Stage:
    """An app, one mutation that does what the test says, and what its tasks have run for.

    Attributes:
        app: The app.
        ran: The runs, in order.
        error: What handlers raise, if anything.
    """

    def __init__(self, *tables: type[Table]) -> None:
        self.app = App(tables=tables)
        self.ran: list[Ran] = []
        self.error: Exception | None = None
        self._steps: dict[int, Step] = {}
        self._results: dict[int, Any] = {}
        self._numbers = itertools.count()

        @self.app.mutation
        async def act(ctx: MutationCtx, number: int) -> None:
            self._results[number] = await self._steps[number](ctx)

        self._act = act

    def task(self, table: type[Table], name: str = "react", *, handler: Handler | None = None, **options: Any) -> None:
        """Declare a task whose handler keeps what it ran for."""

        async def react(ctx: TaskCtx[Any]) -> None:
            if self.error is not None:
                raise self.error
            if handler is not None:
                await handler(ctx)
            self.ran.append(Ran(name, ctx.doc_id, ctx.change, ctx.attempt, ctx.watched_values))

        react.__name__ = name
        self.app.reactive_task(table, name=name, **options)(react)

    def open(self, url: str, **settings: Any) -> TestApp:
        """The app under test; of several on one database each makes ids of its own."""
        return TestApp(self.app, url, **{"clock": TestClock(seed=next(_seeds)), **settings})

    # ----- writing rows

    async def do(self, test: Backend, step: Step) -> Any:
        """Do something in a mutation; what it returns. Handlers that run at the same time may."""
        number = next(self._numbers)
        self._steps[number] = step
        await test.run_mutation(self._act, number=number)
        return self._results.pop(number)

    async def insert(self, test: Backend, *rows: Table) -> list[Id[Any]]:
        async def step(ctx: MutationCtx) -> list[Id[Any]]:
            return [await ctx.db.insert(row) for row in rows]

        found: list[Id[Any]] = await self.do(test, step)
        return found

    async def patch(self, test: TestApp, table: type[Table], doc_id: Any, **fields: Any) -> None:
        async def step(ctx: MutationCtx) -> None:
            await ctx.db.patch(table, doc_id, **fields)

        await self.do(test, step)

    async def delete(self, test: TestApp, table: type[Table], doc_id: Any) -> None:
        async def step(ctx: MutationCtx) -> None:
            await ctx.db.delete(table, doc_id)

        await self.do(test, step)

    # ----- looking

    def taken(self) -> list[Ran]:
        ran, self.ran[:] = list(self.ran), []
        return ran

    def changes(self) -> list[str]:
        return [one.change for one in self.taken()]

    def ids(self) -> list[Any]:
        return [one.doc_id for one in self.taken()]


async def task_row(test: TestApp, name: str = "react") -> TaskRow:
    return next(row for row in await test.engine.store.tasks.list() if row.plan.name == name)


async def record_of(test: TestApp, doc_id: Any, name: str = "react") -> RecordRow | None:
    task = await task_row(test, name)
    session = await test.engine.store.begin_read()
    try:
        return await test.engine.store.tasks.find(session, task.id, f'["{doc_id}"]')
    finally:
        await session.rollback()


async def known_record(test: TestApp, doc_id: Any, name: str = "react") -> RecordRow:
    record = await record_of(test, doc_id, name)
    assert record is not None
    return record


async def status_of(backend: TestApp, run: JobId) -> JobStatus:
    found = await backend.job(run)
    assert found is not None
    return found


async def rows_of(backend: TestApp, table: str) -> list[list[Any]]:
    store = backend.engine.store
    sql = store.dialect.translate(f"select * from penstock.{table}")
    async with reading(store.begin_read) as session:
        _, rows = await session.fetch_read_only(sql, [], 100, 10**6)
        return [list(row) for row in rows]


async def settle(test: TestApp, passing: timedelta = timedelta(0)) -> int:
    if passing:
        test.clock.advance(passing)
    return await test.run_until_idle(advance=not passing, raise_errors=False)


async def silence(test: TestApp, table: str = "item") -> None:
    """Drop the triggers that capture changes of a table, as someone may by hand."""
    postgres = test.engine.store.dialect.schemas
    session = await test.engine.store.begin_read()
    try:
        found = await session.fetch(
            Statement(
                f"select tgname from pg_trigger where tgrelid = '{table}'::regclass and not tgisinternal"
                if postgres
                else f"select name from sqlite_schema where type = 'trigger' and tbl_name = '{table}'"
            )
        )
    finally:
        await session.rollback()
    assert found
    await write(test.engine.store, *(f"drop trigger {row[0]}{f' on {table}' * postgres}" for row in found))


async def lose(test: TestApp, number: int) -> None:
    """Let the feed tell that it has lost a change of an interest, as its triggers do."""
    if test.engine.store.dialect.schemas:
        await write(
            test.engine.store,
            "insert into penstock.change (slot, xid, interests, changed_at, kinds) values (penstock.current_slot(), "
            f"pg_current_xact_id()::text::int8, '{number}', clock_timestamp(), 'lost')",
        )
    else:
        await write(
            test.engine.store,
            "insert into penstock_change (interests, changed_at, kinds) "
            f"values ('[{number}]', '2030-01-01 00:00:00.000000+00:00', 'lost')",
        )


Tell = Callable[[Callable[[TestApp], Awaitable[None]]], None]


def tell_in(app: App) -> tuple[Any, Any, Any]:
    """A mutation, a query and an action of an app, each of which runs the story that it is given."""

    @app.internal_mutation
    async def write(ctx: MutationCtx, story: Any) -> Any:
        return await story(ctx)

    @app.internal_query
    async def read(ctx: QueryCtx, story: Any) -> Any:
        return await story(ctx)

    @app.internal_action
    async def act(ctx: ActionCtx, story: Any) -> Any:
        return await story(ctx)

    return write, read, act


@contextmanager
def one_backend(app: App, database: str, **settings: Any) -> Iterator[Tell]:
    """Tell many stories on one backend, such as all examples of a property: it is opened once for all of them."""
    with asyncio.Runner() as runner:
        backend = TestApp(app, database, **settings)
        runner.run(backend.__aenter__())

        async def tell(story: Callable[[TestApp], Awaitable[None]]) -> None:
            await story(backend)

        try:
            yield lambda story: runner.run(tell(story))
        finally:
            runner.run(backend.__aexit__(None, None, None))


class Crew:
    def __init__(self, backend: Backend, clock: TestClock) -> None:
        worker, planner = backend.make_service("worker"), backend.make_service("planner")
        assert isinstance(worker, Worker)
        assert isinstance(planner, Planner)
        self.backend, self.clock, self.worker, self.planner = backend, clock, worker, planner

    async def plan(self) -> None:
        while not await self.planner.tick():
            pass

    async def work(self) -> None:
        await self.worker.tick()
        await self.worker.wait_for_jobs()
        await self.worker.tick()

    async def settle_down(self) -> None:
        """Plan and work until there is nothing to do; time passes for runs that are put off."""
        quiet = 0
        while quiet < 2:
            await self.plan()
            await self.worker.tick()
            if self.worker.running or self.worker.open_outcomes:
                await self.worker.wait_for_jobs()
                quiet = 0
                continue
            quiet += 1
            due = self.worker.next_run_at
            if due is not None:
                self.clock.advance(max(due - self.clock.now(), timedelta(0)))
                quiet = 0

    async def run(self, name: str, **args: Any) -> Any:
        """Call a mutation of `programs.reacting`."""
        from programs import reacting  # noqa: PLC0415 - a program, with tables that other tests have too

        return await self.backend.run_mutation(getattr(reacting, name), **args)

    async def stop(self) -> None:
        if self.worker.running:
            await self.worker.kill()
        await self.worker.finish()
        await self.planner.finish()


@asynccontextmanager
async def crew(app: App, url: str, clock: TestClock | None = None, **settings: Any) -> AsyncIterator[Crew]:
    time = clock or TestClock()
    async with app.open(url, clock=time, **settings) as backend:
        made = Crew(backend, time)
        try:
            yield made
        finally:
            await made.stop()


class TaskApp(TestApp):
    async def settle_down(self, *, advance: bool = True, raise_errors: bool = False) -> int:
        """Plan and run until there is nothing left; how many attempts were made."""
        return await self.run_until_idle(advance=advance, raise_errors=raise_errors)

    async def only_job(self) -> JobStatus:
        (job,) = await self.jobs()
        return job


@asynccontextmanager
async def two_on(app: App, url: str, **settings: Any) -> AsyncIterator[tuple[TaskApp, TaskApp]]:
    """Two processes of one app on one database, with one clock."""
    async with TaskApp(app, url, **settings) as first, TaskApp(app, url, clock=first.clock, **settings) as second:
        yield first, second
