"""Interests on PostgreSQL: triggers are made under the lock of schema changes, with short locks on the tables."""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from penstock.changes.interest import Interest
from penstock.errors import Conflict, DatabaseBusy, DataError, DeclarationError, PenstockError
from penstock.store.changes import InterestRow, Source, State
from penstock.store.conditions import ConditionSql
from penstock.store.contract import Change, OpenTransaction, SchemaLock, Statement
from penstock.store.interestrows import Identity, Known, check_columns, gone, identity_of, known_state, others
from penstock.store.postgres.capture import EVENTS, function_name, install, lost, source, triggers
from penstock.store.postgres.catalog import PostgresCatalog
from penstock.store.postgres.connections import Connections
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.postgres.jobs import run
from penstock.store.postgres.session import BEGIN_INTERNAL, PostgresSession, begin
from penstock.store.queries import load_queries

_IMPATIENT = Statement("set local lock_timeout = '100ms'")
_FORGOTTEN = (
    "delete from penstock.interest where id = {}"  # no query: it goes with the triggers, which nobody mends then
)
_NO_TABLES = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence"}


class PostgresInterests:
    """See `store.changes.Interests`."""

    def __init__(self, connections: Connections, catalog: PostgresCatalog) -> None:
        self._connections = connections
        self._catalog = catalog
        self._queries = load_queries("penstock.store.postgres", "interests", "$")

    async def add(self, interests: Sequence[Interest], now: datetime) -> builtins.list[int]:
        """Give interests their numbers, without capturing anything yet."""
        known, numbers = await self._known(), list[int]()
        for one in interests:
            while (found := known.get(identity_of(one))) is None:  # another release may have replaced it already
                await self._run("add", **_added(one, now))
                known = await self._known()
            numbers.append(found.id)
        return numbers

    async def check(self, interests: Sequence[Interest], now: datetime) -> None:
        """Refuse what `declare` would refuse, without changing anything."""
        known = await self._known()
        wanted = [one for one in interests if _state(known.get(identity_of(one))) != "ok"]
        if wanted:
            async with self._catalog.lock():  # whoever makes the same functions has them first
                for one in wanted:
                    await self._try_out(one, now)

    async def declare(self, interests: Sequence[Interest], now: datetime) -> builtins.list[int]:
        """Have changes captured from now on; the numbers of the interests."""
        known = await self._known()
        if any(_state(known.get(identity_of(one))) != "ok" for one in interests):
            async with self._catalog.lock() as lock:
                known, declared = await self._known(), await self._declared(interests)
                for one in interests:
                    await self._declare(lock, one, now, known, missed=identity_of(one) in declared)
        return [known[identity_of(one)].id for one in interests]

    async def replace(self, interests: Sequence[Interest], numbers: Sequence[int], now: datetime) -> frozenset[int]:
        """Have changes captured under the numbers that `add` gave, and for no others of the same names any more."""
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
        """Have captured for tasks what they are declared with now, and nothing else."""
        known, declared = await self._known(), await self._declared(interests)
        if all(identity_of(one) in declared and _is_alone(one, known) for one in interests):
            return
        async with self._catalog.lock() as lock:
            known, declared = await self._known(), await self._declared(interests)
            for one in interests:
                if identity_of(one) in declared:
                    await self._declare(lock, one, now, known, alone=True, missed=True)
                elif (own := known.get(identity_of(one))) is not None:
                    await lock.apply(Change(one.table, _taken([own], known)))

    async def mend(self, id_: int) -> bool:
        """Make the triggers of an interest anew, waiting for nobody; False if it is in order, or not there any more."""
        session = await begin(self._connections, BEGIN_INTERNAL)
        try:
            await session.execute(_IMPATIENT)
            held = self._queries["hold"]
            if not await session.fetch(held.statement, held.args({"id": id_})):
                return False
            one = await self._one(id_, session)
            if one.installed is None or _state(one) == "ok":  # whoever has added it declares it
                return False
            for statement in await self._statements(one):
                await session.execute(Statement(statement))
            installed = self._queries["installed"]
            text = json.dumps(_installed(one := await self._one(id_, session), _columns(one)))
            await session.execute(installed.statement, installed.args({"id": id_, "installed": text}))
            await session.commit()
        except DataError as error:
            raise DeclarationError(f"PostgreSQL refuses the triggers of interest {id_}: {error.what}") from error
        finally:
            await session.rollback()
        return True

    async def drop(self, ids: Sequence[int], *, unused: bool = False) -> None:
        """Have them captured no more."""
        if not ids:
            return
        async with self._catalog.lock() as lock:
            known = {one.id: one for one in (await self._known()).values()}
            for number in ids:
                if unused and number in known and known[number].installed is not None:
                    continue
                await lock.apply(Change(f"of interest {number}", (*_dropped(number), *_each_dropped(number, known))))
                await self._run("remove", id=number)
                known.pop(number, None)

    async def list(self) -> builtins.list[InterestRow]:
        """All interests by number, and whether each still captures."""
        known = (await self._known()).values()
        return [InterestRow(one.id, one.interest, _state(one), one.declared_at) for one in known]

    async def each_of(self, tables: Sequence[str], session: OpenTransaction | None = None) -> frozenset[str]:
        """Those of some tables of which each change counts."""
        names, query = {POSTGRES.table(name): name for name in tables}, self._queries["each_of"]
        values = {"tables": [*names]}
        asked = session.fetch(query.statement, query.args(values)) if session else self._run("each_of", **values)
        rows = await asked
        return frozenset(names[row[0]] for row in rows)

    async def source(self, number: int, only: ConditionSql | None = None) -> Source | None:
        """How the rows are read that an interest is about."""
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
        if not added and identity not in known:  # another program has added it just now
            known |= await self._known()
        one = known[identity] = await self._one(added[0][0] if added else known[identity].id)
        replaced = _taken(others(interest, known), known) if alone else ()
        if _state(one) == "ok":
            if replaced:
                await lock.apply(Change(interest.table, replaced))
            return
        try:
            await self._apply(lock, interest, (*replaced, *await self._statements(one, missed=missed)))
        except PenstockError:
            if added:  # nothing is left of what could not be declared
                await self._run("remove", id=one.id)
            raise
        one = known[identity] = await self._one(one.id)
        installed = json.dumps(_installed(one, _columns(one)))
        await self._run("installed", id=one.id, installed=installed)

    async def _statements(self, one: Known, *, missed: bool = False) -> tuple[str, ...]:
        """What makes triggers; if there were some before, changes may have been missed since, and readers are told."""
        found = _checked(one)
        ((path,),) = await self._run("path")
        made = install(one.id, one.interest, found, path)
        return (*made, lost(one.id)) if missed or one.installed is not None else made

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
            added = await session.fetch(add.statement, add.args(_added(interest, now)))
            number = added[0][0] if added else (await self._known())[identity_of(interest)].id
            for statement in await self._statements(await self._one(number, session)):
                await session.execute(Statement(statement))
        except DataError as error:
            raise _refused(interest, error) from error
        except (DatabaseBusy, Conflict):  # whoever declares it waits for these locks
            return
        finally:
            await session.rollback()

    async def _known(self) -> dict[Identity, Known]:
        found = map(_known, await self._run("list", id=None))
        return {identity_of(one.interest): one for one in found}

    async def _declared(self, interests: Sequence[Interest]) -> set[Identity]:
        """What the tasks of these interests are declared with now."""
        return {(row[0], row[1]) for row in await self._run("declared", names=[one.name for one in interests])}

    async def _one(self, id_: int, session: PostgresSession | None = None) -> Known:
        """An interest that is there, as a transaction sees it, or now."""
        query, values = self._queries["list"], {"id": id_}
        if session is None:
            (row,) = await self._run("list", **values)
        else:
            (row,) = await session.fetch(query.statement, query.args(values))
        return _known(row)

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


