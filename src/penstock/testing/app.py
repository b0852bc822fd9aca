"""`TestApp`: an app on a real store, with a clock that the test moves and jobs that run when the test says so."""

from __future__ import annotations

import asyncio
import importlib
import json
import tempfile
from collections import Counter
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from penstock.api.backend import CallerBackend
from penstock.app import App, Backend
from penstock.calls.handlers.taskrun import TaskAttempt
from penstock.errors import of_extra
from penstock.functions.function import name_of
from penstock.identity.identity import Identity
from penstock.jobs.job import Job, JobStatus
from penstock.observe.practices import Finding
from penstock.outbox.trouble import Trouble
from penstock.server.asgi import asgi_app
from penstock.services.indexer import Indexer
from penstock.services.planner.planner import Planner
from penstock.services.relay.relay import Relay
from penstock.services.scheduler import CronScheduler
from penstock.services.worker.worker import Worker
from penstock.store.nouns.tasks import HELD
from penstock.testing.clock import TestClock

if TYPE_CHECKING:
    from httpx import AsyncClient

_MOST_JOBS = 10_000
_FARTHEST = timedelta(days=366)
_clocks: Counter[str] = Counter()  # by database: how many clocks were made for it
_open: dict[tuple[str, asyncio.AbstractEventLoop], TestApp] = {}  # by database: the one whose clock others take


class MessagesFailed(AssertionError):
    """The handlers of outboxes failed while a test had messages handed over.

    Attributes:
        failures: The outboxes, with the trouble of their messages.
    """

    def __init__(self, failures: Sequence[tuple[str, Trouble]]) -> None:
        lines = [f"{len(failures)} attempt(s) at messages failed:"]
        lines += [f"\n{outbox}: {one.error}\n{one.traceback or ''}" for outbox, one in failures]
        super().__init__("\n".join(lines))
        self.failures = list(failures)


class JobsFailed(AssertionError):
    """Jobs failed while a test ran them.

    Attributes:
        jobs: Their status, with error and traceback.
    """

    def __init__(self, jobs: Sequence[JobStatus]) -> None:
        lines = [f"{len(jobs)} job(s) failed:"]
        lines += [f"\n{job.id} {job.function}({job.args}): {job.error}\n{job.traceback or ''}" for job in jobs]
        super().__init__("\n".join(lines))
        self.jobs = list(jobs)


@dataclass(frozen=True, slots=True)
class SeenRun:
    """An attempt at a run of a reactive task that a test has made.

    Attributes:
        task: The name of the task.
        doc_id: The id of the row, or its key if another program owns the table: a tuple if that has several columns.
        change: The reason for the run.
        attempt: The number of the attempt, from 1.
    """

    task: str
    doc_id: Any
    change: str
    attempt: int


