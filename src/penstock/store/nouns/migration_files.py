"""The migration files of programs, as far as they were run on a database."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Literal

from penstock.dataclass import dataclass
from penstock.store.nouns.noun import Noun
from penstock.store.session import OpenTransaction, Session

Step = Literal["expand", "backfill", "contract", "done", "down"]


@dataclass(frozen=True, slots=True)
class FileProgress:
    """How far a file was run on a database."""

    step: Step = "expand"
    done: int = 0  # pieces of the step, or backfills
    cursor: str | int | None = None  # the last key of the backfill
    rows: int = 0  # rows that its backfills have changed
    total: int = 0  # rows that they had to change when they began
    seconds: float = 0  # their time, with pauses
    at: str = ""  # the time of the last batch

    @classmethod
    def parse(cls, text: str) -> FileProgress:
        """Progress as it is stored."""
        return cls(**json.loads(text))

    def text(self) -> str:
        """The progress as JSON. A field that a later release adds changes no text that is compared."""
        return json.dumps({name: value for name, value in asdict(self).items() if value != getattr(_BEGUN, name)})

    def after_batch(self, cursor: str | int, rows: int, seconds: float, at: datetime) -> FileProgress:
        """The progress after a batch, and the pause that follows it."""
        seconds, told_at = round(self.seconds + seconds, 3), at.isoformat(" ", "seconds")
        return replace(self, cursor=cursor, rows=self.rows + rows, seconds=seconds, at=told_at)

    def summary(self) -> str:
        """The progress in words: of a backfill its rows, its rate and the time left."""
        if self.step != "backfill":
            waits = "waits for run --contract, once no process of the old release runs"
            return {"contract": waits, "done": "done"}.get(self.step, f"{self.step} is not complete")
        if not self.rows:
            return f"backfill of {self.total} rows has begun"
        rate = self.rows / max(self.seconds, 0.001)
        left = timedelta(seconds=round(max(self.total - self.rows, 0) / rate))
        return f"backfill: {self.rows} of {self.total} rows, {rate:.0f} a second, {left} left; last batch {self.at}"


_BEGUN = FileProgress()


class MigrationFiles(Noun, queries=("migration_files",)):
    """The progress of each migration file. It moves by compare-and-set, so that two processes may run one."""

    async def list(self) -> dict[str, FileProgress]:
        """The progress of each file that was begun, in order of their names."""
        return {row["name"]: FileProgress.parse(row["progress"]) for row in await self._look("list")}

    async def begin(self, name: str, progress: FileProgress = _BEGUN) -> None:
        """Note that a file was begun, unless it is noted already."""
        await self._run("begin", name=name, progress=progress.text())

    async def advance(
        self, session: OpenTransaction, name: str, before: FileProgress, after: FileProgress | None
    ) -> bool:
        """Note progress, or with None forget the file; False if another process has noted other progress."""
        if after is None:
            return bool(await self._fetch(session, "forget", name=name, before=before.text()))
        return bool(await self._fetch(session, "advance", name=name, before=before.text(), after=after.text()))

    def transaction(self) -> AbstractAsyncContextManager[Session]:
        """A transaction for a piece of a file; it commits at the end of the block."""
        return self._writing()
