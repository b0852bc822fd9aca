"""Runs mutation jobs, and on_completes, in shared transactions: one commit and one settlement for many of them.

Owns which jobs share a transaction, and how many: by jobs, statements, rows and bytes, never by a clock. Each job keeps
its own limits, time, chance and end. If a shared transaction fails, its jobs run again, in smaller groups or alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import copy_context
from datetime import datetime
from typing import Any

from penstock.calls.handlers.taskrun import Asked, generations_of, ids_of
from penstock.calls.jobs.job import CompletionCall, JobCall
from penstock.calls.jobs.prefetch import Prefetch
from penstock.calls.run.jobrun import JobRun
from penstock.calls.run.runner import FunctionCalls
from penstock.dataclass import dataclass
from penstock.errors import Conflict, PenstockError, TryAgain
from penstock.functions.function import AnyFunction, FunctionKind
from penstock.jobs.job import Outcome, Settlement
from penstock.observe import points
from penstock.schema.table import definition_of
from penstock.store.session import Session
from penstock.transaction.commit import commit_shared
from penstock.transaction.shared import NeedsSavepoint, Shared
from penstock.transaction.transaction import Transaction

_MOST = 200  # jobs in one transaction
_MOST_STATEMENTS = 128  # PostgreSQL keeps 64 sub-transactions of one in its cache; each has a statement at least
_MOST_ROWS, _MOST_BYTES = 4096, 4 * 1024 * 1024  # read and written
_MORE = 1.25
_CAREFUL = 1000  # jobs of a function that get savepoints after one had to be undone
_IN_TURN = 8  # jobs; then the event loop gets its turn
_LARGEST_ARGUMENTS = 64 * 1024
_LONGEST = 1.0  # seconds for which a job may hold a shared transaction; then it leaves, at one of the next looks
_LOOKS = 5
_PATIENCE = 5.0  # seconds for which jobs that have run wait for others to commit with them

Ended = Callable[[JobRun, Outcome | None], None]
Alone = Callable[[JobRun], None]


@dataclass(slots=True, eq=False)
class _Member:
    """A job in a shared transaction, with its checked arguments; once it has run, its outcome or its changes."""

    run: JobRun
    call: JobCall | CompletionCall
    arguments: dict[str, Any]
    outcome: Outcome | None = None
    done: tuple[Transaction, Settlement] | None = None

    @property
    def function(self) -> AnyFunction:
        return self.call.function


class Groups:
    """Runs one worker's mutation jobs in shared transactions.

    `ended` gets each job that has ended with its outcome, None if it is settled; `alone` gets each job that has to run
    alone.
    """

    def __init__(self, runner: FunctionCalls, ended: Ended, alone: Alone) -> None:
        self._runner = runner
        self._ended = ended
        self._alone = alone
        self._waiting: deque[JobRun] = deque()
        self._lane: asyncio.Task[None] | None = None  # one, as the database finds conflicts of several by page
        self._size = float(_MOST)
        self._careful: dict[str, int] = {}  # functions whose next jobs get savepoints, and how many
        self._prefetch = Prefetch()
        self._left = 0  # how often in a row a job has left, and nothing was committed
        self._context = copy_context()  # not that of a job which adds another

    @property
    def busy(self) -> bool:
        """Whether a shared transaction is open; waiting jobs come after it."""
        return self._lane is not None

    def takes(self, run: JobRun) -> bool:
        """Whether a job may share a transaction: its mutation is async, small, has no time limit, and has not run yet.

        One that has run may have killed a worker, and must not take others with it.
        """
        job, function = run.job, run.function
        if job.ending is None:
            is_first, size = job.attempt == 1 and job.options.timeout is None, len(job.args)
            function = None if function is None or function.batch is not None else function
        elif job.options.unread is not None:
            return False
        else:
            function = self._runner.engine.known.find(str(job.on_complete), job.options.program)
            is_first, size = not job.ending.calls, len(job.ending.result or "") + len(job.options.context or "")
        if function is None or function.kind is not FunctionKind.MUTATION or not function.is_async:
            return False
        return is_first and size <= _LARGEST_ARGUMENTS

    def add(self, jobs: Iterable[JobRun]) -> None:
        added = list(jobs)
        self._waiting.extend(added)
        if self._lane is None:
            self._lane = asyncio.get_running_loop().create_task(self._run_all(), context=self._context.copy())
        for run in added:
            run.task = self._lane

    def clear(self) -> None:
        self._waiting.clear()

    # ----- one transaction after another

    async def _run_all(self) -> None:
        try:
            while self._waiting:
                await self._group()
        finally:
            self._lane = None
            if self._waiting:
                self.add(())

    async def _group(self) -> None:
        group: list[_Member] = []
        try:
            await self._share(group)
        except Exception as error:  # noqa: BLE001 - it is no outcome of any job: each runs again
            self._part(group, error)
        except asyncio.CancelledError:  # the worker stops these, or a job cancelled its own task
            for member in group:
                if not member.run.stopped:
                    self._alone(member.run)
            raise
        else:
            self._size, self._left = min(_MOST, self._size * _MORE), 0

    def _part(self, group: list[_Member], error: Exception) -> None:
        """Run the jobs of a failed transaction again: together, in smaller groups, or alone."""
        again = [member.run for member in group]
        if isinstance(error, _Gone) or (isinstance(error, Conflict) and len(group) > 1):
            if not isinstance(error, _Gone):
                self._size = max(1.0, len(group) / 2)
            self._waiting.extendleft(reversed(again))
            return
        if not again:  # no transaction could be begun
            again = list(self._waiting)
            self._waiting.clear()
        for run in again:
            self._alone(run)

    async def _share(self, group: list[_Member]) -> None:
        """Run jobs in one transaction; `group` holds the jobs that have not ended."""
        await self._take(group)
        asked = [(member.function, member.arguments) for member in group]
        generations = await generations_of(self._runner.engine, asked)
        session = await self._runner.begin_write(None, for_ever=True)
        shared: Shared | None = None
        try:
            shared = Shared(session, await self._tables_in_order(session))
            shared.generations = generations
            await self._know(shared, asked)
            await self._prefetch.read(shared, asked)
            await self._run(shared, group)
            done = [member.done for member in group if member.done is not None]
            if done:
                transactions, settlements = zip(*done, strict=True)
                await commit_shared(shared, transactions, group[0].run.lease, settlements)
                for member in group:
                    if member.done is not None:
                        member.call.note_end(member.done[1])
        finally:
            await session.rollback()
            if shared is not None and shared.found:
                self._runner.engine.statements.ordered |= shared.found
        ended = list(group)
        group.clear()
        for member in ended:
            if points.armed:
                await points.reach("worker.outcome", job=member.run.job, outcome=member.outcome)
            self._ended(member.run, member.outcome)

    async def _tables_in_order(self, session: Session) -> frozenset[str]:
        """The tables each of whose changes counts. Where updates are never merged, the database is asked each time."""
        engine = self._runner.engine
        if not engine.store.dialect.unless_each:
            await engine.learn_order(session)
        return engine.statements.ordered

    async def _take(self, group: list[_Member]) -> None:
        while self._waiting and len(group) < self._size:
            run = self._waiting.popleft()
            try:
                call = self._call_of(run)
                group.append(_Member(run, call, await call.check()))
            except PenstockError:
                self._alone(run)  # so that its own error is told

    def _call_of(self, run: JobRun) -> JobCall | CompletionCall:
        if run.job.ending is None:
            assert run.function is not None  # noqa: S101 - others run alone
            return JobCall.of(self._runner, run.function, run)
        call = CompletionCall.of(self._runner, run)
        assert call is not None  # noqa: S101 - as above
        return call

    async def _know(self, shared: Shared, asked: Asked) -> None:
        """Read in one statement the rows whose ids are arguments or keys of task runs. SQLite reads them one by one."""
        engine = self._runner.engine
        if not engine.store.dialect.any_of:
            return
        keys = ids_of(engine, asked)
        for function, arguments in asked:
            for name, table in function.signature.ids.items():
                own = table if function.component is None else function.component.tables.get(table)
                if name in arguments and own is not None and own not in engine.statements.foreign:
                    keys.setdefault(own, {})[str(arguments[name])] = None
        for table, found in keys.items():
            statements = engine.statements.of(table, definition_of(table))
            if len(found) > 1 and statements.piece_rows(len(found)) == len(found):
                await shared.know(statements, list(found))

    async def _run(self, shared: Shared, group: list[_Member]) -> None:
        """Run jobs one after another; jobs beyond the limit wait again. Raises _Gone if some have to leave."""
        clock, now, rows, size = self._runner.engine.machine, self._runner.now(), 0, 0
        late, limit = asyncio.Event(), _Limit()
        timer = asyncio.get_running_loop().call_later(_PATIENCE, late.set)
        try:
            for place, member in enumerate(group):
                full = shared.statements >= _MOST_STATEMENTS or rows >= _MOST_ROWS or size >= _MOST_BYTES
                if place and (full or late.is_set()):
                    self._waiting.extendleft(one.run for one in reversed(group[place:]))
                    del group[place:]
                    if full:
                        self._size = place  # the rows of waiting jobs are read again
                    break
                await self._run_one(shared, member, now, group, limit)
                if member.done is not None:
                    rows += sum(member.done[0].rows_counted) + len(member.done[0].jobs)
                    size += member.done[0].bytes_counted
                if not (place + 1) % _IN_TURN:
                    await clock.sleep(0)
        finally:
            timer.cancel()
            limit.end()

    async def _run_one(
        self, shared: Shared, member: _Member, now: datetime, group: list[_Member], limit: _Limit
    ) -> None:
        try:
            with limit:
                await self._attempt(shared, member, now)
        except NeedsSavepoint:
            self._careful[member.function.name] = _CAREFUL
        except BaseException as error:
            task = asyncio.current_task()
            if not limit.exceeded and (isinstance(error, Exception) or task is None or task.cancelling()):
                raise
            self._leave(member, group)
        else:
            return
        raise _Gone

    def _leave(self, member: _Member, group: list[_Member]) -> None:
        """Have a job run alone; if jobs before it have left, too, twice as many each time."""
        alike = [one for one in group[group.index(member) :] if one.function is member.function]
        for one in alike[: 2**self._left]:
            group.remove(one)
            self._alone(one.run)
        self._left += 1

    async def _attempt(self, shared: Shared, member: _Member, now: datetime) -> None:
        runner, run, function = self._runner, member.run, member.function
        if run.moment is None:
            run.moment = now, runner.engine.clock.seed()
        careful = self._careful.pop(function.name, 0)
        part, begun = shared.part(careful=careful > 0), runner.engine.machine.monotonic()
        if careful > 1:
            self._careful[function.name] = careful - 1
        try:
            with runner.engine.journal.running(run.job, run.trace):
                transaction, result = await runner.run_in_part(part, member.call, member.arguments, run.moment)
            settlement = member.call.settlement(result, now)
        except Exception as error:
            if isinstance(error, TryAgain) and not error.from_function:
                raise
            if await part.undo():
                self._careful[function.name] = _CAREFUL
            if shared.failure is None:
                member.outcome = member.call.outcome_of_error(runner, error)
        else:
            part.keep(transaction.rows)
            self._prefetch.note(function, member.arguments, part.reads)
            member.done = transaction, settlement
        if shared.failure is not None:
            raise shared.failure
        if run.job.ending is None:
            runner.engine.journal.ran(run.job, runner.engine.machine.monotonic() - begun)


class _Limit:
    """Cancels a job that holds its transaction too long. One timer is for all: one of each would cost a tenth more."""

    def __init__(self) -> None:
        self.exceeded = False  # by the last job
        self._looks = 0  # that are left for a job, while one runs
        self._task = asyncio.current_task()
        self._look()

    def __enter__(self) -> None:
        self._looks, self.exceeded = _LOOKS, False

    def __exit__(self, *_: object) -> None:
        self._looks = 0
        if self.exceeded and self._task is not None:
            self._task.uncancel()

    def end(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LONGEST / (_LOOKS - 1), self._look)
        if self._looks == 1 and self._task is not None:
            self.exceeded = True
            self._task.cancel()
        self._looks -= self._looks > 0


class _Gone(Exception):
    """A job has left its shared transaction."""
