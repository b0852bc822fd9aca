"""Runs mutation jobs in shared transactions: one commit and one settlement for many of them.

Owns which jobs share a transaction, how many, and for how long. Each job keeps its own savepoint, limits, time, chance
and end. If a shared transaction fails, its jobs run again, in smaller groups or alone with `job`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.calls.handlers.taskrun import Calls, known_generations, known_ids
from penstock.calls.jobs.job import raised, returned
from penstock.calls.run.runner import Runner
from penstock.calls.run.running import Running, caller_of_job
from penstock.errors import Conflict, PenstockError, TryAgain
from penstock.functions.function import AnyFunction
from penstock.jobs.job import Job, Outcome, Settlement
from penstock.jobs.states import FINISHED
from penstock.schema.table import definition_of
from penstock.store.contract.session import Session
from penstock.transaction.commit import commit_shared
from penstock.transaction.shared import Shared
from penstock.transaction.transaction import Transaction

_MOST = 200
_MOST_SAVEPOINTS = 48  # PostgreSQL keeps 64 of a transaction in its cache
_LONGEST = 0.01  # seconds after which a transaction takes on no more jobs
_SLOW = 0.1  # seconds that a job may delay the others; then it runs alone
_LEAST_ALONE, _MOST_ALONE = 1.0, 60.0  # seconds for which the jobs of its function run alone, too
_LANE_JOBS = 16
_MOST_LANES = 4
_LARGEST_STEP, _LEAST_STEP = 0.1, 0.002
_MORE = 1.25
_LARGEST_ARGUMENTS = 64 * 1024

Ended = Callable[[Running, Outcome | None], Awaitable[None]]
Alone = Callable[[Running], None]


@dataclass(slots=True, eq=False)
class _Call:
    """A job in a shared transaction, with its checked arguments; once it has run, its outcome or its changes."""

    running: Running
    function: AnyFunction
    arguments: dict[str, Any]
    outcome: Outcome | None = None
    done: tuple[Transaction, Settlement] | None = None


class Groups:
    """Runs one worker's mutation jobs in shared transactions.

    `ended` gets each job that has ended with its outcome, None if it is settled; `alone` those that have to run alone.
    """

    def __init__(self, runner: Runner, ended: Ended, alone: Alone) -> None:
        self._runner = runner
        self._ended = ended
        self._alone = alone
        self._waiting: deque[Running] = deque()
        self._lanes: set[asyncio.Task[None]] = set()
        self._size = float(_MOST)
        self._beside, self._step = 1.0, _LARGEST_STEP
        self._slow = SlowFunctions()

    @property
    def busy(self) -> bool:
        """Whether a shared transaction is open; waiting jobs come after it."""
        return bool(self._lanes)

    def takes(self, job: Job, function: AnyFunction) -> bool:
        """Whether a mutation may share a transaction: it is async, small, quick, and has no time limit."""
        if not function.is_async or job.options.timeout is not None or len(job.args) > _LARGEST_ARGUMENTS:
            return False
        if job.attempt > 1:  # it may have killed a worker, and must not take others with it
            return False
        return not self._is_slow(function)

    def add(self, jobs: Iterable[Running]) -> None:
        added = list(jobs)
        self._waiting.extend(added)
        wanted = max(1, min(int(self._beside), -(-len(self._waiting) // _LANE_JOBS)))
        while len(self._lanes) < wanted:
            self._lanes.add(asyncio.get_running_loop().create_task(self._lane()))
        lane = next(iter(self._lanes))
        for running in added:
            running.task = lane

    def clear(self) -> None:
        self._waiting.clear()

    # ----- one transaction after another

    async def _lane(self) -> None:
        lane = asyncio.current_task()
        again = False
        try:
            while self._waiting and len(self._lanes) <= self._beside:
                again = not await self._group(again=again)
        finally:
            if lane is not None:
                self._lanes.discard(lane)
            if self._waiting and not self._lanes:
                self.add(())

    async def _group(self, *, again: bool) -> bool:
        """Run some waiting jobs; False if nothing was committed."""
        group: list[_Call] = []

        async def once(queue: int | None) -> None:
            await self._share(group, queue)

        try:
            await self._runner.in_turn(once, self._waiting[0].job.function, again=again)
        except Exception as error:  # noqa: BLE001 - it is no outcome of any job: each runs again
            self._part(group, error)
            return False
        except asyncio.CancelledError:  # the worker stops these, or a job cancelled its own task
            for call in group:
                if not call.running.stopped:
                    self._alone(call.running)
            raise
        self._size = min(_MOST, self._size * _MORE)
        self._beside = min(_MOST_LANES, self._beside + self._step)
        self._step = min(_LARGEST_STEP, self._step * _MORE)
        return True

    def _part(self, group: list[_Call], error: Exception) -> None:
        """Run the jobs of a failed transaction again: together, in smaller groups, or alone."""
        again = [call.running for call in group]
        if isinstance(error, _Gone):
            self._waiting.extendleft(reversed(again))
            return
        if isinstance(error, Conflict) and len(group) > 1:
            if int(self._beside) > 1:  # perhaps lanes conflict with each other, so grow slower
                self._step = max(_LEAST_STEP, self._step / 4)
            else:
                self._size = max(1.0, len(group) / 2)
            self._beside = 1.0
            self._waiting.extendleft(reversed(again))
            return
        if not again:  # no transaction could be begun
            again = list(self._waiting)
            self._waiting.clear()
        for running in again:
            self._alone(running)

    async def _share(self, group: list[_Call], queue: int | None) -> None:
        """Run jobs in one transaction; `group` holds those that have not ended."""
        self._take(group)
        asked = [(call.function, call.arguments) for call in group]
        generations = await known_generations(self._runner.engine, asked)
        session = await self._runner.begin_write(queue, for_ever=True)
        shared: Shared | None = None
        try:
            shared = Shared(session, await self._ordered(session))
            shared.generations = generations
            await self._know(shared, asked)
            await self._run(shared, group)
            done = [call.done for call in group if call.done is not None]
            if done:
                transactions, settlements = zip(*done, strict=True)
                await commit_shared(shared, transactions, group[0].running.lease, settlements)
                self._log_ends(group)
        finally:
            await session.rollback()
            if shared is not None and shared.found:
                self._runner.engine.statements.ordered |= shared.found
        ended = list(group)
        group.clear()
        for call in ended:
            await self._ended(call.running, call.outcome)

    async def _ordered(self, session: Session) -> frozenset[str]:
        """The tables each of whose changes counts. Where updates are never merged, the database is asked each time."""
        engine = self._runner.engine
        if not engine.store.dialect.unless_each:
            await engine.learn_order(session)
        return engine.statements.ordered

    def _log_ends(self, group: Sequence[_Call]) -> None:
        journal, now = self._runner.engine.journal, self._runner.now()
        for call in group:
            if call.done is None or call.running.job.on_complete is not None:
                continue
            if (state := call.done[1].state) in FINISHED:  # and was not put off
                journal.ended(call.running.job, state, now)

    def _take(self, group: list[_Call]) -> None:
        lane = asyncio.current_task()
        assert lane is not None  # noqa: S101 - it runs in one
        while self._waiting and len(group) < self._size:
            running = self._waiting.popleft()
            function = running.function
            if function is None or self._is_slow(function):
                self._alone(running)
                continue
            try:
                arguments = function.signature.check_json(running.job.args)
            except PenstockError:
                self._alone(running)  # so that its own error is told
                continue
            running.task = lane
            group.append(_Call(running, function, arguments))

    async def _know(self, shared: Shared, asked: Calls) -> None:
        """Read in one statement the rows whose ids are arguments or keys of task runs. SQLite reads them one by one."""
        engine = self._runner.engine
        if not engine.store.dialect.any_of:
            return
        keys = known_ids(engine, asked)
        for function, arguments in asked:
            for name, table in function.signature.ids.items():
                if name in arguments:
                    keys.setdefault(table, {})[str(arguments[name])] = None
        for table, found in keys.items():
            statements = engine.statements.of(table, definition_of(table))
            if len(found) > 1 and statements.piece_rows(len(found)) == len(found):
                await shared.know(statements, list(found))

    async def _run(self, shared: Shared, group: list[_Call]) -> None:
        """Run jobs one after another while they are quick; the rest waits again. Raises _Gone if one must run alone."""
        machine, now = self._runner.engine.machine, self._runner.now()
        until = machine.monotonic() + _LONGEST
        timer = asyncio.timeout(_LONGEST + _SLOW)
        call = None
        try:
            async with timer:
                for place, call in enumerate(group):
                    if place and (machine.monotonic() > until or shared.savepoints >= _MOST_SAVEPOINTS):
                        self._waiting.extendleft(one.running for one in reversed(group[place:]))
                        del group[place:]
                        self._size = max(place, self._size / 2)  # the rows of waiting jobs are read again
                        break
                    await self._run_one(shared, call, now)
        except BaseException as error:
            task = asyncio.current_task()
            if not timer.expired() and (isinstance(error, Exception) or task is None or task.cancelling()):
                raise
        else:
            if not timer.expired():
                return
        if call is not None:
            self._slow.add(call.function.name, machine.monotonic())
            group.remove(call)
            self._alone(call.running)
        raise _Gone

    async def _run_one(self, shared: Shared, call: _Call, now: datetime) -> None:
        runner, running, function = self._runner, call.running, call.function
        if running.moment is None:
            running.moment = now, runner.engine.clock.seed()
        part, begun = shared.part(), runner.engine.machine.monotonic()
        try:
            with runner.engine.journal.attempts([running.job]):
                transaction, result = await runner.shared_mutation(
                    part, function, call.arguments, running.moment, running.work, caller_of_job(function)
                )
            settlement = returned(runner, function, running.job, result, now)
        except Exception as error:
            if isinstance(error, TryAgain) and not error.from_function:
                raise
            await part.undo()
            call.outcome = raised(runner, running, error)
        else:
            part.keep(transaction.rows)
            call.done = transaction, settlement
        if shared.failure is not None:
            raise shared.failure
        runner.engine.journal.ran(running.job, runner.engine.machine.monotonic() - begun)

    def _is_slow(self, function: AnyFunction) -> bool:
        return self._slow.holds(function.name, self._runner.engine.machine.monotonic())


class SlowFunctions:
    """The functions whose jobs run alone, at times of a monotonic clock in seconds.

    That takes one second after a slow job, as the machine may have stalled, and twice as long each time in a row.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[float, float]] = {}  # the end of that time, and its length

    def add(self, function: str, now: float) -> None:
        """Note that a job of a function was slow."""
        until, seconds = self._found.get(function, (now, 0.0))
        seconds = min(_MOST_ALONE, 2 * seconds) if now < until + seconds else _LEAST_ALONE
        self._found[function] = now + seconds, seconds

    def holds(self, function: str, now: float) -> bool:
        return now < self._found.get(function, (now, 0.0))[0]


class _Gone(Exception):
    """A job has left its shared transaction."""
