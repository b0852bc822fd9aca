"""`TestApp`: an app on a real store, with a clock that the test moves and jobs that run when the test says so."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.app import App, Backend
from penstock.jobs.job import JobStatus
from penstock.services.scheduler import CronScheduler
from penstock.services.worker import Worker
from penstock.testing.clock import TestClock

_MOST_JOBS = 10_000
_FARTHEST = timedelta(days=366)


class JobsFailed(AssertionError):
    """Jobs failed while a test ran them.

    Attributes:
        jobs: How they stand, with error and traceback.
    """

    def __init__(self, jobs: Sequence[JobStatus]) -> None:
        lines = [f"{len(jobs)} job(s) failed:"]
        lines += [f"\n{job.id} {job.function}({job.args}): {job.error}\n{job.traceback or ''}" for job in jobs]
        super().__init__("\n".join(lines))
        self.jobs = list(jobs)


class TestApp(Backend):
    """A backend for tests; use it in ``async with``.

    Args:
        app: The app under test.
        database: URL of a database of the test's own; by default a SQLite file that is gone afterwards.
        clock: The clock; a new `TestClock` by default.
        **settings: Settings that differ; see `Config`.

    Attributes:
        clock: Move it with ``clock.advance(timedelta(…))``.
        worker: The worker whose ticks `run_until_idle` makes.
        cron_scheduler: The scheduler whose ticks `run_until` makes.
    """

    __test__ = False

    clock: TestClock
    worker: Worker
    cron_scheduler: CronScheduler

    def __init__(
        self, app: App, database: str | None = None, *, clock: TestClock | None = None, **settings: Any
    ) -> None:
        self._folder = None if database else tempfile.TemporaryDirectory(prefix="penstock-test-")
        if self._folder is not None:
            database = f"sqlite:///{Path(self._folder.name) / 'test.db'}"
            settings.setdefault("synchronous", "normal")
        self.clock = clock or TestClock()
        super().__init__(app, app.config(database=database, **settings), self.clock)

    async def __aenter__(self) -> Self:
        await self.start()
        worker, scheduler = self.make_service("worker"), self.make_service("scheduler")
        assert isinstance(worker, Worker) and isinstance(scheduler, CronScheduler)  # noqa: PT018, S101 - for type checkers
        self.worker, self.cron_scheduler = worker, scheduler
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.worker.running:
            await self.worker.kill()
        await self.stop()
        if self._folder is not None:
            self._folder.cleanup()

    async def run_until_idle(self, *, advance: bool = True, raise_errors: bool = True) -> int:
        """Run jobs until none is left; how many attempts were made.

        Args:
            advance: Move the clock to the time of jobs scheduled for later, up to a year ahead, and run these too.
            raise_errors: Raise if a job failed meanwhile.

        Raises:
            JobsFailed: A job failed.
            AssertionError: Jobs go on scheduling jobs for ever.
        """
        known = {job.id for job in await self.jobs("failed", _MOST_JOBS)}
        until, attempts = self.clock.now() + _FARTHEST, 0
        while True:
            pause = await self.worker.tick()
            started = list(self.worker.running.values())
            attempts += len(started)
            if attempts > _MOST_JOBS:
                raise AssertionError(f"more than {_MOST_JOBS} jobs ran, and there is no end in sight")
            if started:
                await self.worker.wait_for_jobs()
                continue
            if self.worker.unsettled or not pause:
                continue
            next_run_at = self.worker.next_run_at
            if next_run_at is None or next_run_at > until or (not advance and next_run_at > self.clock.now()):
                break
            if next_run_at > self.clock.now():
                self.clock.advance(next_run_at - self.clock.now())
        if raise_errors:
            failed = [job for job in await self.jobs("failed", _MOST_JOBS) if job.id not in known]
            if failed:
                raise JobsFailed(failed)
        return attempts

    async def run_until(self, time: datetime, *, raise_errors: bool = True) -> int:
        """Let the time pass: crons and jobs run when they are due, and then it is `time`; how many attempts were made.

        Args:
            time: Until when; aware. What is due at this very time runs.
            raise_errors: Raise if a job failed meanwhile.

        Raises:
            JobsFailed: A job failed.
            ValueError: The time is past.
        """
        attempts = 0
        while True:
            while await self.cron_scheduler.tick() == 0:
                pass
            ran = await self.run_until_idle(advance=False, raise_errors=raise_errors)
            attempts += ran
            due = [at for at in (self.cron_scheduler.next_at, self.worker.next_run_at) if at is not None and at <= time]
            if due:
                self.clock.advance(max(min(due) - self.clock.now(), timedelta(0)))
            elif not ran:
                break
        self.clock.advance(time - self.clock.now())
        return attempts

    async def assert_scheduled(self, function: Any, /, **args: Any) -> JobStatus:
        """The pending job of a function whose arguments contain these; fails if there is none."""
        pending = [job for job in await self.jobs("pending", _MOST_JOBS) if job.function == function.name]
        for job in pending:
            if all(name in job.args and job.args[name] == value for name, value in args.items()):
                return job
        raise AssertionError(
            f"no pending job of {function.name} with {args}; pending are {[job.args for job in pending]}"
        )
