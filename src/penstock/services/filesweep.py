"""Deletes bytes of deleted files and of uploads that were cut off, and files that nobody claims, in bounded steps.

Owns when each of the three is looked for. Only bytes older than a day are taken for left over: a row follows its bytes
within seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from penstock.calls.run.runner import FunctionCalls
from penstock.errors import ConfigError
from penstock.files.file import FILE_FIELD, FileField
from penstock.observe import points
from penstock.observe.logs import event as log_event
from penstock.schema.stored import StoredTable
from penstock.store.session import reading
from penstock.transaction.transaction import Transaction

_AT_ONCE = 100
_SOON, _LATER, _RARELY = 0.1, 60.0, 86_400.0
_FIRST_WALK = 3_600.0  # so that programs that only run for minutes do not walk
_LEFT_OVER = timedelta(days=1)
_UNSEEN = "Unclaimed files are kept, as no id can be looked for in these. Delete files by ctx.storage.delete."


class FileSweep:
    """The parts of the pruner that look after files. A process that cannot reach the bytes leaves them to others."""

    def __init__(self, runner: FunctionCalls) -> None:
        self._runner = runner
        self._engine = runner.engine
        self._files = runner.engine.store.files
        self._walk: AsyncIterator[list[str]] | None = None
        self._has_begun = False
        self._tables: Mapping[str, StoredTable] = {}

    @property
    def is_owed(self) -> bool:
        """Whether a transaction of this process has deleted files since the last look."""
        return self._files.owes

    async def delete_owed(self) -> float:
        """Delete the bytes of files that were deleted; seconds until the next look."""
        self._files.owes = False
        owed = await self._files.list_owed(_AT_ONCE)
        if not owed:
            return _LATER
        if not self._can_reach():
            return _RARELY
        await self._engine.objects.delete([key for key in owed.values() if key is not None])
        if points.armed:
            await points.reach("file.deleted", files=owed)
        await self._files.settle(owed)
        log_event("files.deleted", files=len(owed))
        return _SOON

    async def delete_unclaimed(self) -> float:
        """Delete files that were uploaded some time ago and that no row refers to; seconds until the next look.

        A program without any field of the type `Id[File]` keeps ids in another way, so nothing of it is deleted.
        """
        before = self._engine.clock.now() - timedelta(seconds=self._engine.config.unclaimed_files_ttl)
        files = await self._files.list_unclaimed(before, _AT_ONCE)
        if not files or not (fields := await self._list_fields()):
            return _LATER
        if hidden := self._find_hidden(fields):
            log_event("files.not_swept", logging.WARNING, fields=",".join(hidden), fix=_UNSEEN)
            return _RARELY
        async with reading(self._engine.store.begin_read) as session:  # a long look, which keeps nobody from writing
            claimed = await self._files.find_claimed(session, files, fields)
        if claimed:
            await self._files.claim(claimed)
        left = {file_id: url for file_id, url in files.items() if file_id not in claimed}

        async def delete(transaction: Transaction) -> int:
            found = await self._files.find_claimed(transaction, left, fields)
            return sum([await transaction.remove_file(one) for one in left if one not in found])

        if left and (deleted := await self._runner.write(delete)):
            log_event("files.unclaimed", logging.WARNING, files=deleted)
        return _SOON

    async def delete_left_over(self) -> float:
        """Delete the bytes of uploads that a crash or a lost answer cut off; seconds until the next look."""
        if not self._has_begun:
            self._has_begun = True
            return _FIRST_WALK
        space = (await self._engine.file_space()).name
        if self._walk is None:
            if not await self._is_used() or not self._can_reach():
                return _RARELY
            before = self._engine.machine.machine_time() - _LEFT_OVER
            await self._engine.objects.sweep_parts(space, before)
            self._walk = self._engine.objects.list(space, before)
        keys = await anext(self._walk, None)
        if keys is None:
            self._walk = None
            return _RARELY
        kept = await self._files.find_kept(keys) if keys else set()
        if left := [key for key in keys if key not in kept]:
            await self._engine.objects.delete(left)
            log_event("files.left_over", files=len(left))
        return _SOON

    # ----- steps

    async def _is_used(self) -> bool:
        """Whether there may be bytes, so that a program without files makes no folder."""
        place = self._engine.config.files
        return await self._files.find_any() if "://" in place else await asyncio.to_thread(Path(place).exists)

    def _can_reach(self) -> bool:
        try:
            return self._engine.objects is not None
        except ConfigError as error:
            log_event("files.not_swept", logging.WARNING, error=error)
            return False

    async def _list_fields(self) -> Sequence[FileField]:
        """The columns that claim files, of all programs on the database."""
        stored_as = [one for one in await self._engine.store.programs.list() if one.noun == FILE_FIELD]
        declared = {FileField.read(one.name, one.spec) for one in stored_as}
        self._tables = await self._engine.store.catalog.read_tables(sorted({one.table for one in declared}))
        return [one for one in declared if self._has(one)]

    def _has(self, field: FileField) -> bool:
        """Whether a column is there, or its table is not, so that nobody knows."""
        return field.table not in self._tables or field.column in self._tables[field.table].columns

    def _find_hidden(self, fields: Sequence[FileField]) -> list[str]:
        """The columns in which no id can be looked for."""
        return sorted(one.name for one in fields if one.form == "encrypted" or one.table not in self._tables)
