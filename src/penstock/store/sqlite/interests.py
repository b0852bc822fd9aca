"""Interests on SQLite: an interest and its triggers are made in one transaction.

SQLite reads a trigger's text only when it fires, in the program that writes. So penstock tries it out first, in a
database in memory that has the table's columns and none of penstock's own functions.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, closing
from datetime import datetime
from functools import lru_cache, partial

from penstock.changes.interest import Interest
from penstock.errors import DeclarationError
from penstock.store.nouns.captures import (
    Capture,
    FoundTable,
    Rebuild,
    State,
    Stored,
    StoredInterest,
    by_capture,
    capture_state,
    check_table,
    columns_read,
    identity_of,
)
from penstock.store.nouns.interests import Interests, Source, by_one_if_refused
from penstock.store.session import OpenTransaction, Session, Statement
from penstock.store.sql.dialect import qualify
from penstock.store.sqlite.capture import hold, source, tell_lost, triggers
from penstock.store.sqlite.dialect import SQLITE
from penstock.store.sqlite.tabletext import read_collations, read_table, read_type

_COLLATION = "penstock_decimal"
_NO_TABLES = {"view": "a view", "virtual": "a virtual table"}
_TRIAL = """
create table penstock_change (changed_at, interests, kinds, key, before, after);
create table penstock_demanded (interest);
"""


class SqliteInterests(Interests[Session]):
    """See `store.nouns.Interests`."""

    def _within(self, right: Session | None) -> OpenTransaction | None:
        return right

    def _source(self, interest: Interest, one: StoredInterest, *, held: bool) -> Source:  # noqa: ARG002 - there is one writer
        return source(interest, read_collations(one.found.text if one.found else ""))

    def _changing(self) -> AbstractAsyncContextManager[Session]:
        return self._writing()

    def _state(self, one: StoredInterest | None) -> State:
        return capture_state(one, _read)

    async def _try_out(self, interests: Sequence[Interest], now: datetime) -> None:
        async with self._begin_kept() as session:
            stored, _ = await self._with_numbers(interests, now, session)
        for group in by_capture(interests):
            await by_one_if_refused(group, partial(self._try_out_some, stored))

    async def _try_out_some(self, stored: Stored, some: Sequence[Interest]) -> None:
        """Try triggers out before the first one is made, as each one makes SQLite read its schema again."""
        for capture in Rebuild(stored, [stored[identity_of(one)] for one in some]).captures(self._state):
            _check_triggers(self._schema, capture)

    async def _hold(
        self, session: OpenTransaction, number: int, members: Sequence[StoredInterest], *, alone: bool
    ) -> None:
        ids, found = [each.id for each in members], members[0].found
        assert found is not None  # noqa: S101 - `hold` leaves others alone
        made = hold(self._schema, number, ids, members[0].interest.table)
        # First: Python's driver begins a transaction for an update, but for no change of the schema.
        await self._note_installed(session, number, ids, found, made, held=True, alone=alone)
        for trigger in found.triggers:
            await session.execute(Statement(f"drop trigger {trigger.name}"))
        for statement in made.values():
            await session.execute(Statement(statement))

    async def _is_refused(self, session: OpenTransaction, one: StoredInterest) -> bool:  # noqa: ARG002 - it is tried elsewhere
        try:
            _check_triggers(self._schema, Capture(one.id, {one.id: one.interest}, [one], one.found, []))
        except DeclarationError:
            return True
        return False

    def _tell_lost(self, numbers: Sequence[int]) -> str:
        return self._access.dialect.qualify(tell_lost(numbers))

    async def _note_installed(
        self,
        session: OpenTransaction,
        number: int,
        ids: Iterable[int],
        found: FoundTable,
        made: Iterable[str],
        **held: bool,
    ) -> None:
        """Note which triggers capture interests."""
        table = {"kind": found.kind, "columns": found.columns, "triggers": [{"name": name} for name in made], **held}
        for id_ in ids:
            await self._fetch(session, "captured", id=id_, capture=number, installed=json.dumps(table))

    async def _rebuild(self, right: OpenTransaction, rebuild: Rebuild) -> None:
        for capture in rebuild.captures(self._state):
            made = _check_triggers(self._schema, capture)
            await self._fetch(right, "uncaptured", capture=capture.number)  # first, as in `_hold`
            for event in ("insert", "update", "delete"):
                await right.execute(self._own(f"drop trigger if exists _penstock_change_{capture.number}_{event}"))
            if capture.found is None:
                continue
            for statement in made.values():
                await right.execute(Statement(statement))
            if capture.lost:
                await right.execute(Statement(self._tell_lost(capture.lost)))
            await self._note_installed(right, capture.number, capture.members, capture.found, made)
        for one in rebuild.dropped:
            await self._fetch(right, "remove", id=one.id)

    _release = _rebuild


def _read(one: StoredInterest, table: FoundTable) -> Mapping[str, str | None]:
    """The columns that an interest's triggers read: all of them, if it watches any column."""
    compared = one.interest.watches is None and not one.interest.on_demand
    return table.columns if compared else columns_read(one, table)


def _check_triggers(schema: str, capture: Capture) -> Mapping[str, str]:
    """The statements that make triggers, tried out if they are for interests that were not captured."""
    for one in capture.asked:
        check_table(one, _NO_TABLES)
    if capture.found is None or not capture.members:
        return {}
    made = triggers(schema, capture.number, capture.members, capture.found.columns)
    if capture.asked:
        _try_out(schema, capture.asked[-1].interest, capture.found, made.values())
    return made


def _try_out(schema: str, interest: Interest, found: FoundTable, statements: Iterable[str]) -> None:
    """Raise `DeclarationError` if triggers would make writes fail."""
    error = _error_of(schema, SQLITE.quote(interest.table), tuple(_trial_columns(found).items()), tuple(statements))
    if error is not None:
        raise DeclarationError(
            f"Interest {interest.name}: SQLite refuses the triggers of {interest.table}: {error}.",
            fix="Use expressions of one row, with what every SQLite has and columns that the table has.",
        )


@lru_cache(64)  # a program tries them out before it writes anything, and again when it makes them
def _error_of(schema: str, table: str, columns: Sequence[tuple[str, str]], statements: Sequence[str]) -> str | None:
    """The error of SQLite against triggers of a table with these columns, each with its name and its definition."""
    with closing(sqlite3.connect(":memory:")) as trial:
        trial.text_factory = bytes  # EXPLAIN shows constants of any type
        try:
            trial.executescript(qualify(_TRIAL, schema))
            trial.create_collation(_COLLATION, lambda *_: 0)
            trial.execute(f"create table {table} ({', '.join(definition for _, definition in columns)})")
            trial.create_collation(_COLLATION, None)  # other programs do not have it
            for statement in statements:
                trial.execute(statement)
            for write in (
                f"insert into {table} default values",
                f"update {table} set {columns[0][0]} = 1",
                f"delete from {table}",
            ):
                trial.execute(f"explain {write}").fetchall()
        except (sqlite3.Error, sqlite3.Warning) as error:
            return str(error)
    return None


def _trial_columns(found: FoundTable) -> dict[str, str]:
    """A table's columns without their types, but with penstock's own collation, by their names as SQL."""
    written = read_table(found.text).columns
    collated = {name for name, text in written.items() if read_type("", text).endswith(f" collate {_COLLATION}")}
    quoted = {name: SQLITE.quote(name) for name in found.columns}
    return {sql: f"{sql} collate {_COLLATION}" if name.lower() in collated else sql for name, sql in quoted.items()}
