"""Interests on SQLite: an interest and its triggers are made in one transaction.

A trigger's text is looked at only when it fires, in the program that writes. So it is tried out beforehand, in a
database in memory that has the table's columns and nothing of penstock's own functions.
"""

from __future__ import annotations

import builtins
import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from datetime import datetime
from typing import Any

from penstock.changes.interest import Interest
from penstock.errors import DeclarationError
from penstock.store.contract.changes import InterestRow, Source, State
from penstock.store.contract.session import OpenTransaction, Session, Statement
from penstock.store.nouns.noun import Access, Noun
from penstock.store.rows.interests import (
    Identity,
    Known,
    captures,
    check_columns,
    columns_read,
    gone,
    identity_of,
    known_by,
    known_state,
    others,
)
from penstock.store.sql.conditions import ConditionSql
from penstock.store.sqlite.capture import lost, source, triggers
from penstock.store.sqlite.dialect import SQLITE
from penstock.store.sqlite.tabletext import read_collations, read_table, read_type

_COLLATION = "penstock_decimal"
_TRIAL = "create table penstock_change (changed_at, interests, kinds, key, before, after)"


class SqliteInterests(Noun):
    """See `store.contract.Interests`."""

    def __init__(self, access: Access) -> None:
        super().__init__(access, "interests")

    async def add(self, interests: Sequence[Interest], now: datetime) -> builtins.list[int]:
        async with self._reading() as session:
            known = await self._known(session)
        if any(identity_of(one) not in known for one in interests):
            async with self._writing() as session:
                for one in interests:
                    await self._fetch(session, "add", **_added(one, now))
                known = await self._known(session)
        return [known[identity_of(one)].id for one in interests]

    async def check(self, interests: Sequence[Interest], now: datetime) -> None:
        async with self._reading() as session:
            known = await self._known(session)
        if any(_state(known.get(identity_of(one))) != "ok" for one in interests):
            session = await self._access.begin_write()
            try:
                await self._declare(session, interests, now)
            finally:
                await session.rollback()

    async def declare(self, interests: Sequence[Interest], now: datetime) -> builtins.list[int]:
        async with self._reading() as session:
            known = await self._known(session)
        if any(_state(known.get(identity_of(one))) != "ok" for one in interests):
            async with self._writing() as session:
                known = await self._declare(session, interests, now)
        return [known[identity_of(one)].id for one in interests]

    async def replace(self, interests: Sequence[Interest], numbers: Sequence[int], now: datetime) -> frozenset[int]:
        async with self._reading() as session:
            known = await self._known(session)
        if not gone(interests, numbers, known) and all(_is_alone(one, known) for one in interests):
            return frozenset()
        async with self._writing() as session:
            known = await self._known(session)
            missing = gone(interests, numbers, known)
            left = [one for one, number in zip(interests, numbers, strict=True) if number not in missing]
            await self._declare_alone(session, left, known, now)
        return missing

    async def keep_declared(self, interests: Sequence[Interest], now: datetime) -> None:
        async with self._reading() as session:
            known, declared = await self._known(session), await self._declared(session, interests)
        if all(identity_of(one) in declared and _is_alone(one, known) for one in interests):
            return
        async with self._writing() as session:
            known, declared = await self._known(session), await self._declared(session, interests)
            await self._declare_alone(session, [one for one in interests if identity_of(one) in declared], known, now)
            stale = [known.get(identity_of(one)) for one in interests if identity_of(one) not in declared]
            await self._drop(session, [one.id for one in stale if one is not None])

    async def mend(self, id_: int) -> bool:
        async with self._writing() as session:
            one = next((one for one in (await self._known(session)).values() if one.id == id_), None)
            if one is None or one.installed is None or _state(one) == "ok":  # whoever has added it declares it
                return False
            await self._make(session, one)
        return True

    async def drop(self, ids: Sequence[int], *, unused: bool = False) -> None:
        if not ids:
            return
        async with self._writing() as session:
            used = {one.id for one in (await self._known(session)).values() if unused and one.installed is not None}
            await self._drop(session, [number for number in ids if number not in used])

    async def list(self) -> builtins.list[InterestRow]:
        async with self._reading() as session:
            known = await self._known(session)
        return [InterestRow(one.id, one.interest, _state(one), one.declared_at) for one in known.values()]

    async def each_of(self, tables: Sequence[str], session: OpenTransaction | None = None) -> frozenset[str]:
        async with self._reading() if session is None else nullcontext(session) as seen:
            rows = await self._fetch(seen, "each_of", tables=[*tables])
        return frozenset(row[0] for row in rows)

    async def source(self, number: int, only: ConditionSql | None = None) -> Source | None:
        async with self._reading() as session:
            one = next((one for one in (await self._known(session)).values() if one.id == number), None)
        if one is None or one.found is None:
            return None
        interest = one.interest if only is None else one.interest.narrowed(only.sql, only.columns)
        return source(interest, read_collations(one.found["text"]))

    # ----- steps

    async def _declare(self, session: Session, interests: Sequence[Interest], now: datetime) -> dict[Identity, Known]:
        for interest in interests:
            await self._fetch(session, "add", **_added(interest, now))
        declared = await self._declared(session, interests)
        for interest in interests:
            one = (await self._known(session))[identity_of(interest)]
            if _state(one) != "ok":
                await self._make(session, one, missed=identity_of(interest) in declared)
        return await self._known(session)

    async def _declare_alone(
        self, session: Session, interests: Sequence[Interest], known: Mapping[Identity, Known], now: datetime
    ) -> None:
        """Declare interests in the place of all others of their names."""
        await self._drop(session, [other.id for one in interests for other in others(one, known)])
        await self._declare(session, interests, now)

    async def _drop(self, session: Session, numbers: Iterable[int]) -> None:
        for number in numbers:
            await self._make(session, None, [one for one in (await self._known(session)).values() if one.id == number])
            await self._fetch(session, "remove", id=number)

    async def _make(
        self, session: Session, asked: Known | None, dropped: Sequence[Known] = (), *, missed: bool = False
    ) -> None:
        """Make triggers for an interest, and none for others any more; tell who may have missed something."""
        known = await self._known(session)
        for capture in captures(known, _state, asked, dropped, missed=missed):
            number, interests = capture.number, capture.members
            for event in ("insert", "update", "delete"):
                await session.execute(Statement(f"drop trigger if exists _penstock_change_{number}_{event}"))
            await self._fetch(session, "uncaptured", capture=number)
            mine = asked if asked is not None and asked.id in interests else None
            there = [one.found for one in known.values() if one.id in interests and one.found is not None]
            if mine is None and not there:
                continue
            found = there[0] if mine is None else _checked(mine)
            made = triggers(number, interests, found["columns"])
            if mine is not None:
                _try_out(mine.interest, found, made.values())
            for statement in made.values():
                await session.execute(Statement(statement))
            if capture.lost:
                await session.execute(Statement(lost(capture.lost)))
            installed = json.dumps({**found, "triggers": made})
            for id_ in interests:
                await self._fetch(session, "captured", id=id_, capture=number, installed=installed)

    async def _declared(self, session: OpenTransaction, interests: Sequence[Interest]) -> set[Identity]:
        """What the tasks of these interests are declared with now."""
        rows = await self._fetch(session, "declared", names=[one.name for one in interests])
        return {(row[0], row[1]) for row in rows}

    async def _known(self, session: OpenTransaction) -> dict[Identity, Known]:
        return known_by(
            Known(
                number,
                Interest.parse(spec),
                self._access.time(declared_at),
                capture,
                _json(installed),
                _there(there),
            )
            for number, spec, declared_at, capture, installed, there in await self._fetch(session, "list")
        )


