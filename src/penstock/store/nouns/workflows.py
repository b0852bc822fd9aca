"""Runs of workflows at rest: their records, the events for them, and what wakes them.

Each write of a run's worker is fenced by the run's lease: a worker that has lost it writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from penstock.dataclass import dataclass
from penstock.errors import LeaseLost
from penstock.jobs.job import NewJob, Settlement
from penstock.jobs.order import FARTHEST
from penstock.store.nouns.jobs import CANCEL_EVENT, JOB_EVENT, Jobs
from penstock.store.nouns.jobtext import options_of
from penstock.store.nouns.noun import Access, Noun
from penstock.store.session import OpenTransaction, Row, Session
from penstock.values import decode_json
from penstock.workflows.record import Record

__all__ = ["CANCEL_EVENT", "JOB_EVENT", "Arrival", "Workflows", "Write"]

_YEAR = timedelta(days=365)


NOW = "now"  # the name of a cancel that runs no code


@dataclass(frozen=True, slots=True)
class Arrival:
    """An event for a run."""

    id: int
    kind: str  # event, job or cancel
    name: str  # the name of the event, or the id of the job that has ended
    payload: str  # JSON
    sent_at: datetime


@dataclass(frozen=True, slots=True)
class Stuck:
    """Runs of one workflow that stand still."""

    function: str
    parked: bool  # whether they wait for code that fits, and not for an event
    number: int


@dataclass(frozen=True, slots=True)
class Active:
    """Unfinished runs of one workflow."""

    function: str
    waits: bool  # whether they wait or are parked, and else they run
    number: int


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that has not ended."""

    function: str
    args: Mapping[str, Any]
    starter: str | None  # the mark of its starter


@dataclass(frozen=True, slots=True)
class Patch:
    """A change of the code of a workflow, as ``ctx.patched`` names it."""

    name: str
    workflow: str
    since: datetime  # when the first known run took it up
    with_it: int  # unfinished runs that have
    without: int  # unfinished runs that began before, and have not: they may need the old branch


@dataclass(frozen=True, slots=True)
class Write:
    """The writes of a run's worker that belong together."""

    records: Sequence[Record] = ()
    received: Sequence[int] = ()  # ids of events
    jobs: Sequence[NewJob] = ()
    cancels: Sequence[UUID] = ()  # jobs that are to be canceled
    refused: tuple[str, str] | None = None  # the function and the code, if that does not fit the run
    cancelled: bool = False  # whether the run has learned that it is to be canceled
    restarts: bool = False  # whether the attempts at the run are counted from 1 again
    published: str | None = None  # the state that it has published last
    args: str | None = None  # the arguments with which it begins again, without the records that it has

    @property
    def of_records(self) -> bool:
        """Whether it has records, and nothing else."""
        return bool(self.records) and self == Write(self.records)


