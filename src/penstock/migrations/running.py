"""Runs migration files: statements with short locks that are tried again, and backfills in batches.

Progress is stored in the transaction of each piece, by compare-and-set. A killed run goes on with the next piece, and
two processes may run one file. Statements that PostgreSQL runs outside of transactions only are run again after a kill.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby, product
from typing import Any, TypeVar

from penstock.clock import Clock
from penstock.errors import Conflict, DatabaseBusy, DataError, SchemaMismatch, UsageError
from penstock.migrations.files import MigrationFile, Piece
from penstock.migrations.operations import Backfill, Relax
from penstock.schema.stored import StoredTable
from penstock.store.nouns.catalog import Change
from penstock.store.nouns.migration_files import FileProgress, Step
from penstock.store.push.alter import rewrite_relaxed
from penstock.store.session import Session, Statement
from penstock.store.sql.ddl import SQLITE
from penstock.store.sql.dialect import placeholder
from penstock.store.store import Store

T = TypeVar("T")
Tell = Callable[[str], None]

ATTEMPTS = 6  # between them 0.5, 1, 2, 4 and 8 seconds pass
_SHORT_LOCKS = Statement("set local lock_timeout = '5s'"), Statement("set local statement_timeout = 0")
_ALONE = re.compile(r"\bconcurrently\b|\bvalidate\s+constraint\b", re.IGNORECASE)
_BUILD = re.compile(r"create\s+(?:unique\s+)?index\s+concurrently\s+(?:if\s+not\s+exists\s+)?(\S+)", re.IGNORECASE)
_DROP_INDEX = re.compile(r"drop\s+index\s+concurrently\s+(?!if\s)", re.IGNORECASE)
_DROPS = re.compile(r'alter\s+table\s+"?([^\s"]+)"?\s+drop\s+column\s+"?([^\s"]+)"?', re.IGNORECASE)
_NEXT: dict[Step, Step] = {"expand": "backfill", "backfill": "contract", "contract": "done"}


class _Overtaken(Exception):
    """Another process has filled these rows."""


class Migrator:
    """Runs files on a store whose own tables of penstock exist. `tell` hears of each statement and batch."""

    def __init__(self, store: Store, clock: Clock, tell: Tell) -> None:
        self._store, self._clock, self._tell = store, clock, tell
        self._files = store.migration_files

    async def run(self, file: MigrationFile, *, contract: bool) -> FileProgress:
        """Run the steps of a file that are left, `contract` only if it is asked for; the progress after that."""
        await self._files.begin(file.name)
        while (now := (await self._files.list()).get(file.name)) and now.step != "down":
            if now.step == "done" or (now.step == "contract" and "contract" in file.steps and not contract):
                return now
            try:
                await self._next(file, now)
            except (DataError, KeyError) as error:
                what = error.what if isinstance(error, DataError) else f"There is no {error}."
                raise SchemaMismatch(
                    f"{file.name}, {now.step}(), does not fit this database: {what}",
                    fix="If its tables have their last form, run penstock migration run --stamp. If it skipped a "
                    f"release, run penstock migration down {file.name}, and then penstock migrate of that release.",
                ) from error
        raise UsageError(f"{file.name} is being undone, or was.", fix="Finish that with penstock migration down.")

    async def down(self, file: MigrationFile) -> None:
        """Undo what a file has expanded."""
        now, steps = (await self._files.list()).get(file.name), file.steps
        contracted = now and ((now.step == "contract" and now.done) or (now.step == "done" and "contract" in steps))
        if now is None or contracted or ("down" not in steps and now != FileProgress()):
            raise UsageError(
                f"{file.name} cannot be undone.",
                fix="Write a new file; a file can be undone by its down(), from its expand until its contract.",
            )
        if now.step != "down":
            await self._together(file, now, FileProgress("down", cursor=now.step), [])
        while left := (await self._files.list()).get(file.name):
            try:
                await self._next(file, left)
            except (DataError, KeyError) as error:
                if left.cursor != "expand":  # if it was cut off there, some of it was never made
                    raise
                self._tell(f"-- left out: {error}")
                await self._together(file, left, replace(left, done=left.done + 1), [])

    # ----- one piece

    async def _next(self, file: MigrationFile, now: FileProgress) -> None:
        if now.step == "backfill":
            if now.done < len(file.backfills):
                await self._batch(file, now, file.backfills[now.done])
                return
        elif now.done < len(pieces := file.pieces(now.step, self._store.dialect)):
            await self._piece(file, now, pieces[now.done :])
            return
        after = None if now.step == "down" else replace(now, step=_NEXT[now.step], done=0, cursor=None)
        if after and after.step == "backfill":
            counts = [await self._store.catalog.count(self._select(one, "count(*)")) for one in file.backfills]
            after = replace(after, total=sum(counts))
        await self._together(file, now, after, [])

    async def _piece(self, file: MigrationFile, now: FileProgress, left: Sequence[Piece]) -> None:
        """The statement that has to run alone, or those before the next one of that kind."""
        left = left[:1] if now.cursor == "expand" else left
        alone, first = next((key, list(some)) for key, some in groupby(left, self._is_alone))
        if alone:
            await self._alone(file, now, first[0])
        else:
            await self._together(file, now, replace(now, done=now.done + len(first)), list(map(str, first)))

    def _is_alone(self, piece: Piece) -> bool:
        return isinstance(piece, Relax) or (not self._is_sqlite and _ALONE.search(piece) is not None)

    async def _alone(self, file: MigrationFile, now: FileProgress, piece: Piece) -> None:
        after = replace(now, done=now.done + 1)
        async with self._store.catalog.lock() as lock:
            if (await self._files.list()).get(file.name) != now:
                return  # another process has done it
            self._tell(piece.remark if isinstance(piece, Relax) else piece)
            if isinstance(piece, Relax):
                stored = (await lock.read_tables([piece.table]))[piece.table]
                changes = [Change(piece.table, tuple(rewrite_relaxed(stored, piece.column, self._store.dialect)))]
            else:
                changes = [Change("", (one,), alone=True) for one in _repeatable(piece)]
            for change in changes:
                await lock.apply(change)
            if not self._is_sqlite:
                await self._together(file, now, after, [])
        if self._is_sqlite:  # its lock is a transaction, which ends first
            await self._together(file, now, after, [])

    async def _together(
        self, file: MigrationFile, now: FileProgress, after: FileProgress | None, statements: Sequence[str]
    ) -> None:
        """Statements and the progress in one transaction. Tables whose columns go are held: see `Interests.hold`."""
        statements = [each for one in statements for each in (*await self._indexes_of_dropped(one), one)]
        held = dict.fromkeys(match[1] for one in statements if (match := _DROPS.match(one)))

        async def work(session: Session) -> None:
            if not await self._files.advance(session, file.name, now, after):
                return  # another process has done it
            everywhere = await self._store.interests.everywhere(session)
            for table, interests in product(held, everywhere):
                await interests.hold(table, session)
            for statement in statements:
                await session.execute(Statement(statement, bounded=False))
            for table, interests in product(held, everywhere):
                for name in await interests.release(table, session):
                    self._tell(f"-- {name} reads a column that is gone; its reader is told that changes are lost")

        for statement in statements:
            self._tell(statement)
        await self._patiently(work)

    async def _patiently(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """Work in a transaction that waits for locks only shortly, as all writers would wait behind it."""
        for attempt in range(ATTEMPTS):
            try:
                async with self._files.transaction() as session:
                    for setting in () if self._is_sqlite else _SHORT_LOCKS:
                        await session.execute(setting)
                    return await work(session)
            except (DatabaseBusy, Conflict) as error:
                if attempt == ATTEMPTS - 1:
                    raise
                self._tell(f"-- waiting for others: {error.what}")
                await self._clock.sleep(0.5 * 2**attempt)
        raise AssertionError

    async def _read_table(self, table: str) -> StoredTable:
        return (await self._store.catalog.read_tables([table]))[table]

    async def _indexes_of_dropped(self, statement: str) -> list[str]:
        """SQLite drops no column of an index; PostgreSQL drops the index with it."""
        match, quote = _DROPS.match(statement), self._store.dialect.quote
        if match is None or not self._is_sqlite:
            return []
        return [
            f"drop index if exists {quote(index.name)}"
            for index in (await self._read_table(match[1])).indexes.values()
            if any(column.removesuffix(" desc") == quote(match[2]) for column in index.columns)
        ]

    @property
    def _is_sqlite(self) -> bool:
        return self._store.dialect.name == SQLITE

    # ----- backfills

    async def _batch(self, file: MigrationFile, now: FileProgress, backfill: Backfill) -> None:
        """One batch; then as long a pause as it took, so that a backfill never takes more than half of a connection."""
        began = self._clock.monotonic()

        async def work(session: Session) -> FileProgress:
            keys = await self._fill(session, backfill, now.cursor)
            after = replace(now, done=now.done + 1, cursor=None)
            if keys:
                passed = self._clock.monotonic() - began
                after = now.after_batch(keys[-1], len(keys), 2 * passed, self._clock.now())
            if not await self._files.advance(session, file.name, now, after):
                raise _Overtaken
            return after

        with suppress(_Overtaken):
            after = await self._patiently(work)
            if after.rows > now.rows:
                self._tell(f"-- {backfill.table}: {after.summary()}")
                await self._clock.sleep(self._clock.monotonic() - began)

    def _select(self, backfill: Backfill, what: str) -> str:
        return f"select {what} from {self._store.dialect.table(backfill.table)} where ({backfill.where})"

    async def _fill(self, session: Session, backfill: Backfill, cursor: str | int | None) -> list[Any]:
        """Fill the rows behind a cursor; their keys, in order."""
        sql = self._store.dialect
        first, second = (placeholder(sql.parameter, number) for number in (1, 2))
        table, key = sql.table(backfill.table), sql.quote(backfill.key)
        names = [backfill.key]
        if callable(backfill.values):
            names += [column.name for column in (await self._read_table(backfill.table)).columns.values()]
        behind = f" and {key} > {first}" if cursor is not None else ""
        rows = await session.fetch(
            Statement(
                f"{self._select(backfill, ', '.join(map(sql.quote, names)))}{behind} "
                f"order by {key} limit {backfill.batch}{'' if self._is_sqlite else ' for update'}"
            ),
            [cursor] if behind else [],
        )
        keys = [row[0] for row in rows]
        if not callable(backfill.values):
            values = ", ".join(f"{sql.quote(column)} = {value}" for column, value in backfill.values.items())
            between = f"{key} >= {first} and {key} <= {second} and ({backfill.where})"
            update = Statement(f"update {table} set {values} where {between}", bounded=False)
            await session.execute(update, [keys[0], keys[-1]]) if keys else None
            return keys
        for row in rows:
            given = backfill.values(dict(zip(names, row, strict=True)))
            marks = [placeholder(sql.parameter, number) for number in range(1, len(given) + 2)]
            values = ", ".join(f"{sql.quote(column)} = {mark}" for column, mark in zip(given, marks, strict=False))
            update = Statement(f"update {table} set {values} where {key} = {marks[-1]}")
            await session.execute(update, [*given.values(), row[0]]) if given else None
        return keys


def _repeatable(sql: str) -> list[str]:
    """A statement that runs outside of transactions, so that it can be run again after a kill."""
    build = _BUILD.match(sql)
    invalid = [f"drop index concurrently if exists {build[1]}"] if build else []
    return [*invalid, _DROP_INDEX.sub("drop index concurrently if exists ", sql)]
