"""The parts that every call needs: store, functions, settings, clock, and threads for functions written with def.

Owns threads and processes, and how long stopping waits for them. Built and closed by `app`; the rest of `calls` only
uses it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import timedelta
from functools import cached_property
from typing import Any

from penstock.calls.handlers.task_pauses import TaskPauses
from penstock.calls.journal import Journal, tell_of_broken
from penstock.calls.run.processes import Processes
from penstock.calls.run.renewals import Renewals
from penstock.calls.run.signing import Signing
from penstock.calls.run.threads import Place, Threads
from penstock.clock import Clock, SystemClock
from penstock.config import Config
from penstock.errors import TryAgain
from penstock.functions.function import AnyFunction
from penstock.functions.programs import Known
from penstock.functions.registry import Registry
from penstock.functions.scope import EVERYTHING
from penstock.jobs.job import Job, Outcome, Settlement
from penstock.jobs.settle import settle_anyhow
from penstock.observe.logbook import Logbook
from penstock.observe.logs import event as log_event
from penstock.observe.meters import Meters
from penstock.observe.practices import practices_of
from penstock.pools.rates import RateLimit
from penstock.reactive.task import ReactiveTask
from penstock.store.nouns.files import Space
from penstock.store.nouns.tasks import TaskRow
from penstock.store.objects import Objects
from penstock.store.session import OpenTransaction
from penstock.store.sql.statements import Statements
from penstock.store.store import Store

Turn = AbstractAsyncContextManager[Place | None]

_NO_THREAD: Turn = nullcontext()

# Seconds of the grace time that are left for the steps after the end of calls and jobs; less if it is short.
_SETTLING, _CLOSING = 0.75, 0.75
_REST_PART = 0.3
_AT_LEAST = 3.0  # for services, however short the grace time is: most databases answer in that time


class Engine:
    """The parts of a running app that calls use."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        config: Config,
        clock: Clock,
        rate_limits: Mapping[str, RateLimit],
        reactive: Iterable[str] = (),
    ) -> None:
        self.store = store
        self.known = Known(registry)
        self.scope = EVERYTHING  # of the work that this process runs
        self.registry = registry
        self.config = config
        self.keep = timedelta(seconds=config.job_status_ttl)  # for the status of a job that does not say otherwise
        self.clock = clock  # the app's time; a test may move it
        self.machine = SystemClock()  # for waits inside one call
        self.rate_limits = rate_limits
        self.tasks: Mapping[str, TaskRow] = {}  # by name, as they were stored when the program started
        self.reactive: Mapping[str, ReactiveTask] = {}  # as declared, by the functions of their jobs
        self.readers = set[str]()  # tasks whose handlers ask for the row
        self.pauses = TaskPauses()
        self.look = asyncio.Event()  # set after a request to look at all rows of a task, until the planner knows
        self.statements = Statements(store.dialect, reactive)
        self.processes = Processes(config)
        self.renewals = Renewals(config, clock, registry)
        meters = Meters() if config.dev or config.metrics_token or config.metrics_port else None
        self.journal = Journal(Logbook(clock), meters, tells_runs=config.dev)
        self.journal.workflows = frozenset(registry.workflows)
        self._writes_logbook = True  # whether the last time went well
        self.practices = practices_of(f"{'log' if config.dev else 'off'}, {config.practices}")
        self._threads: dict[str, Threads] = {}
        self._stop_by: float | None = None
        self._space: Space | None = None

    @cached_property
    def objects(self) -> Objects:
        """The bytes of files.

        Raises:
            ConfigError: The packages of the extra ``files`` are not installed, or the setting ``files`` is wrong.
        """
        return Objects(self.config.files, self.config.max_file_bytes)

    @cached_property
    def signing(self) -> Signing:
        """The keys of tokens that the program signs itself."""
        return Signing(self.store, self.config, self.clock)

    async def file_space(self) -> Space:
        """The folder of the database among the bytes of files, and the secret that signs their tokens."""
        if self._space is None:
            self._space = await self.store.files.space()
        return self._space

    def thread(
        self,
        function: AnyFunction | None,
        depth: int,
        lingering: list[Future[Any]] | None = None,
        *,
        nested: bool = False,
    ) -> Turn:
        """A place in a thread for a function written with def, to be held with ``async with``; None for any other.

        A function that goes on in it after its caller has given up is added to `lingering`.

        A function takes its place before it locks anything, so that no holder of a lock waits for a thread.
        Each kind of function, and each depth of nested calls, has threads of its own. So slow queries do not hold up
        mutations, and a function that waits for another one never holds its thread.

        Raises:
            Overloaded: On entering: all threads run functions whose callers have given up.
        """
        if function is None or function.is_async or function.runtime == "process":
            return _NO_THREAD
        name = f"penstock-{function.kind.value}-{'nested-' if nested else ''}{depth}"
        threads = self._threads.get(name)
        if threads is None:
            threads = self._threads[name] = Threads(name, self.config.threads)
        return threads.place(function.name, lingering, function=function.name, depth=depth)

    def functions_held_here(self) -> list[str]:
        """The functions of tasks that this process does not run, or not now."""
        held, scope = self.pauses.here(self.clock.now()), self.scope
        if not held and scope.tasks is None:
            return []
        tasks = ((name, task.name) for name, task in self.reactive.items())
        return [name for name, task in tasks if self.tasks[task].id in held or not scope.runs("tasks", task)]

    async def learn_order(self, session: OpenTransaction | None = None) -> None:
        """Read which tables need every change captured, so that changes are written in their order."""
        self.statements.ordered = await self.store.interests.each_of(self.statements.tables, session)

    def decide(self, outcomes: Iterable[tuple[Job, Outcome]]) -> list[Settlement]:
        """The settlements of jobs with these outcomes; a job that cannot be read is logged and ends as failed."""
        now, chance, keep = self.clock.now(), self.clock.random, self.keep
        return [settle_anyhow(job, outcome, now, chance(), keep, tell_of_broken) for job, outcome in outcomes]

    async def write_logbook(self) -> bool:
        """Write what was counted and logged since the last time, and say whether it did.

        What cannot be written waits for the next time.
        """
        numbers, events = self.journal.book.take()
        if not numbers and not events:
            return False
        try:
            await self.store.logbook.write(self.clock.now(), numbers, events)
        except Exception as error:  # noqa: BLE001 - no program stops because it is not counted
            self.journal.book.put_back(numbers, events if isinstance(error, TryAgain) else ())  # one may be refused
            if self._writes_logbook:
                log_event("logbook.not_written", logging.WARNING, error=error)
            self._writes_logbook = False
        else:
            self._writes_logbook = True
        return self._writes_logbook

    def begin_stop(self) -> None:
        if self._stop_by is None:
            self._stop_by = self.machine.monotonic() + self.config.grace

    def grace_left(self) -> float:
        """The seconds that calls and jobs have to end: the rest of the grace time, less the other steps of stopping."""
        return max(0.0, self._stop_left() - min(_SETTLING + _CLOSING, _REST_PART * self.config.grace))

    def services_left(self) -> float:
        """The seconds that services have to stop, jobs included; some seconds also if the grace time is short."""
        return max(0.0, self._stop_left() + max(-_CLOSING, _AT_LEAST - self.config.grace))

    def _stop_left(self) -> float:
        return self.config.grace if self._stop_by is None else self._stop_by - self.machine.monotonic()

    async def close(self) -> None:
        """End the threads and processes; their functions have the rest of the grace time."""
        self.begin_stop()
        await self.renewals.close()
        if self.practices is not None:
            self.practices.listen(on=False)
        threads, self._threads = list(self._threads.values()), {}
        left = await asyncio.gather(
            *(one.idle(self.grace_left()) for one in threads), self.processes.close(self.grace_left())
        )
        for one in threads:
            one.close()
        if functions := sorted(name for names in left for name in names):
            log_event("engine.functions_left", logging.WARNING, functions=",".join(functions))

    async def abandon(self) -> None:
        self._stop_by = self.machine.monotonic()
        await self.close()
