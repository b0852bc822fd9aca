"""Interests on PostgreSQL: triggers are made under the lock of schema changes, with short locks on the tables."""

from __future__ import annotations

import builtins
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from penstock.changes.interest import Interest
from penstock.errors import Conflict, DatabaseBusy, DataError, DeclarationError, PenstockError
from penstock.store.contract.changes import InterestRow, Source, State
from penstock.store.contract.schema import Change, SchemaLock
from penstock.store.contract.session import OpenTransaction, Statement
from penstock.store.postgres.access import run
from penstock.store.postgres.capture import EVENTS, function_name, install, triggers
from penstock.store.postgres.catalog import PostgresCatalog
from penstock.store.postgres.connections import Connections
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.postgres.rowsource import source
from penstock.store.postgres.session import BEGIN_INTERNAL, PostgresSession, begin
from penstock.store.postgres.triggerbodies import appended
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
from penstock.store.sql.queries import load_queries

_IMPATIENT = Statement("set local lock_timeout = '100ms'")
# These are no queries of a .sql file: they go along with what makes triggers.
_ALONE = "lock table penstock.interest in share row exclusive mode"
_FORGOTTEN = "delete from penstock.interest where id = {}"
_CAPTURED = """
update penstock.interest set capture = case when id = any('{ids}') then {number} end
where capture = {number} or id = any('{ids}')"""
_INSTALLED = """
update penstock.interest i set installed = f.found from penstock.interest_found f
where f.id = i.id and i.capture = {number}"""
_VIRTUAL = " virtual"  # what the view adds to the type of such a column
_NO_TABLES = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence"}


