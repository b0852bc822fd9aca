"""Interests on PostgreSQL: triggers are made under the lock of schema changes, with short locks on the tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from penstock.changes.interest import Interest
from penstock.errors import Conflict, DatabaseBusy, DataError, DeclarationError
from penstock.store.nouns.captures import (
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
from penstock.store.nouns.catalog import Change, SchemaLock
from penstock.store.nouns.interests import Interests, Source, by_one_if_refused
from penstock.store.nouns.noun import Access
from penstock.store.postgres.capture import EVENTS, Own, hold, install, source, trial, triggers, try_out
from penstock.store.postgres.catalog import PostgresCatalog
from penstock.store.postgres.conditions import literal
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.postgres.triggerbodies import append_plain
from penstock.store.session import OpenTransaction, Statement

_IMPATIENT = Statement("set local lock_timeout = '100ms'")
# These are no queries of a .sql file: they belong to the statements that make triggers.
_LOCK_INTERESTS = "lock table penstock.interest in share row exclusive mode"
_UNCHECKED = "set local check_function_bodies = off"  # penstock wrote them; a trial trigger checks what users wrote
_FORGOTTEN = "delete from penstock.interest where id = {}"
_CAPTURED = """
update penstock.interest set capture = case when id = any('{ids}') then {number} end
where capture = {number} or id = any('{ids}')"""
# A join would look up the tables of all interests.
_INSTALLED = """
update penstock.interest i set installed = (select f.found from penstock.interest_found f where f.id = i.id)
where i.capture = {number}"""
_HELD = """
update penstock.interest i set installed =
(select f.found || '{{"held": true}}' from penstock.interest_found f where f.id = i.id)
where i.capture = {number}"""
# In the transaction of a caller an error would be its end, and a savepoint might be known to its driver.
_TRIED = """
do $penstock$ begin
    perform pg_catalog.set_config('penstock.refused', '', true);
    execute {};
exception
    when lock_not_available or deadlock_detected then raise;
    when others then perform pg_catalog.set_config('penstock.refused', sqlerrm, true);