def _added(interest: Interest, now: datetime) -> dict[str, Any]:
    return {
        "name": interest.name, "digest": interest.digest, "source": interest.table, "spec": interest.text(),
        "now": now,
    }  # fmt: skip


def _json(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _there(text: str | None) -> Any:
    found = _json(text)
    return None if found is None else found | {"triggers": {one["name"]: one["sql"] for one in found["triggers"]}}


def _checked(one: Known) -> Mapping[str, Any]:
    """What is there of an interest's table; an error if its changes cannot be captured."""
    interest, found = one.interest, one.found
    if found is None:
        raise DeclarationError(f"Interest {interest.name}: there is no table {interest.table}.")
    virtual = found["text"].lstrip().lower().startswith("create virtual")
    if found["kind"] == "view" or virtual:
        raise DeclarationError(
            f"Interest {interest.name}: {interest.table} is a {'virtual table' if virtual else 'view'}, "
            "whose changes cannot be captured.",
            fix="Name the tables it is made of.",
        )
    check_columns(interest, found["columns"])
    return found


def _try_out(interest: Interest, found: Mapping[str, Any], statements: Iterable[str]) -> None:
    """Raise `DeclarationError` if triggers would make writes fail."""
    table, columns = SQLITE.quote(interest.table), _trial_columns(found)
    first = next(iter(columns))
    with closing(sqlite3.connect(":memory:")) as trial:
        trial.text_factory = bytes  # what EXPLAIN shows of a constant may be no text
        try:
            trial.execute(_TRIAL)
            trial.create_collation(_COLLATION, lambda *_: 0)
            trial.execute(f"create table {table} ({', '.join(columns.values())})")
            trial.create_collation(_COLLATION, None)  # other programs have it not
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


def _trial_columns(found: Mapping[str, Any]) -> dict[str, str]:
    """A table's columns without their types, but with penstock's own collation, by their names as SQL."""
    written = read_table(found["text"]).columns
    collated = {name for name, text in written.items() if read_type("", text).endswith(f" collate {_COLLATION}")}
    quoted = {name: SQLITE.quote(name) for name in found["columns"]}
    return {sql: f"{sql} collate {_COLLATION}" if name.lower() in collated else sql for name, sql in quoted.items()}


def _seen(one: Known, found: Mapping[str, Any]) -> dict[str, Any]:
    """How an interest's triggers are, and what they read: those that watch any column name each one."""
    columns = found["columns"] if one.interest.watches is None else columns_read(one, found)
    return {"triggers": [*found["triggers"]], "columns": columns}


def _is_alone(interest: Interest, known: Mapping[Identity, Known]) -> bool:
    """Whether an interest is in order, and nothing else is captured under its name."""
    return _state(known.get(identity_of(interest))) == "ok" and not others(interest, known)


def _state(one: Known | None) -> State:
    if one is None or one.found is None:
        return "gone" if one is not None else "missing"
    if one.installed is None or one.capture is None:
        return "missing"
    return known_state(_seen(one, one.installed), _seen(one, one.found))