class PostgresInterests:
    """See `store.contract.Interests`."""

    def __init__(self, connections: Connections, catalog: PostgresCatalog) -> None:
        self._connections = connections
        self._catalog = catalog
        self._queries = load_queries("interests", POSTGRES)

    async def add(self, interests: Sequence[Interest], now: datetime) -> builtins.list[int]:
        known, numbers = await self._known(), list[int]()
        for one in interests:
            while (found := known.get(identity_of(one))) is None:  # another release may have replaced it already
                await self._run("add", **_added(one, now))
                known = await self._known()
            numbers.append(found.id)
        return numbers

    async def check(self, interests: Sequence[Interest], now: datetime) -> None:
        known = await self._known()
        wanted = [one for one in interests if _state(known.get(identity_of(one))) != "ok"]
        if wanted:
            async with self._catalog.lock():  # whoever makes the same functions has them first
                for one in wanted:
                    await self._try_out(one, now)

    async def declare(self, interests: Sequence[Interest], now: datetime) -> builtins.list[int]:
        known = await self._known()
        if any(_state(known.get(identity_of(one))) != "ok" for one in interests):
            async with self._catalog.lock() as lock:
                known, declared = await self._known(), await self._declared(interests)
                for one in interests:
                    await self._declare(lock, one, now, known, missed=identity_of(one) in declared)
        return [known[identity_of(one)].id for one in interests]

    async def replace(self, interests: Sequence[Interest], numbers: Sequence[int], now: datetime) -> frozenset[int]:
        known = await self._known()
        if not gone(interests, numbers, known) and all(_is_alone(one, known) for one in interests):
            return frozenset()
        async with self._catalog.lock() as lock:
            known = await self._known()
            missing = gone(interests, numbers, known)
            for one, number in zip(interests, numbers, strict=True):
                if number not in missing:
                    await self._declare(lock, one, now, known, alone=True)
        return missing

    async def keep_declared(self, interests: Sequence[Interest], now: datetime) -> None:
        known, declared = await self._known(), await self._declared(interests)
        if all(identity_of(one) in declared and _is_alone(one, known) for one in interests):
            return
        async with self._catalog.lock() as lock:
            known, declared = await self._known(), await self._declared(interests)
            for one in interests:
                if identity_of(one) in declared:
                    await self._declare(lock, one, now, known, alone=True, missed=True)
                elif (own := known.get(identity_of(one))) is not None:
                    await self._apply(lock, one, await self._statements(known, None, [own]))
                    del known[identity_of(one)]

    async def mend(self, id_: int) -> bool:
        session = await begin(self._connections, BEGIN_INTERNAL)
        try:
            await session.execute(_IMPATIENT)
            await session.execute(Statement(_ALONE))
            known = await self._known(session)
            one = next((one for one in known.values() if one.id == id_), None)
            if one is None or one.installed is None or _state(one) == "ok":  # whoever has added it declares it
                return False
            for statement in await self._statements(known, one):
                await session.execute(Statement(statement))
            await session.commit()
        except DataError as error:
            raise DeclarationError(f"PostgreSQL refuses the triggers of interest {id_}: {error.what}") from error
        finally:
            await session.rollback()
        return True

    async def drop(self, ids: Sequence[int], *, unused: bool = False) -> None:
        if not ids:
            return
        async with self._catalog.lock() as lock:
            for number in ids:
                known = await self._known()
                one = next((one for one in known.values() if one.id == number), None)
                if one is not None and not (unused and one.installed is not None):
                    await self._apply(lock, one.interest, await self._statements(known, None, [one]))

    async def list(self) -> builtins.list[InterestRow]:
        known = (await self._known()).values()
        return [InterestRow(one.id, one.interest, _state(one), one.declared_at) for one in known]

    async def each_of(self, tables: Sequence[str], session: OpenTransaction | None = None) -> frozenset[str]:
        names, query = {POSTGRES.table(name): name for name in tables}, self._queries["each_of"]
        values = {"tables": [*names]}
        asked = session.fetch(query.statement, query.args(values)) if session else self._run("each_of", **values)
        rows = await asked
        return frozenset(names[row[0]] for row in rows)

    async def source(self, number: int, only: ConditionSql | None = None) -> Source | None:
        one = next((one for one in (await self._known()).values() if one.id == number), None)
        if one is None or one.found is None:
            return None
        columns = _checked(one)["columns"]
        if only is None:
            return source(one.interest, columns)
        return source(one.interest.narrowed(only.sql, only.columns), columns, held=" for share of r")

    # ----- steps

    async def _declare(
        self,
        lock: SchemaLock,
        interest: Interest,
        now: datetime,
        known: dict[Identity, Known],
        *,
        alone: bool = False,
        missed: bool = False,
    ) -> None:
        identity = identity_of(interest)
        added = await self._run("add", **_added(interest, now))
        if identity not in known:
            known |= await self._known()
        one, replaced = known[identity], others(interest, known) if alone else []
        asked = None if _state(one) == "ok" else one
        if asked is None and not replaced:
            return
        try:
            await self._apply(lock, interest, await self._statements(known, asked, replaced, missed=missed))
        except PenstockError:
            if added:  # nothing is left of what could not be declared
                await self._run("remove", id=one.id)
            raise
        known.clear()
        known |= await self._known()

    async def _statements(
        self,
        known: Mapping[Identity, Known],
        asked: Known | None,
        dropped: Sequence[Known] = (),
        *,
        missed: bool = False,
    ) -> tuple[str, ...]:
        """What makes triggers for an interest, and none for others any more; who may have missed something is told."""
        ((path,),) = await self._run("path")
        made = [_ALONE]
        for capture in captures(known, _capturing, asked, dropped, missed=missed):
            number, interests = capture.number, capture.members
            mine = asked if asked is not None and asked.id in interests else None
            found = _checked(mine) if mine else next((one.found for one in known.values() if one.id in interests), None)
            if not interests:
                made += (f"drop function if exists {function_name(number, event)}() cascade" for event in EVENTS)
            elif found is not None:
                made += install(number, interests, found, path, mine.interest if mine else None)
                ids = f"{{{','.join(map(str, interests))}}}"
                made += (text.format(number=number, ids=ids) for text in (_CAPTURED, _INSTALLED))
                made += (appended(capture.lost, "lost"),) if capture.lost else ()
        made += (_FORGOTTEN.format(one.id) for one in dropped)
        return (*made, *_each_dropped(dropped, known))

    async def _apply(self, lock: SchemaLock, interest: Interest, statements: tuple[str, ...]) -> None:
        try:
            await lock.apply(Change(interest.table, statements))
        except DataError as error:
            raise _refused(interest, error) from error

    async def _try_out(self, interest: Interest, now: datetime) -> None:
        """Make triggers, and undo that."""
        add = self._queries["add_for_trial"]
        session = await begin(self._connections, BEGIN_INTERNAL)
        try:
            await session.execute(_IMPATIENT)
            await session.fetch(add.statement, add.args(_added(interest, now)))
            known = await self._known(session)
            for statement in await self._statements(known, known[identity_of(interest)]):
                await session.execute(Statement(statement))
        except DataError as error:
            raise _refused(interest, error) from error
        except (DatabaseBusy, Conflict):  # whoever declares it waits for these locks
            return
        finally:
            await session.rollback()

    async def _known(self, session: PostgresSession | None = None) -> dict[Identity, Known]:
        """All interests, as a transaction sees them, or now."""
        query = self._queries["list"]
        rows = await (self._run("list") if session is None else session.fetch(query.statement, query.args({})))
        return known_by(map(_known, rows))

    async def _declared(self, interests: Sequence[Interest]) -> set[Identity]:
        """What the tasks of these interests are declared with now."""
        return {(row[0], row[1]) for row in await self._run("declared", names=[one.name for one in interests])}

    async def _run(self, query_name: str, /, **values: Any) -> Sequence[Any]:
        return await run(self._connections, self._queries[query_name], values)