class TestApp(Backend):
    """A backend for tests; use it in ``async with``.

    Args:
        app: The app under test.
        database: URL of a database of the test's own; by default a SQLite file that is gone afterwards.
        clock: The clock; by default that of another one that is open on the database, or else a new `TestClock`.
        **settings: Settings that differ; see `Config`.

    Attributes:
        clock: Move it with ``clock.advance(timedelta(…))``.
        worker: The worker whose ticks `run_until_idle` makes.
        cron_scheduler: The scheduler whose ticks `run_until` makes.
        planner: The planner of reactive tasks whose ticks `plan` makes.
        relay: The relay of outboxes, whose ``drain`` hands over all messages that there are.
        indexer: The indexer of search indexes. Searches find all rows without its ticks.
    """

    __test__ = False

    clock: TestClock
    worker: Worker
    cron_scheduler: CronScheduler
    planner: Planner
    relay: Relay
    indexer: Indexer

    def __init__(
        self, app: App, database: str | None = None, *, clock: TestClock | None = None, **settings: Any
    ) -> None:
        self._folder = None if database else tempfile.TemporaryDirectory(prefix="penstock-test-")
        beside = _beside(database) if clock is None else None
        self.clock = clock or (beside.clock if beside else _new_clock(database))
        self._is_first = beside is None
        self._turn: asyncio.Lock = beside._turn if beside else asyncio.Lock()  # noqa: SLF001 - its own
        if self._folder is not None:
            database = f"sqlite:///{Path(self._folder.name) / 'test.db'}"
            settings = {"synchronous": "normal", "read_url": ""} | settings
        settings = {"files": "memory://"} | settings
        self._http: AsyncClient | None = None
        self._attempts = 0
        self._seen: list[SeenRun] = []
        self._failures: list[tuple[str, Trouble]] = []
        config = app.config(database=database, **settings)
        super().__init__(app, replace(config, practices=f"log, {config.practices}"), self.clock)

    async def __aenter__(self) -> Self:
        store = self.engine.store
        try:
            if self._folder is None and self._is_first and await store.catalog.list_migrations():
                self.clock.make_new_ids()  # in addition to what an earlier test has left there
            await self.start()
        except BaseException:
            await store.close()
            raise
        _open.setdefault((self.config.database, asyncio.get_running_loop()), self)
        worker, scheduler = self.make_service("worker"), self.make_service("scheduler")
        planner, relay = self.make_service("planner"), self.make_service("relay")
        assert isinstance(worker, Worker) and isinstance(scheduler, CronScheduler)  # noqa: PT018, S101 - for type checkers
        assert isinstance(planner, Planner) and isinstance(relay, Relay)  # noqa: PT018, S101 - for type checkers
        indexer = self.make_service("indexer")
        assert isinstance(indexer, Indexer)  # noqa: S101 - for type checkers
        self.indexer = indexer
        self.worker, self.cron_scheduler, self.planner, self.relay = worker, scheduler, planner, relay
        self.worker.on_claimed = self._on_claim
        for outbox in relay.outboxes:
            outbox.on_failed = lambda name, trouble: self._failures.append((name, trouble))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        home = self.config.database, asyncio.get_running_loop()
        if _open.get(home) is self:
            del _open[home]
        if self.worker.running:
            await self.worker.kill()
        elif self.worker.lease is not None:
            await self.worker.finish()
        await self.planner.finish()
        await self.relay.finish()
        await self.indexer.finish()
        if self._http is not None:
            await self._http.aclose()
        await self.stop()
        if self._folder is not None:
            self._folder.cleanup()

    def with_identity(self, identity: Identity | None = None, **claims: Any) -> CallerBackend:
        """This app for calls of a user, named by the subject alone: ``app.with_identity(subject="ada")``.

        Args:
            identity: The user; without it and without claims, a caller who has not signed in.
            **claims: Fields of the `Identity`, instead. The issuer is ``"test"`` by default.
        """
        return super().with_identity(Identity(**{"issuer": "test", **claims}) if claims else identity)

    @property
    def http(self) -> AsyncClient:
        """Requests to this app without a socket, as httpx sends them: ``await app.http.post("/hooks", content=…)``.

        A response is there when all of it is. The app sees the requests as those of a client on this machine.

        Raises:
            ConfigError: httpx is not installed.
        """
        if self._http is None:
            with of_extra("client", "TestApp.http", {"httpx"}):
                httpx = importlib.import_module("httpx")
            transport = httpx.ASGITransport(asgi_app(self.app, backend=self))
            self._http = httpx.AsyncClient(transport=transport, base_url="http://test")
        return self._http

    @property
    def practices(self) -> list[Finding]:
        """The best practices that the program has broken in this test, in their order."""
        practices = self.engine.practices
        return [] if practices is None else list(practices.found.values())

    async def run_until_idle(self, *, advance: bool = True, raise_errors: bool = True, plan: bool = True) -> int:
        """Plan reactive tasks, deliver messages, and run jobs until nothing is left; the number of attempts.

        Runs may write rows that need more runs, fail and be tried again, or be put off: the app is idle when
        nothing is left. Runs of a paused task stay, and are no reason to move the clock.

        Args:
            advance: Move the clock to the time of jobs scheduled for later, up to a year ahead, and run these too.
            raise_errors: Raise if a job failed meanwhile.
            plan: Plan the runs for changed rows, and deliver messages of outboxes; without it, only runs that are
                planned already begin.

        Raises:
            JobsFailed: A job failed.
            MessagesFailed: The handler of an outbox failed.
            AssertionError: Jobs go on scheduling jobs for ever.
        """
        async with self._turn:  # while jobs of another app run, the time stands still, as their leases end
            return await self._run_until_idle(advance, raise_errors, plan)

    async def _run_until_idle(self, advance: bool, raise_errors: bool, plan: bool) -> int:
        known = {(job.id, job.finished_at, len(job.attempts)) for job in await self.jobs("failed", _MOST_JOBS)}
        until, before = self.clock.now() + _FARTHEST, self._attempts
        self._failures.clear()
        while True:
            if plan:
                await self.plan()
                await self.relay.drain()
            # Jobs that end during a claim leave places, and make jobs ready, that the claim has not seen.
            busy, attempts = bool(self.worker.open_outcomes or self.worker.running), self._attempts
            pause = await self.worker.tick()
            if self._attempts - before > _MOST_JOBS:
                raise AssertionError(f"more than {_MOST_JOBS} jobs ran, and there is no end in sight")
            if self.worker.running:
                await self.worker.wait_for_jobs()
                continue
            if busy or self._attempts > attempts or self.worker.open_outcomes or not pause:
                continue
            times = (await self._next_run_at(), await self.relay.next_at() if plan else None)
            next_run_at = min((at for at in times if at is not None), default=None)
            if next_run_at is None or next_run_at > until or (not advance and next_run_at > self.clock.now()):
                break
            if next_run_at > self.clock.now():
                self.clock.advance(next_run_at - self.clock.now())
        if raise_errors:
            await self._raise_failures(known)
        return self._attempts - before

    async def _raise_failures(self, known: Container[object]) -> None:
        now_failed = await self.jobs("failed", _MOST_JOBS)
        failed = [job for job in now_failed if (job.id, job.finished_at, len(job.attempts)) not in known]
        if failed:
            raise JobsFailed(failed)
        if self._failures:
            raise MessagesFailed(self._failures)

    async def run_until(self, time: datetime, *, raise_errors: bool = True) -> int:
        """Let the time pass until `time`: crons and jobs run when they are due; the number of attempts.

        Args:
            time: The new time; aware. Jobs that are due at this very time run.
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
            nexts = (self.cron_scheduler.next_at, await self._next_run_at())
            due = [at for at in nexts if at is not None and at <= time]
            if due:
                self.clock.advance(max(min(due) - self.clock.now(), timedelta(0)))
            elif not ran:
                break
        self.clock.advance(time - self.clock.now())
        return attempts

    async def plan(self) -> None:
        """Plan the runs of reactive tasks that changes of rows call for, and look at rows that are to be looked at.

        Nothing of it runs.
        """
        while await self.planner.tick() == 0:
            pass

    def assert_task_ran(
        self, task: Any, doc_id: Any = None, *, times: int | None = None, change: str | None = None
    ) -> list[SeenRun]:
        """The attempts that this test has made at runs of a reactive task; fails if there are none.

        Args:
            task: Its handler, or its name.
            doc_id: Only those for the row with this id or key.
            times: The number of attempts there have to be.
            change: Only those for this reason.

        Raises:
            AssertionError: There are none, or not so many.
            ValueError: There is no such task.
        """
        handler = name_of(task) if callable(task) else None
        names = [one.task.name for one in self.app.tasks if task == one.task.name or handler == one.function.name]
        if not names:
            raise ValueError(f"the app declares no reactive task {task!r}")
        name = names[0]
        ran = [run for run in self._seen if run.task == name]
        doc_id = tuple(doc_id) if isinstance(doc_id, list) else doc_id
        found = [run for run in ran if doc_id in {None, run.doc_id} and change in {None, run.change}]
        if len(found) != times if times is not None else not found:
            wanted = "" if times is None else f" {times} time(s)"
            raise AssertionError(f"{name} did not run{wanted} for {doc_id}, {change}; it ran for {ran}")
        return found

    async def assert_scheduled(self, function: Any, /, **args: Any) -> JobStatus:
        """The pending job of a function, or of the handler of a task, whose arguments contain these.

        Raises:
            AssertionError: There is none.
        """
        name = getattr(function, "name", None) or name_of(function)
        pending = [job for job in await self.jobs("pending", _MOST_JOBS) if job.function == name]
        for job in pending:
            if all(name in job.args and job.args[name] == value for name, value in args.items()):
                return job
        raise AssertionError(f"no pending job of {name} with {args}; pending are {[job.args for job in pending]}")

    async def _next_run_at(self) -> datetime | None:
        """The time at which more is to run, without runs of paused tasks."""
        found, now = self.worker.next_run_at, self.clock.now()
        if here := self.engine.pauses.here(now):
            waiting = [job.options.task for job in await self.jobs("pending", _MOST_JOBS) if job.run_at <= now]
            times = (found, *(here.get(task) for task in waiting if task is not None))
            found = min((one for one in times if one is not None), default=None)
        held = {} if found is None or found <= now else await self.engine.store.tasks.list_held(now)
        paused = {task for task, until in held.items() if until is None}
        if not paused:
            return found
        pending = await self.jobs("pending", _MOST_JOBS)
        left = [
            job.run_at
            for job in pending
            if job.options.task not in paused or (job.error != HELD and job.run_at > now)  # due ones wait behind these
        ]
        if any(run_at <= now for run_at in left):
            return found  # something waits at a gate, and only the worker knows for how long
        return min(left, default=None)

    def _on_claim(self, jobs: Sequence[Job]) -> None:
        """Count the attempts that the worker makes, and record those of reactive tasks.

        A run that a hold puts off before its handler is called is no attempt.
        """
        self.engine.journal.note_starts(jobs)
        now, holds = self.clock.now(), self.engine.pauses
        jobs = [job for job in jobs if job.options.task is None or not holds.has(job.options.task, now)]
        self._attempts += len(jobs)
        tasks = {one.function.name: one.task for one in self.app.tasks}
        for job in jobs:
            task = None if job.options.task is None else tasks.get(job.function)
            if task is not None:
                args = json.loads(job.args)
                run = TaskAttempt(0, args["key"], args["change"], None, None, task=task, engine=self.engine, number=0)
                self._seen.append(SeenRun(task.name, run.doc_id, run.change, job.attempt))


def _beside(database: str | None) -> TestApp | None:
    """An app that is open on a database, in this event loop."""
    with suppress(RuntimeError):  # no loop runs yet
        return _open.get((database or "", asyncio.get_running_loop()))
    return None


def _new_clock(database: str | None) -> TestClock:
    """Make a clock for a database: an equal one for the first app on each, and others for the next apps on it."""
    if database is None:
        return TestClock()
    _clocks[database] += 1
    return TestClock(seed=_clocks[database] - 1)
