"""Backends on which tests tell stories: functions that run a part of a test, and services whose ticks a test makes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any

from stage.outboxes import sql

from penstock import ActionCtx, App, MutationCtx, QueryCtx
from penstock.app import Backend
from penstock.jobs.job import JobStatus
from penstock.services.planner.planner import Planner
from penstock.services.worker.worker import Worker
from penstock.testing import TestApp, TestClock

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
        """Call a mutation of `stage.reacting`."""
        from stage import reacting  # noqa: PLC0415 - a program, with tables that other tests have too

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


run_sql = sql  # in one transaction, as another program does


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
