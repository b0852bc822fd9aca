"""Reactive tasks in stories: changes are planned and their jobs run when the story says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from penstock import App
from penstock.jobs.job import JobStatus
from penstock.testing import TestApp


class TaskApp(TestApp):
    """A test app of reactive tasks."""

    async def settle_down(self, *, advance: bool = True, raise_errors: bool = False) -> int:
        """Plan and run until there is nothing left; how many attempts were made."""
        return await self.run_until_idle(advance=advance, raise_errors=raise_errors)

    async def only_job(self) -> JobStatus:
        """The only job there is."""
        (job,) = await self.jobs()
        return job


@asynccontextmanager
async def two_on(app: App, url: str, **settings: Any) -> AsyncIterator[tuple[TaskApp, TaskApp]]:
    """Two processes of one app on one database, with one clock."""
    async with TaskApp(app, url, **settings) as first, TaskApp(app, url, clock=first.clock, **settings) as second:
        yield first, second
