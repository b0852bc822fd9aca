"""The ctx of reactive tasks: that of a mutation or an action, and the facts about the changed rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar, cast

from penstock.calls.handlers.mark_completed import mark_completed
from penstock.calls.handlers.taskrun import TaskAttempt, get_documents
from penstock.calls.run.context import ActionCtx, MutationCtx
from penstock.errors import PenstockError, TaskConditionFailed
from penstock.reactive.task import Change
from penstock.schema.table import Table
from penstock.transaction.tracking import track_calls

T = TypeVar("T", bound=Table)


class OfTask(Generic[T]):
    """The part of the ctx that all reactive tasks share."""

    _run: TaskAttempt

    @property
    def doc_id(self) -> Any:
        """The id of the row; its key, for a table that another program owns: a tuple if that has several columns."""
        return self._run.doc_id

    @property
    def change(self) -> Change:
        """The reason for the run: ``enter``, ``change``, ``leave``, ``delete``, ``manual`` or ``reconcile``.

        If a row has changed several times, its last change counts; but a row that has entered and then changed
        has entered.
        """
        return self._run.change

    @property
    def watched_values(self) -> dict[str, Any]:
        """The watched values of the row, by their declared names, as they were when this run was planned."""
        return self._run.watched_values

    @property
    def previous(self) -> T | None:
        """The row as it was before its last change, whole, for tasks whose `on` has ``leave`` or ``delete``; else None.

        It is None as well if there was no row before. Of a row that was found to be gone, it is the row as the task
        last heard of it.
        """
        return cast("T | None", self._run.previous)

    @property
    def attempt(self) -> int:
        """The number of this attempt at this change, from 1."""
        ctx: Any = self  # of a mutation or an action
        return ctx.work.attempt if ctx.is_job else 1

    def defer_current(self, delay: timedelta | None = None, *, until: datetime | None = None) -> None:
        """Put this run off, once the handler has ended, however it ends. No attempt is used.

        A change of the row that comes before is run in its place.

        Args:
            delay: The wait.
            until: The end of the wait, instead; an aware datetime.

        Raises:
            DeclarationError: Neither was given, or both were.
            ValueInvalid: It is negative, or over a year.
        """
        self._run.defer(delay, until, self._run.engine.clock.now())

    def log(self, /, message: str, **facts: Any) -> None:
        """Write a log event that names the task and the row.

        Args:
            message: Its text.
            **facts: The same as data.
        """
        self._run.log(message, facts)

    def throttle_all(
        self, delay: timedelta | None = None, *, until: datetime | None = None, local: bool = False
    ) -> None:
        """Start none of this task's runs for a while, on all machines; running ones go on, this one too.

        It holds however the handler ends, and over restarts.

        Args:
            delay: The wait.
            until: The end of the wait, instead; an aware datetime.
            local: Whether it is for this process only, and is forgotten with it.

        Raises:
            DeclarationError: Neither was given, or both were.
            ValueInvalid: It is negative, or over a year.
        """
        self._run.throttle(delay, until, self._run.engine.clock.now(), local=local)


class TaskCtx(OfTask[T], ActionCtx):
    """The ctx of a reactive task that may call the outside world; for what else it can, see `ActionCtx`."""

    def __init__(self, ctx: ActionCtx, run: TaskAttempt) -> None:
        self.__dict__ = ctx.__dict__  # it is of the same run
        self._run = run

    @track_calls
    async def get_document(self, fields: Sequence[str] | None = None) -> T:
        """The row as it is now, if it is as this run was planned for: it matches, and nothing watched has changed.

        Args:
            fields: The fields to read; all by default.

        Raises:
            TaskConditionFailed: It is gone, does not match any more, or has changed: another run is then on its way.
                A handler that lets it pass ends as skipped.
            Snooze: So it is for this program, but another release has declared the task otherwise: the run is left to
                that.
            ValueInvalid: A field is none of the table.
        """
        (row,) = await get_documents(self._runner, [self._run], fields)
        if isinstance(row, PenstockError):
            raise row
        return cast("T", row)

    @track_calls
    async def mark_completed(self, connection: Any = None) -> None:
        """Complete this run: at once, or as part of a transaction of your own.

        On a connection of yours (of any library that pools take), it is completed if that transaction commits, and with
        it: exactly once. If the transaction is rolled back, the run is not marked, and may be marked again. Even if the
        handler raises after the commit, the run ends as success when the handler ends. A transaction
        that is still open by then delays the end.

        Args:
            connection: An open connection; by default it is completed at once.

        Raises:
            LeaseLost: The run is not this worker's any more, as another has taken over: let it raise, so that your
                transaction is rolled back.
            ContextError: The connection cannot be used, or leads to another kind of database.
        """
        await mark_completed(self._runner, self._call.job, connection)


class MutationTaskCtx(OfTask[T], MutationCtx):
    """The ctx of a reactive task that writes this database only; for what else it can, see `MutationCtx`.

    Its writes and the end of the run commit together: each change is handled exactly once.
    """

    def __init__(self, ctx: MutationCtx, run: TaskAttempt) -> None:
        self.__dict__ = ctx.__dict__  # it is of the same run
        self._run = run

    @track_calls
    async def get_document(self, fields: Sequence[str] | None = None) -> T:
        """See `TaskCtx.get_document`; in the transaction of this run."""
        run, transaction = self._run, self._scope.transaction
        self._runner.engine.readers.add(run.task.name)
        shared, place = transaction.shared, (run.number, run.key)
        if shared is not None and place in shared.generations:
            generation = shared.generations[place]
        else:
            async with self._scope.lock:
                found = await transaction.store.tasks.generations(transaction, run.number, [run.key])
            generation = found.get(run.key)
        definition = run.task.definition
        if not definition.managed:
            spelled = run.spell_key(self._scope.table(definition.table))
            transaction.spelled[definition.table, definition.encode_key(run.doc_id)] = spelled
        row = await self.db._get(definition.table, run.doc_id)  # noqa: SLF001 - the call is tracked already
        try:
            return cast("T", run.check(generation, row, fields))
        except TaskConditionFailed as error:
            async with self._scope.lock:
                meant = await run.error_for(transaction, generation, error)
            raise meant from None


class TaskBatchRun(TaskCtx[T]):
    """One run of a batch: the methods of `TaskCtx`, and `fail`."""

    failure: Exception | None = None

    def fail(self, error: Exception) -> None:
        """Let this run fail, and no other: it is tried again as its policy says.

        Args:
            error: The error. A `TaskConditionFailed` ends the run as skipped, a `NonRetryableError` as failed at once.
        """
        if isinstance(error, TaskConditionFailed):
            error.facts.setdefault("reason", "failed")
        self.failure = error


class TaskBatchCtx(ActionCtx, Generic[T]):
    """The ctx of a reactive task with ``batch=``; for what else it can, see `ActionCtx`.

    Runs without an end of their own end as the handler does: if it raises, all of them have failed.

    Attributes:
        runs: The runs, of one row each. Those with `defer_current`, `fail` or `mark_completed` have ends of their own.
    """

    runs: list[TaskBatchRun[T]]

    def __init__(self, ctx: ActionCtx, runs: list[TaskBatchRun[T]]) -> None:
        self.__dict__.update(ctx.__dict__)
        self.runs = runs

    @track_calls
    async def get_documents(self, fields: Sequence[str] | None = None) -> dict[TaskBatchRun[T], T]:
        """The rows of those runs that are as they were planned for, as with `TaskCtx.get_document`, asked for at once.

        The other runs end as skipped, or failed if their rows cannot be read, unless the handler says otherwise.

        Args:
            fields: The fields to read; all by default.

        Raises:
            ValueInvalid: A field is none of the table.
        """
        found: dict[TaskBatchRun[T], T] = {}
        states = [run._run for run in self.runs]  # noqa: SLF001 - its own
        for run, row in zip(self.runs, await get_documents(self._runner, states, fields), strict=True):
            if isinstance(row, PenstockError):
                run.fail(row)
            else:
                found[run] = cast("T", row)
        return found

    def log(self, /, message: str, **facts: Any) -> None:
        """Write a log event that names the task.

        Args:
            message: Its text.
            **facts: The same as data.
        """
        self.runs[0]._run.log(message, facts, of_row=False)  # noqa: SLF001 - its own

    def throttle_all(
        self, delay: timedelta | None = None, *, until: datetime | None = None, local: bool = False
    ) -> None:
        """See `TaskCtx.throttle_all`."""
        self.runs[0].throttle_all(delay, until=until, local=local)
