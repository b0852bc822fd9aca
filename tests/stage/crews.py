"""A backend with a worker and a planner whose ticks a test makes, and SQL past penstock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from stage import reacting

from penstock import App
from penstock.app import Backend
from penstock.services.planner.planner import Planner
from penstock.services.worker.worker import Worker
from penstock.store.session import Row, Statement
from penstock.testing import TestClock


class Crew:
    """A backend with a worker and a planner whose ticks the test makes."""

    def __init__(self, backend: Backend, clock: TestClock) -> None:
        worker, planner = backend.make_service("worker"), backend.make_service("planner")
        assert isinstance(worker, Worker)
        assert isinstance(planner, Planner)
        self.backend, self.clock, self.worker, self.planner = backend, clock, worker, planner

    async def plan(self) -> None:
        """Plan until there is nothing to plan."""
        while not await self.planner.tick():
            pass

    async def work(self) -> None:
        """Run what may run now."""
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
        """Call a mutation of the program."""
        return await self.backend.run_mutation(getattr(reacting, name), **args)

    async def stop(self) -> None:
        """Leave the database as a process does that ends."""
        if self.worker.running:
            await self.worker.kill()
        await self.worker.finish()
        await self.planner.finish()


@asynccontextmanager
async def crew(app: App, url: str, clock: TestClock | None = None, **settings: Any) -> AsyncIterator[Crew]:
    """One, on an app that looked at all rows already."""
    time = clock or TestClock()
    async with app.open(url, clock=time, **settings) as backend:
        made = Crew(backend, time)
        try:
            yield made
        finally:
            await made.stop()


async def run_sql(backend: Backend, *statements: str) -> list[Row]:
    """Run statements in one transaction, as another program does; the rows of the last one."""
    session, rows = await backend.engine.store.begin_write(), list[Row]()
    try:
        for sql in statements:
            rows = list(await session.fetch(Statement(sql), ()))
        await session.commit()
    finally:
        await session.rollback()
    return rows