class Workflows(Noun, queries=("workflows",)):
    """Runs of workflows."""

    def __init__(self, access: Access, jobs: Jobs) -> None:
        super().__init__(access)
        self._jobs = jobs
        self._turn = asyncio.Lock()

    async def read_history(self, run: UUID) -> list[Record]:
        """The records of a run."""
        return self._records(await self._look("history", run=run))

    async def read_inbox(self, run: UUID) -> list[Arrival]:
        """The events that a run has not received. It is woken again for what comes from now on."""
        return self._read(Arrival, await self._run("open_inbox", run=run))

    async def list_events(self, run: UUID) -> list[Arrival]:
        """The events that a run has not received, for people."""
        return self._read(Arrival, [row for row in await self._look("inbox", run=run) if row["kind"] == "event"])

    async def list_stuck(self, before: datetime, limit: int) -> list[Stuck]:
        """Workflows whose runs are parked, or have waited since before a time for events, without a limit."""
        return self._read(Stuck, await self._look("stuck", far=before + _YEAR, until=before + FARTHEST, limit=limit))

    async def count_active(self, functions: Sequence[str], limit: int) -> list[Active]:
        """Count the runs of these workflows that run, and that wait among so many scheduled jobs."""
        return self._read(Active, await self._look("active", functions=list(functions), limit=limit))

    async def list_patches(self) -> list[Patch]:
        """The changes of code that runs have taken up, the newest first."""
        return self._read(Patch, await self._look("patches"))

    async def write(self, run: UUID, lease: int, write: Write, now: datetime) -> None:
        """Write for a run in a transaction of its own.

        Raises:
            LeaseLost: The run has another lease.
        """
        if write.of_records:  # most writes, so they take one statement
            rows = [self._row(record) for record in write.records]
            if not await self._run_each("record_alone", rows, run=run, lease=lease):
                raise _lease_error()
            return
        async with self._writing() as session:
            await self.write_within(session, run, lease, write, now)

    async def write_within(self, session: Session, run: UUID, lease: int, write: Write, now: datetime) -> None:
        """Write for a run in the transaction of a step. Raises the error of `write`."""
        if not await self._fetch(session, "hold", run=run, lease=lease):
            raise _lease_error()
        await self._write(session, run, write, now)
        if write.restarts:
            await self._execute(session, "reset_attempts", run=run, lease=lease)

    async def suspend(self, run: UUID, lease: int, write: Write, settlement: Settlement, now: datetime) -> None:
        """Let a run sleep, with what it has still to write. Raises the error of `write`."""
        async with self._writing() as session:
            if not await self._jobs.settle_within(session, lease, settlement):
                raise _lease_error()
            await self._write(session, run, write, now)

    async def find_unfinished(
        self, runs: Sequence[UUID], most: int, inside: OpenTransaction, *, alone: bool = False
    ) -> dict[UUID, bool]:
        """Find which of these runs have not ended, by now, and whether they have so many events that nobody received.

        No transaction of a function reads the tables of jobs for it. Callers hold a connection each. They take turns on
        one that is not for calls, or they would wait for each other. A guest is `alone` with its own, `inside`, and so
        is each caller behind a pooler: all that it lends may be held by callers.
        """
        asked = [{"run": run} for run in runs]
        if alone or self._access.is_pooled:
            rows = await self._fetch_each(inside, "unfinished", asked, most=most)
        else:
            async with self._turn:
                rows = await self._look_each("unfinished", asked, most=most)
        return {self._access.uuid(row["run"]): bool(row["is_full"]) for row in rows}

    async def find_open(self, run: UUID, inside: OpenTransaction) -> OpenRun | None:
        """Find a run that has not ended, by now; see `find_unfinished`."""
        rows = await self._ask_by_now(inside, "open_run", run=run)
        decrypt = self._access.encryption.decrypt
        return self._one(
            OpenRun,
            rows,
            args=lambda row: decode_json(decrypt(row["args"])),
            starter=lambda row: options_of(row["options"]).starter,
        )

    async def find_keyed(self, function: str, key: str, inside: OpenTransaction, *, alone: bool = False) -> list[UUID]:
        """Find the runs of a workflow that have a key, by now; see `find_unfinished`."""
        rows = await self._ask_by_now(inside, "find_keyed", alone=alone, function=function, key=key)
        return [self._access.uuid(row["run"]) for row in rows]

    async def _ask_by_now(
        self, inside: OpenTransaction, query: str, *, alone: bool = False, **values: Any
    ) -> Sequence[Row]:
        if alone or self._access.is_pooled:
            return await self._fetch(inside, query, **values)
        async with self._turn:
            return await self._look(query, **values)

    async def find(self, run: UUID, number: int, inside: OpenTransaction | None = None) -> Record | None:
        """Find a record of a run; for a function that holds a connection by now, see `find_unfinished`."""
        query, asked = "find_record", dict[str, Any](run=run, number=number)
        rows = await (self._look(query, **asked) if inside is None else self._ask_by_now(inside, query, **asked))
        return next(iter(self._records(rows)), None)

    async def has_key(self, run: UUID, name: str, key: str, inside: OpenTransaction) -> bool:
        """Whether an event with a key was sent to a run, by now; see `find_unfinished`."""
        return bool(await self._ask_by_now(inside, "find_key", run=run, name=name, key=key))

    async def send(
        self,
        transaction: OpenTransaction,
        runs: Sequence[UUID],
        name: str,
        key: str | None,
        payload: str,
        now: datetime,
    ) -> None:
        """Send an event to runs in a transaction, unless one with its key was sent before."""
        rows = [{"run": run} for run in runs]
        await self._fetch_each(transaction, "send", rows, name=name, key=key, payload=payload, now=now)
        await self._fetch_each(transaction, "wake", rows)

    async def end_now(self, transaction: OpenTransaction, run: UUID, now: datetime) -> None:
        """Ask in a transaction that a run be ended without its code."""
        values = {"kind": CANCEL_EVENT, "name": NOW, "payload": "null"}
        await self._execute(transaction, "post", run=run, now=now, **values)
        await self._fetch_each(transaction, "wake", [{"run": run}])

    async def take_back(self, run: UUID, last: int, numbers: Sequence[int], events: Sequence[int], begun: str) -> None:
        """Delete records of a run that has failed or was canceled, as if it had learned of no place after `last`.

        It receives these events again. `begun` is the outcome of its first record from now on.
        """
        async with self._writing() as session:
            await self._execute(session, "delete_records", run=run, numbers=list(numbers))
            await self._execute(session, "change_beginning", run=run, outcome=begun)
            await self._execute(session, "unlearn", run=run, last=last)
            await self._execute(session, "unreceive", run=run, ids=list(events))

    async def copy_received(
        self, transaction: OpenTransaction, run: UUID, other: UUID, ids: Sequence[int]
    ) -> Mapping[int, int]:
        """Give a new run events that another has received; the id of each copy, by that of the event."""
        found = await self._fetch(transaction, "find_received", run=other, ids=list(ids))
        copies = await self._fetch(transaction, "copy_received", run=run, other=other, ids=[one["id"] for one in found])
        return dict(zip((one["id"] for one in found), sorted(one["id"] for one in copies), strict=True))

    async def copy(self, transaction: OpenTransaction, run: UUID, records: Sequence[Record]) -> None:
        """Give a new run records of another."""
        await self._fetch_each(transaction, "record", [self._row(record) for record in records], run=run)

    async def wake(self, now: datetime) -> tuple[int, list[UUID]]:
        """Let runs go on that sleep and have something new; the number of these, and the running ones that have."""
        if self._access.looks_first and not await self._look("any_wakes"):
            return 0, []
        rows = await self._run("let_go_on", now=now)
        running = [self._access.uuid(row["run"]) for row in rows if row["runs"]]
        return len(rows) - len(running), running

    async def let_retry(self, functions: Sequence[str], fingerprint: str, now: datetime) -> int:
        """Let runs of these functions go on that other code has refused, and this has not; their number."""
        values = {"functions": list(functions), "fingerprint": fingerprint}
        if not await self._look("any_refused", **values):
            return 0
        return len(await self._run("let_retry", **values, now=now))

    async def prune(self, now: datetime, limit: int) -> int:  # noqa: ARG002 - a run goes with its job
        """Forget runs whose status has expired, in one bounded step; their number."""
        runs = [self._access.uuid(row["run"]) for row in await self._look("over", limit=limit)]
        if runs:
            await self._run("forget", runs=runs)
        return len(runs)

    # ----- steps

    async def _write(self, session: Session, run: UUID, write: Write, now: datetime) -> None:
        if write.args is not None:
            await self._execute(session, "forget_records", run=run)
            await self._execute(session, "begin_again", run=run, args=write.args)
        if write.published is not None:
            await self._execute(session, "publish", run=run, published=write.published)
        if write.records:
            rows = [self._row(record) for record in write.records]
            await self._fetch_each(session, "record", rows, run=run)
        if write.received:
            await self._execute(session, "receive", run=run, ids=list(write.received))
        if write.jobs:
            await self._jobs.enqueue(session, write.jobs, now)
        if write.cancels:
            await self._jobs.request_cancel(session, write.cancels, now)
        if write.refused is not None:
            function, refused = write.refused
            await self._execute(session, "refuse", run=run, function=function, refused=refused)
        if write.cancelled:
            await self._execute(session, "forget_cancel", run=run)

    def _row(self, record: Record) -> Mapping[str, Any]:
        args = None if record.args is None else self._access.encryption.encrypt(record.args)
        return asdict(record) | {"kind": record.kind.value, "args": args}

    def _records(self, rows: Sequence[Row]) -> list[Record]:
        reveal = self._access.encryption.reveal
        return self._read(Record, rows, args=lambda row: None if row["args"] is None else reveal(row["args"]))


def _lease_error() -> LeaseLost:
    return LeaseLost("The lease of a workflow's run was lost; another worker has it.")
