"""Reactive tasks at rest, the records of their rows, and the ends of their jobs. Each store plans in its own way."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import field, replace
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from penstock.changes.position import Position
from penstock.clock import Clock
from penstock.config import FOR_EVER
from penstock.dataclass import dataclass
from penstock.jobs.job import Job, Mark, Options, Settlement
from penstock.jobs.states import RETRIABLE, JobEvent, JobState
from penstock.reactive.planning import RowPlan
from penstock.reactive.reconciling import Kept, Reconciling
from penstock.reactive.task import Change, OnVersionChange, TaskSpec
from penstock.store.nouns.changes import Changes
from penstock.store.nouns.jobs import Jobs
from penstock.store.nouns.jobtext import options_text
from penstock.store.nouns.noun import Access, Noun
from penstock.store.session import OpenTransaction, Row, Session

_LAST_GENERATION = 2**62  # no row has changed so often
_PLAN = ("name", "function", "kind", "pool", "priority", "resets", "history", "version", "signature")
_RETRIABLE = {state.value for state in RETRIABLE}
RowKey = tuple[int, str]  # the number of a task, and the key of a row as the change feed spells it
_REPROCESSES = ("none", "reprocess_failed", "reprocess_all")


HELD = "The task is held"  # the reason of a job that waits because its task is held


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """A task as a program declares it to the store."""

    name: str
    function: str  # the name of the function that its jobs run
    kind: str
    pool: str
    priority: int
    options: Options  # the other options of its jobs; the number of the task is added
    resets: bool  # whether a change resets the count of attempts
    history: int  # the number of runs that are kept with each row
    version: int  # of its handler
    signature: str  # its filter and watch, as text
    spec: TaskSpec  # the part that planners need
    # the rows to run again if the version is higher than the one before
    on_version_change: OnVersionChange = field(default="none", compare=False)
    reconciles: bool = field(default=True, compare=False)  # whether rows are looked at again if the signature differs


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task as it is kept."""

    id: int  # its number, by which its jobs name it
    plan: TaskPlan  # its last declaration
    interest: int | None  # the number of the interest that it is declared with; None if there is none now
    interests: tuple[int, ...]  # the numbers of all of its interests that there are
    # the ones that there were when it was declared, which may be gone; the feed may still have their changes
    earlier: tuple[int, ...]
    declared_at: datetime  # when that was
    paused: bool  # whether none of its jobs starts
    held_until: datetime | None  # the time until which none starts; None for no such time
    reconciling: Reconciling | None  # the progress of a scan of all rows; None if that is done
    reconciled_at: datetime | None  # the end of the last scan
    begun: int  # the number of restarts of scans


@dataclass(frozen=True, slots=True)
class RecordRow:
    """The record of one row of a task.

    It has the values that were captured with its last change, or its job, as far as a query reads these.
    """

    task: int  # the number of the task
    key: str  # the key of the row, as the change feed spells it
    job: UUID  # the id of its job
    generation: int  # how many changes it had that the task wanted to hear of
    live: bool  # whether its job has still to end
    change: Change  # the last of these
    changed_at: datetime  # when that was
    due_at: datetime  # when it was to be run then
    gone: str | None  # ``left`` if it does not match any more, ``deleted`` if there is no such row; None if it is there
    before: str | None = None  # the values that were captured before that change
    after: str | None = None  # those after it
    state: str | None = None  # the state of its job; None if there is none, though there should be
    attempt: int | None = None  # its attempts so far, for this generation
    run_at: datetime | None = None  # when it was due, or is
    started_at: datetime | None = None
    finished_at: datetime | None = None
    error: str | None = None  # the error of its last attempt, or why it waits


