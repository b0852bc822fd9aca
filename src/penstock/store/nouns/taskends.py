"""The ends of jobs of reactive tasks: whoever ends one looks whether its row has changed meanwhile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from penstock.jobs.job import Settlement
from penstock.jobs.states import RETRIABLE
from penstock.store.nouns.noun import Noun
from penstock.store.session import OpenTransaction, Row

_RETRIABLE = {state.value for state in RETRIABLE}
RowKey = tuple[int, str]  # the number of a task, and the key of a row as the change feed spells it


class Launch(NamedTuple):
    """A row for which there is to be a pending job."""

    task: int
    key: str
    idle: bool  # whether there is none


class TaskEnds(Noun, ABC, queries=("moves", "records", "tasks")):
    """Ends jobs of tasks, and begins new ones, in the transactions of others."""

    @abstractmethod
    async def ended(self, session: OpenTransaction, settlements: Sequence[Settlement]) -> None:
        """Compare the generations of jobs that have ended or are to run again; begin changed rows anew."""

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


def of_rows(rows: Sequence[Row]) -> dict[str, Any]:
    """Tasks and keys as parameters: one stores takes them as rows, the other as two arrays."""
    rows = [(row[0], row[1]) for row in rows]
    return {"rows": rows, "tasks": [task for task, _ in rows], "keys": [key for _, key in rows]}


def row_key(row: Row) -> RowKey:
    """The task and the key in a row."""
    return row["task"], row["key"]


def launch(row: Row) -> Launch:
    """What is to be launched for a row of the queries `ended`, `record` and `rerun`."""
    return Launch(*row_key(row), bool(row["idle"]))