def _added(interest: Interest, now: datetime) -> dict[str, Any]:
    source = POSTGRES.table(interest.table)
    return {
        "name": interest.name, "digest": interest.digest, "source": source, "spec": interest.text(), "now": now
    }  # fmt: skip


def _refused(interest: Interest, error: DataError) -> DeclarationError:
    return DeclarationError(
        f"Interest {interest.name}: PostgreSQL refuses the triggers of {interest.table}: {error.what}",
        fix="Use expressions of one row: no subqueries, and columns that it has.",
    )


def _is_alone(interest: Interest, known: Mapping[Identity, Known]) -> bool:
    """Whether an interest is in order, and nothing else is captured under its name."""
    return _state(known.get(identity_of(interest))) == "ok" and not others(interest, known)


def _each_dropped(dropped: Sequence[Known], known: Mapping[Identity, Known]) -> list[str]:
    """What lets changes of a table be merged again, once no interest is left for which each counts."""
    gone = {name for one in dropped for name in _each(one)}
    left = {name for one in known.values() if one not in dropped for name in _each(one)}
    return [f"drop function if exists penstock.{name}()" for name in sorted(gone - left)]


def _each(one: Known) -> set[str]:
    """The functions that say of an interest's table that each change counts: as it was named, and as it is now."""
    return {seen["each"] for seen in (one.installed, one.found) if one.interest.each and seen is not None}


def _known(row: Sequence[Any]) -> Known:
    number, spec, declared_at, capture, installed, there = row
    return Known(number, Interest.parse(spec), declared_at, capture, _json(installed), _json(there))


def _json(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _checked(one: Known) -> Mapping[str, Any]:
    """What is there of an interest's table; an error if its changes cannot be captured."""
    interest, found = one.interest, one.found
    if found is None:
        raise DeclarationError(f"Interest {interest.name}: there is no table {interest.table}.")
    kind = _NO_TABLES.get(found["kind"])
    if kind is not None:
        raise DeclarationError(
            f"Interest {interest.name}: {interest.table} is {kind}, whose changes cannot be captured.",
            fix="Name the tables it is made of.",
        )
    if found["heirs"]:
        raise DeclarationError(
            f"Interest {interest.name}: other tables inherit from {interest.table}, whose changes would be missed.",
            fix="Use partitions, or an interest in each of them.",
        )
    check_columns(interest, found["columns"])
    said = " ".join((interest.matches or "", *(interest.watches or ())))
    for column, type_name in found["columns"].items():
        if type_name.endswith(_VIRTUAL) and (column in interest.columns or POSTGRES.quote(column) in said):
            raise DeclarationError(
                f"Interest {interest.name}: no trigger sees {column} of {interest.table}, a virtual column.",
                fix="Make it a stored generated column, or leave it out.",
            )
    return found


def _seen(one: Known, found: Mapping[str, Any]) -> dict[str, Any]:
    """How an interest's triggers are, and what they read."""
    return {
        "triggers": [f"{made['table']} {made['name']}" for made in found["triggers"] or ()],
        "columns": columns_read(one, found),
        "bodies": found["bodies"],
        "each": found["each"] if one.interest.each else None,
        "alone": found["alone"],
    }


def _state(one: Known | None) -> State:
    state = _capturing(one)
    if one is not None and one.installed and one.found and one.installed["ordered"] and not one.found["ordered"]:
        return "altered" if state == "ok" else state  # nothing is missed, but what a trigger changes is told too early
    return state


def _capturing(one: Known | None) -> State:
    """The same, as far as changes are missed."""
    if one is None or one.found is None:
        return "gone" if one is not None else "missing"
    if one.installed is None or one.capture is None:
        return "missing"
    alone = one.found["alone"] and one.installed["alone"]  # triggers of rows capture all the same
    found = {**one.found, "alone": alone, "ordered": one.installed["ordered"]}
    expected, table = triggers(one.capture, one.together, found), POSTGRES.table(one.interest.table)
    there = {(table if each["here"] else each["table"], each["name"]): each for each in one.found["triggers"] or ()}
    if not there.keys() >= expected.keys():
        return "missing"
    state = known_state(_seen(one, one.installed), _seen(one, found))
    enabled = all(there[key]["enabled"] == trigger.enabled for key, trigger in expected.items())
    return state if enabled or state != "ok" else "disabled"