def _taken(taken: Iterable[Known], known: dict[Identity, Known]) -> tuple[str, ...]:
    """What lets interests be captured no more; they are not known any more then."""
    found: list[str] = []
    for old in taken:
        left = {one.id: one for one in known.values()}
        found += _FORGOTTEN.format(old.id), *_dropped(old.id), *_each_dropped(old.id, left)
        del known[identity_of(old.interest)]
    return tuple(found)


def _dropped(number: int) -> tuple[str, ...]:
    return tuple(f"drop function if exists {function_name(number, event)}() cascade" for event in EVENTS)


def _each_dropped(number: int, known: Mapping[int, Known]) -> tuple[str, ...]:
    """What lets changes of a table be merged again, once no interest is left for which each counts."""
    gone = _each(known[number]) if number in known else set()
    left = {name for other, one in known.items() if other != number for name in _each(one)}
    return tuple(f"drop function if exists penstock.{name}()" for name in sorted(gone - left))


def _each(one: Known) -> set[str]:
    """The functions that say of an interest's table that each change counts: as it was named, and as it is now."""
    return {seen["each"] for seen in (one.installed, one.found) if one.interest.each and seen is not None}


def _known(row: Sequence[Any]) -> Known:
    number, spec, declared_at, installed, there = row
    return Known(number, Interest.parse(spec), declared_at, _json(installed), _json(there))


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
    return found


def _columns(one: Known) -> list[str]:
    """The columns that the triggers of an interest read, or that bear a name which is part of its SQL."""
    interest = one.interest
    said = " ".join((interest.matches or "", *(interest.watches or ())))
    return [*interest.columns, *(column for column in (one.found or {})["columns"] if column in said)]


def _installed(one: Known, columns: Iterable[str]) -> dict[str, Any]:
    """How an interest's triggers are, and what they read."""
    found = one.found or {}
    return {
        "triggers": {f"{made['table']} {made['name']}": made["sql"] for made in found.get("triggers") or ()},
        "columns": {column: found["columns"].get(column) for column in columns},
        "bodies": found.get("bodies"),
        "each": found.get("each") if one.interest.each else None,
        "alone": found.get("alone"),
    }


def _state(one: Known | None) -> State:
    if one is None or one.found is None:
        return "gone" if one is not None else "missing"
    expected, table = triggers(one.id, one.interest, one.found), POSTGRES.table(one.interest.table)
    there = {(table if each["here"] else each["table"], each["name"]): each for each in one.found["triggers"] or ()}
    if one.installed is None or not there.keys() >= expected.keys():
        return "missing"
    state = known_state(one.installed, _installed(one, one.installed["columns"]))
    enabled = all(there[key]["enabled"] == trigger.enabled for key, trigger in expected.items())
    return state if enabled or state != "ok" else "disabled"
