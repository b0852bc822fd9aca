"""Reactive tasks in stories: changes are planned and their jobs run when the story says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

from penstock import App
from penstock.jobs.job import JobStatus
from penstock.services.planner import Planner
from penstock.testing import TestApp


class TaskApp(TestApp):
    """A test app with a planner that ticks when it is told to."""

    planner: Planner

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        planner = self.make_service("planner")
        assert isinstance(planner, Planner)
        self.planner = planner
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.planner.finish()
        await super().__aexit__(*error)  # type: ignore[arg-type]  # what it was given

    async def plan(self) -> None:
        """Plan all that has changed."""
        while await self.planner.tick() == 0:
            pass

    async def settle_down(self, *, advance: bool = True, raise_errors: bool = False) -> int:
        """Plan and run until there is nothing left; how many attempts were made."""
        attempts = idle = 0
        while idle < 2:  # a row that changed while it ran may be launched beside the last look for work
            await self.plan()
            ran = await self.run_until_idle(advance=advance, raise_errors=raise_errors)
            attempts += ran
            idle = 0 if ran else idle + 1
        return attempts

    async def only_job(self) -> JobStatus:
        """The only job there is."""
        (job,) = await self.jobs()
        return job


@asynccontextmanager
async def two_on(app: App, url: str, **settings: Any) -> AsyncIterator[tuple[TaskApp, TaskApp]]:
    """Two processes of one app on one database, with one clock."""
    async with TaskApp(app, url, **settings) as first, TaskApp(app, url, clock=first.clock, **settings) as second:
        yield first, second