end $penstock$"""
_REFUSED = Statement("select pg_catalog.current_setting('penstock.refused')")
_LAST_ID = 2**31 - 1  # trials use the numbers that no interest reaches
_VIRTUAL = " virtual"  # the view adds this to the type of such a column
_NO_TABLES = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence"}


class PostgresInterests(Interests[SchemaLock]):
    """See `store.nouns.Interests`."""

    _first = (_IMPATIENT.sql, _LOCK_INTERESTS)

    def __init__(self, access: Access, catalog: PostgresCatalog) -> None:
        super().__init__(access)
        self._catalog = catalog

    def _capture(self, number: int) -> Own:
        return Own(self._schema, number)

    def _source(self, interest: Interest, one: StoredInterest, *, held: bool) -> Source:
        found = _check(one)
        made = source(interest, found.columns, held=" for share of r" if held else "")
        return replace(made, parted=found.kind == "p")

    def _changing(self) -> AbstractAsyncContextManager[SchemaLock]:
        return self._catalog.lock()

    def _state(self, one: StoredInterest | None) -> State:
        state = _capture_state(self._schema, one)
        if state == "ok" and one and one.installed and one.found and one.installed.ordered and not one.found.ordered:
            return "altered"  # nothing is missed, but inserted rows are told before a trigger changes them
        return state

    async def _rebuild(self, right: SchemaLock, rebuild: Rebuild) -> None:
        interest = (*rebuild.asked, *rebuild.dropped)[0].interest
        try:
            await right.apply(Change(interest.table, (_UNCHECKED, *await self._statements(rebuild))))
        except DataError as error:
            raise _refusal(interest, error) from error

    async def _hold(
        self,
        session: OpenTransaction,
        number: int,
        members: Sequence[StoredInterest],
        *,
        alone: bool,  # noqa: ARG002 - a table that is changed keeps its triggers
    ) -> None:
        interest, found = members[0].interest, members[0].found
        assert found is not None  # noqa: S101 - `hold` leaves others alone
        await session.execute(self._own(_LOCK_INTERESTS))
        for statement in hold(self._capture(number), [each.id for each in members], interest.table, found):
            await session.execute(Statement(statement))
        await session.execute(self._own(_HELD.format(number=number)))

    async def _is_refused(self, session: OpenTransaction, one: StoredInterest) -> bool:
        try:
            _check(one)
        except DeclarationError:
            return True
        await session.execute(self._own(_LOCK_INTERESTS))
        tried = trial(self._capture(one.capture or one.id), one.interest)
        await session.execute(Statement(_TRIED.format(literal(tried))))
        return bool((await session.fetch(_REFUSED))[0][0])

    async def _release(self, session: OpenTransaction, rebuild: Rebuild) -> None:
        try:
            for statement in await self._statements(rebuild, session):
                await session.execute(Statement(statement))
        except DataError as error:
            raise _refusal((*rebuild.asked, *rebuild.misfits)[0].interest, error) from error

    def _tell_lost(self, numbers: Sequence[int]) -> str:
        return append_plain(self._schema, numbers, "lost")

    async def _statements(self, rebuild: Rebuild, session: OpenTransaction | None = None) -> tuple[str, ...]:
        ((path,),) = await self._ask(session, "path")
        named = self._access.dialect.qualify
        made = [named(_LOCK_INTERESTS)]
        for capture in rebuild.captures(partial(_capture_state, self._schema)):
            number, members, own = capture.number, capture.members, self._capture(capture.number)
            for one in capture.asked:
                _check(one)
            if not members:
                made += (f"drop function if exists {own.function(event)}() cascade" for event in EVENTS)
                made += (named(f"drop sequence if exists penstock.demand_{number}"),)
                made += (named(_CAPTURED.format(number=number, ids="{}")),)
            elif capture.found is not None:
                made += install(own, members, capture.found, path, [one.interest for one in capture.asked])
                ids = f"{{{','.join(map(str, members))}}}"
                made += (named(text.format(number=number, ids=ids)) for text in (_CAPTURED, _INSTALLED))
                made += (self._tell_lost(capture.lost),) if capture.lost else ()
        made += (named(_FORGOTTEN.format(one.id)) for one in rebuild.dropped)
        return (*made, *map(named, _each_dropped(rebuild.dropped, rebuild.stored)))

    async def _try_out(self, interests: Sequence[Interest], now: datetime) -> None:
        async with self._changing():  # another process that makes the same functions has them first
            try:
                async with self._begin_kept() as session:
                    await session.execute(_IMPATIENT)
                    for place, one in enumerate(interests):
                        await self._fetch(session, "add_for_trial", **self._values_of(one, now), id=_LAST_ID - place)
                    stored = await self._read_stored(session)
            except (DatabaseBusy, Conflict):
                return
            for group in by_capture(interests):
                await by_one_if_refused(group, partial(self._try_out_some, stored))

    async def _try_out_some(self, stored: Stored, some: Sequence[Interest]) -> None:
        """Make a trigger with all their conditions, and undo that."""
        for one in some:
            _check(stored[identity_of(one)])
        try:
            async with self._begin_kept() as session:
                tried = (_IMPATIENT.sql, _UNCHECKED, *try_out(self._capture(_LAST_ID), some))
                await session.execute(Statement(";\n".join(tried)))
        except DataError as error:
            raise _refusal(some[0], error) from error
        except (DatabaseBusy, Conflict):  # a program that declares it waits for these locks
            return


def _refusal(interest: Interest, error: DataError) -> DeclarationError:
    return DeclarationError(
        f"Interest {interest.name}: PostgreSQL refuses the triggers of {interest.table}: {error.what}",
        fix="Use expressions of one row: no subqueries, and columns that it has.",
    )


def _each_dropped(dropped: Sequence[StoredInterest], stored: Stored) -> list[str]:
    """The statements that let changes of a table be merged again, once each counts for no interest any more."""
    left = _each(one for one in stored.values() if one not in dropped)
    return [f"drop function if exists penstock.{name}()" for name in sorted(_each(dropped) - left)]


def _each(interests: Iterable[StoredInterest]) -> set[str]:
    """The functions that mark tables whose every change counts: as they were named, and as they are now."""
    return {table.each for one in interests for table in (one.installed, one.found) if one.interest.each and table}


def _check(one: StoredInterest) -> FoundTable:
    """The table of an interest; an error if its changes cannot be captured."""
    interest, table = one.interest, check_table(one, _NO_TABLES)
    if table.heirs:
        raise DeclarationError(
            f"Interest {interest.name}: other tables inherit from {interest.table}, whose changes would be missed.",
            fix="Use partitions, or an interest in each of them.",
        )
    for column, type_name in columns_read(one, table).items():
        if (type_name or "").endswith(_VIRTUAL):
            raise DeclarationError(
                f"Interest {interest.name}: no trigger sees {column} of {interest.table}, a virtual column.",
                fix="Make it a stored generated column, or leave it out.",
            )
    return table


def _read(one: StoredInterest, table: FoundTable) -> tuple[Any, ...]:
    """The columns that an interest's triggers read, and all else that they depend on."""
    return columns_read(one, table), table.bodies, table.plain, one.interest.each and table.each


def _capture_state(schema: str, one: StoredInterest | None) -> State:
    if one is None or one.installed is None or one.found is None or one.capture is None:
        return capture_state(one, _read)
    if one.installed.held:
        return "held"
    # Triggers that capture row by row go on doing so where the table allows to capture whole statements by now.
    now = replace(one.found, plain=one.found.plain and one.installed.plain, ordered=one.installed.ordered)
    expected, table = triggers(Own(schema, one.capture), one.together, now), POSTGRES.table(one.interest.table)
    if not one.interest.wants("truncate"):  # others in the rows may want it, whose triggers a new partition lacks
        expected = {key: trigger for key, trigger in expected.items() if not key[1].endswith("_truncate")}
    enabled = {(table if each.here else each.table, each.name): each.enabled for each in now.triggers}
    if not enabled.keys() >= expected.keys():
        return "missing"
    state = capture_state(replace(one, found=now), _read)
    is_enabled = all(enabled[key] == trigger.enabled for key, trigger in expected.items())
    return state if is_enabled or state != "ok" else "disabled"