@dataclass(frozen=True, slots=True)
class Move:
    """How a reader of the change feed moves on with what it has planned; see `store.nouns.Changes.move`."""

    reader: str
    lease: int
    before: Position
    after: Position


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a scan of the rows of a task."""

    task: TaskRow  # the task as it was declared at the time of the scan; a scan does not serve another declaration
    reconciling: Reconciling | None  # the progress; None once it is done
    begins: bool = False  # whether the scan restarts with this, so that an earlier scan does not go on


def from_the_beginning(tasks: Iterable[TaskRow]) -> list[Progress]:
    """Restart the scan of all rows of tasks; rows that were to run again in any case still do."""
    return [Progress(task, (task.reconciling or Reconciling()).begin(), begins=True) for task in tasks]


class Launch(NamedTuple):
    """A row for which there is to be a pending job."""

    task: int
    key: str
    idle: bool  # whether there is none


class TaskEnds(Noun, ABC, queries=("moves", "records", "tasks")):
    """Ends jobs of tasks, and begins new ones, in the transactions of others."""

    @abstractmethod
    async def note_ends(self, session: OpenTransaction, settlements: Sequence[Settlement]) -> None:
        """Compare the generations of jobs that have ended or are to run again, and launch changed rows."""

    @abstractmethod
    async def launch(self, session: OpenTransaction, rows: Sequence[Launch], now: datetime) -> None:
        """See to it that there is a pending job for the last generation of rows."""

    async def hold(self, session: OpenTransaction, rows: Sequence[RowKey]) -> Sequence[Row]:
        """Lock the records of rows: their tasks, keys and jobs, whether these are live, and their states."""
        if not rows:
            return []
        if "hold_records" in self._queries:
            await self._fetch(session, "hold_records", **of_rows(rows))
        return await self._fetch(session, "held_records", **of_rows(rows))  # who has waited reads jobs in this one only

    async def rerun(
        self, session: OpenTransaction, rows: Sequence[RowKey], now: datetime, states: Collection[str] | None = None
    ) -> list[RowKey]:
        """Run rows again, or only those whose jobs have these states; the rows run."""
        held = [row for row in await self.hold(session, rows) if states is None or row["state"] in states]
        if held:
            again = await self._fetch(session, "rerun", **of_rows(held), now=now)
            await self._fetch(session, "forgive", ids=[self._access.uuid(row["id"]) for row in held])
            await self.launch(session, [launch(row) for row in again], now)
        return [row_key(row) for row in held]

    async def retry(self, session: OpenTransaction, ids: Sequence[UUID], now: datetime) -> dict[UUID, bool]:
        """The jobs of tasks among failed or canceled ones, and whether their rows run again."""
        rows = await self._fetch(session, "of_tasks", ids=[*ids])
        found = {self._access.uuid(row["id"]): row_key(row) for row in rows}
        again = await self.rerun(session, list(found.values()), now, _RETRIABLE)
        return {job: row in again for job, row in found.items()}


class Tasks(Noun, ABC, queries=("moves", "tasks")):
    """Reactive tasks at rest, and the records of their rows. Their jobs are made with them, and end with them."""

    def __init__(self, access: Access, changes: Changes, jobs: Jobs, ends: TaskEnds, clock: Clock) -> None:
        super().__init__(access)
        self._changes = changes
        self._jobs = jobs
        self._ends = ends
        self._clock = clock

    async def declare(self, plans: Sequence[TaskPlan], now: datetime) -> builtins.list[TaskRow]:
        """Store the tasks of a program; each as it was stored before, or as it is stored now if it is new.

        A task stays as it is if a higher version of it was declared.
        """
        known = {row.plan.name: row for row in await self.list()} if plans else {}
        for plan in sorted(plans, key=lambda plan: plan.name):
            new, reconciling = newly(plan, known.get(plan.name))
            if not new:  # an unchanged declaration takes no lock, and needs no right to write
                continue
            values = {"now": now, "reconciling": None if reconciling is None else reconciling.text()}
            async with self._writing() as session:  # at once: what is stored as declared is not looked at again
                await self._declare(session, plan, known.get(plan.name), values)
        names = {plan.name for plan in plans}
        return [row for row in await self.list() if row.plan.name in names] if plans else []

    async def list(self) -> builtins.list[TaskRow]:
        """All tasks by name."""
        return self._tasks(await self._look("list"))

    async def plan(
        self, rows: Sequence[RowPlan], move: Move | None, now: datetime, progress: Sequence[Progress] = ()
    ) -> int | None:
        """Write plans, and move the reader with them; the number of new jobs.

        The progress of scans is written too. None, and nothing is written, if the reader was
        lost, or such a task was declared again meanwhile, or its scan restarted.
        """
        async with self._begin_kept() as session:
            launched = await self._plan(session, rows, now) if rows else 0
            if move is not None and not await self._changes.move(
                session, move.reader, move.lease, move.before, move.after, now
            ):
                return None
            for one in progress:
                task, reconciling = one.task, one.reconciling
                known = {"version": task.plan.version, "signature": task.plan.signature, "begun": task.begun}
                known |= {"declared_at": task.declared_at}
                text = None if reconciling is None else reconciling.text()
                written = {"reconciling": text, "begins": int(one.begins), "now": now}
                if not await self._fetch(session, "progress", task=task.id, **known, **written):
                    return None
            await session.commit()
        return launched

    async def hold(self, task: int, until: datetime) -> None:
        """Let none of a task's jobs start until a time."""
        await self._run("hold", task=task, until=until)

    async def list_held(self, now: datetime) -> dict[int, datetime | None]:
        """The tasks that start no jobs: each with a time, or None if it is paused."""
        rows = await self._look("held", now=now)
        return {row["id"]: None if row["paused"] else self._access.time(row["held_until"]) for row in rows}

    async def pause(self, name: str, *, paused: bool) -> int | None:
        """Let none of a task's jobs start, or let them again; the number of the task, or None if there is none."""
        rows = await self._run("pause", name=name, paused=paused)
        return rows[0]["id"] if rows else None

    async def release(self, task: int, now: datetime, limit: int) -> int:
        """Make jobs of a task due that were put off while it was held, in one bounded step; their number."""
        return len(await self._run("release", task=task, now=now, held=HELD, limit=limit))

    async def find(self, session: OpenTransaction, task: int, key: str) -> RecordRow | None:
        """The record of a row; None if there is none."""
        return self._one(RecordRow, await self._fetch(session, "find", task=task, key=key))

    async def signature(self, session: OpenTransaction, task: int) -> str:
        """Filter and watch of a task as stored."""
        ((found,),) = await self._fetch(session, "signature", task=task)
        return str(found)

    async def generations(self, session: OpenTransaction | None, task: int, keys: Sequence[str]) -> dict[str, int]:
        """The generations of the records of rows of one task, by key; without a session as they are committed."""
        rows = await self._ask(session, "generations", task=task, keys=[*keys])
        return {key: number for key, number in rows}  # noqa: C416 - records

    async def mark(self, transaction: OpenTransaction, lease: int, job: Job) -> bool:
        """Mark a running job as completed, in a transaction; False if the lease does not hold it.

        Once that has committed, the job ends as success, also if its worker is lost.
        """
        return await self._execute(transaction, "mark", id=job.id, lease=lease, started_at=job.started_at) == 1

    async def read_marks(self, lease: int, jobs: Sequence[UUID]) -> dict[UUID, bool | None]:
        """Whether each job that the lease holds is marked; None if an open transaction may mark it.

        SQLite has no such concurrent transactions: it waits for its turn, and knows.
        """
        rows = await self._run("marked", ids=[*jobs], lease=lease)  # SQLite: after a transaction that may be marking it
        return {self._access.uuid(job): None if marked is None else bool(marked) for job, marked in rows}

    async def note_failures(self, task: int, times: Sequence[datetime], most: int) -> builtins.list[datetime]:
        """Note that attempts of a task have failed; the times of the last ones on all machines."""
        rows = await self._run("failed", task=task, times=[*times], most=most)
        return [self._access.time(time) for row in rows for time in self._access.items(row["failures"])]

    async def open(self, task: int, until: datetime) -> bool:
        """Let none of a task's jobs start until a time, and forget failures; False if another process was quicker."""
        return bool(await self._run("open", task=task, until=until))

    async def records(self, session: OpenTransaction, task: int, keys: Sequence[str]) -> dict[str, Kept]:
        """The records of some rows, by key."""
        rows = await self._fetch(session, "records", task=task, keys=[*keys])
        return self._read_kept(rows)

    async def slice(self, session: OpenTransaction, task: int, after: str, limit: int) -> dict[str, Kept]:
        """The records of rows after a key, in the order of keys."""
        return self._read_kept(await self._fetch(session, "slice", task=task, after=after, limit=limit))

    async def forget(self, now: datetime, limit: int) -> int:
        """Forget expired records, and their jobs with them, in one bounded step; their number."""
        ((number,),) = await self._run("forget", now=now, limit=limit)
        return int(number)

    async def end_pending(self, session: Session, rows: Sequence[Row], state: JobState, now: datetime) -> set[Any]:
        """End the pending jobs of records, given task, key and job id; the ids of the pending ones, as stored."""
        if not rows:
            return set()
        ids = {row["id"]: self._access.uuid(row["id"]) for row in rows}
        pending = {row["id"] for row in await self._fetch(session, "pending", ids=[*ids.values()])}
        settlements = [
            Settlement(
                id=ids[row["id"]],
                state=state,
                event=JobEvent.SKIPPED if state is JobState.SKIPPED else JobEvent.CANCELED,
                attempt=0,
                run_at=now,
                finished_at=now,
                expires_at=now + FOR_EVER,
                mark=Mark(row["task"], row["key"], _LAST_GENERATION),
            )
            for row in rows
            if row["id"] in pending
        ]
        if settlements:
            await self._jobs.settle_pending(session, settlements)
        return pending

    # ----- steps

    @abstractmethod
    async def _record(self, session: Session, plans: Sequence[RowPlan], now: datetime) -> tuple[int, Sequence[Row]]:
        """Write the records of plans, and the jobs of new ones: the number of these, and the other records."""

    async def _plan(self, session: Session, plans: Sequence[RowPlan], now: datetime) -> int:
        """Write plans; the number of new jobs."""
        new, rows = await self._record(session, plans, now)
        launched = [launch(row) for row in choose(rows, plans, lambda plan: plan.runs)]
        if launched:
            await self._ends.launch(session, launched, now)
        dropped = [row for row in choose(rows, plans, lambda plan: plan.drops) if row["live"]]
        await self.end_pending(session, dropped, JobState.SKIPPED, now)
        return new + sum(one.idle for one in launched)

    async def _declare(self, session: Session, plan: TaskPlan, row: TaskRow | None, values: dict[str, Any]) -> None:
        if row is None:
            await self._fetch(session, "add", **_plan_values(plan, None), **values)
            tasks = self._tasks(await self._fetch(session, "list"))
            row = next(one for one in tasks if one.plan.name == plan.name)  # another program may have added it just now
        if _is_unkeyed(plan, row):  # first, as planners lock records before tasks
            await self._fetch(session, "unkey", task=row.id)
        await self._fetch(session, "declare", **_plan_values(plan, row.id), **values)
        if _runs_otherwise(plan, row):
            await self._fetch(session, "redeclare", task=row.id, unkeyed=_is_unkeyed(plan, row))

    def _tasks(self, rows: Sequence[Row]) -> builtins.list[TaskRow]:
        items = self._access.items
        return self._read(
            TaskRow, rows, plan=self._plan_of, interests=lambda row: tuple(sorted(items(row["interests"])))
        )

    def _plan_of(self, row: Row) -> TaskPlan:
        (plan,) = self._read(TaskPlan, [row])
        return replace(plan, options=replace(plan.options, task=None))

    def _read_kept(self, rows: Sequence[Row]) -> dict[str, Kept]:
        return dict(zip((row["key"] for row in rows), self._read(Kept, rows), strict=True))


