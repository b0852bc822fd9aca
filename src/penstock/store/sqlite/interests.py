"""Interests on SQLite: an interest and its triggers are made in one transaction.

SQLite reads a trigger's text only when it fires, in the program that writes. So penstock tries it out first, in a
database in memory that has the table's columns and none of penstock's own functions.
"""

from __future__ import annotations

import builtins
import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, closing, nullcontext
from datetime import datetime

from penstock.changes.interest import Interest
from penstock.errors import DeclarationError
from penstock.store.contract.changes import Source, State
from penstock.store.contract.session import OpenTransaction, Session, Statement
from penstock.store.nouns.noun import Access, Noun
from penstock.store.rows.interests import (
    Capture,
    FoundTable,
    Identity,
    Rebuild,
    Stored,
    StoredInterest,
    by_identity,
    capture_state,
    check_table,
    columns_read,
    identity_of,
    stored_interest,
)
from penstock.store.sql.conditions import ConditionSql
from penstock.store.sql.interests import StoredInterests
from penstock.store.sqlite.capture import lost, source, triggers
from penstock.store.sqlite.dialect import SQLITE
from penstock.store.sqlite.tabletext import read_collations, read_table, read_type

_COLLATION = "penstock_decimal"
_NO_TABLES = {"view": "a view", "virtual": "a virtual table"}
_TRIAL = "create table penstock_change (changed_at, interests, kinds, key, before, after)"


class SqliteInterests(Noun, StoredInterests[Session]):
    """See `store.contract.changes.Interests`."""

    def __init__(self, access: Access) -> None:
        super().__init__(access, "interests")

    async def add(self, interests: Sequence[Interest], now: datetime) -> builtins.list[int]:
        stored = await self._stored()
        if any(identity_of(one) not in stored for one in interests):
            async with self._writing() as session:
                for one in interests:
                    await self._add(session, one, now)
                stored = await self._stored(session)
        return [stored[identity_of(one)].id for one in interests]

    async def mend(self, id_: int) -> bool:
        async with self._writing() as session:
            stored = await self._stored(session)
            one = next((one for one in stored.values() if one.id == id_), None)
            if one is None or one.installed is None or self._state(one) == "ok":  # its program declares it
                return False
            await self._rebuild(session, Rebuild(stored, [one]))
        return True

    async def each_of(self, tables: Sequence[str], session: OpenTransaction | None = None) -> frozenset[str]:
        async with self._seen(session) as seen:
            rows = await self._fetch(seen, "each_of", tables=[*tables])
        return frozenset(row[0] for row in rows)

    async def source(self, number: int, only: ConditionSql | None = None) -> Source | None:
        one = next((one for one in (await self._stored()).values() if one.id == number), None)
        if one is None or one.found is None:
            return None
        interest = one.interest if only is None else one.interest.narrowed(only.sql, only.columns)
        return source(interest, read_collations(one.found.text))

    # ----- steps

    def _changing(self) -> AbstractAsyncContextManager[Session]:
        return self._writing()

    def _state(self, one: StoredInterest | None) -> State:
        return capture_state(one, _read)

    async def _add(self, right: Session, interest: Interest, now: datetime) -> builtins.list[int]:
        values = {"name": interest.name, "digest": interest.digest, "source": interest.table, "spec": interest.text()}
        return [row[0] for row in await self._fetch(right, "add", **values, now=now)]

    async def _try_out(self, interests: Sequence[Interest], now: datetime) -> None:
        session = await self._access.begin_write()
        try:
            await self._declare(session, interests, now)
        finally:
            await session.rollback()

    async def _rebuild(self, right: Session, rebuild: Rebuild) -> None:
        for capture in rebuild.captures(self._state):
            made = _checked_triggers(capture)
            for event in ("insert", "update", "delete"):
                await right.execute(Statement(f"drop trigger if exists _penstock_change_{capture.number}_{event}"))
            await self._fetch(right, "uncaptured", capture=capture.number)
            if capture.found is None:
                continue
            for statement in made.values():
                await right.execute(Statement(statement))
            if capture.lost:
                await right.execute(Statement(lost(capture.lost)))
            named = [{"name": name} for name in made]
            installed = json.dumps({"kind": capture.found.kind, "columns": capture.found.columns, "triggers": named})
            for id_ in capture.members:
                await self._fetch(right, "captured", id=id_, capture=capture.number, installed=installed)
        for one in rebuild.dropped:
            await self._fetch(right, "remove", id=one.id)

    async def _declared(self, interests: Sequence[Interest], right: OpenTransaction | None = None) -> set[Identity]:
        async with self._seen(right) as session:
            rows = await self._fetch(session, "declared", names=[one.name for one in interests])
        return {(row[0], row[1]) for row in rows}

    async def _stored(self, right: OpenTransaction | None = None) -> Stored:
        async with self._seen(right) as session:
            rows = await self._fetch(session, "list")
        return by_identity(stored_interest(row, self._access.time(row[2])) for row in rows)

    def _seen(self, session: OpenTransaction | None) -> AbstractAsyncContextManager[OpenTransaction]:
        return self._reading() if session is None else nullcontext(session)


def _read(one: StoredInterest, table: FoundTable) -> Mapping[str, str | None]:
    """The columns that an interest's triggers read: all of them, if it watches any column."""
    return table.columns if one.interest.watches is None else columns_read(one, table)


def _checked_triggers(capture: Capture) -> dict[str, str]:
    """The statements that make triggers, tried out if they are for interests that were not captured."""
    for one in capture.asked:
        check_table(one, _NO_TABLES)
    if capture.found is None or not capture.members:
        return {}
    made = triggers(capture.number, capture.members, capture.found.columns)
    if capture.asked:
        _try_out(capture.asked[-1].interest, capture.found, made.values())
    return made


def _try_out(interest: Interest, found: FoundTable, statements: Iterable[str]) -> None:
    """Raise `DeclarationError` if triggers would make writes fail."""
    table, columns = SQLITE.quote(interest.table), _trial_columns(found)
    first = next(iter(columns))
    with closing(sqlite3.connect(":memory:")) as trial:
        trial.text_factory = bytes  # EXPLAIN shows constants of any type
        try:
            trial.execute(_TRIAL)
            trial.create_collation(_COLLATION, lambda *_: 0)
            trial.execute(f"create table {table} ({', '.join(columns.values())})")
            trial.create_collation(_COLLATION, None)  # other programs do not have it
            for statement in statements:
                trial.execute(statement)
            for write in (
                f"insert into {table} default values",
                f"update {table} set {first} = 1",
                f"delete from {table}",
            ):
                trial.execute(f"explain {write}").fetchall()
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise DeclarationError(
                f"Interest {interest.name}: SQLite refuses the triggers of {interest.table}: {error}.",
                fix="Use expressions of one row, with what every SQLite has and columns that the table has.",
            ) from error


def _trial_columns(found: FoundTable) -> dict[str, str]:
    """A table's columns without their types, but with penstock's own collation, by their names as SQL."""
    written = read_table(found.text).columns
    collated = {name for name, text in written.items() if read_type("", text).endswith(f" collate {_COLLATION}")}
    quoted = {name: SQLITE.quote(name) for name in found.columns}
    return {sql: f"{sql} collate {_COLLATION}" if name.lower() in collated else sql for name, sql in quoted.items()}