def choose(rows: Sequence[Row], plans: Sequence[RowPlan], wanted: Callable[[RowPlan], bool]) -> list[Row]:
    """The rows whose plans are wanted."""
    if not rows:
        return []
    keys = {(plan.task, plan.key) for plan in plans if wanted(plan)}
    return [row for row in rows if row_key(row) in keys]


def _plan_values(plan: TaskPlan, number: int | None) -> dict[str, Any]:
    options = options_text(replace(plan.options, task=number)) or ""
    return {name: getattr(plan, name) for name in _PLAN} | {"options": options, "spec": plan.spec.text()}


def newly(plan: TaskPlan, known: TaskRow | None) -> tuple[bool, Reconciling | None]:
    """Whether a declaration changes a task, and the scan of its rows that follows from it."""
    if known is None:
        return True, Reconciling()
    if known.plan.version > plan.version or known.plan == plan:
        return False, None
    reprocess = plan.on_version_change if plan.version > known.plan.version else "none"
    rekeyed = _is_unkeyed(plan, known) and plan.spec.partition is not None
    if reprocess == "none" and not (plan.reconciles and (rekeyed or known.plan.signature != plan.signature)):
        return True, None
    again = known.reconciling or Reconciling(part="records")
    return True, replace(
        again.begin(),
        part="rows" if plan.reconciles else again.part,
        version=again.version if reprocess == "none" else plan.version,
        reprocess=max(reprocess, again.reprocess, key=_REPROCESSES.index),
        retimes=again.retimes or rekeyed or plan.spec.run_at != known.plan.spec.run_at,
    )


def _runs_otherwise(plan: TaskPlan, known: TaskRow) -> bool:
    """Whether pending jobs of a task are to run otherwise than they were made to."""
    if _is_unkeyed(plan, known):
        return True
    return any(getattr(plan, name) != getattr(known.plan, name) for name in ("function", "kind", "pool", "priority"))


def _is_unkeyed(plan: TaskPlan, known: TaskRow) -> bool:
    """Whether the keys that rows have for the gate are of another column."""
    return plan.spec.partition != known.plan.spec.partition


def of_rows(rows: Sequence[Row]) -> dict[str, Any]:
    """Tasks and keys, which rows begin with, as parameters: one store takes them as rows, the other as two arrays."""
    keys = [(row[0], row[1]) for row in rows]
    return {"rows": keys, "tasks": [task for task, _ in keys], "keys": [key for _, key in keys]}


def row_key(row: Row) -> RowKey:
    """The task and the key in a row."""
    return row["task"], row["key"]


def launch(row: Row) -> Launch:
    """The launch for a row of the queries `ended`, `record` and `rerun`."""
    return Launch(*row_key(row), bool(row["idle"]))
