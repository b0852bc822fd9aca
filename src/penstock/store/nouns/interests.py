"""Interests at rest, the part that both stores share: declaring, dropping and rebuilding them.

Owns the order of a declaration. Each store reads interests with their tables, and makes triggers.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from copy import copy
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Generic, Self, TypeVar

from penstock.changes.interest import Interest
from penstock.dataclass import dataclass
from penstock.errors import DeclarationError, PenstockError
from penstock.store.nouns.captures import (
    IN_ORDER,
    Identity,
    Rebuild,
    State,
    Stored,
    StoredInterest,
    by_capture,
    by_identity,
    has_other_rows,
    identity_of,
    namesakes,
    orphans,
)
from penstock.store.nouns.noun import Noun
from penstock.store.session import OpenTransaction, Statement
from penstock.store.sql.conditions import ConditionSql

Right = TypeVar("Right")  # the right to make triggers: a transaction on SQLite, the schema lock on PostgreSQL


@dataclass(frozen=True, slots=True)
class InterestRow:
    """An interest as it is kept."""

    id: int  # its number, which its changes bear
    interest: Interest
    # ``ok``; ``held``, while each write of the table tells ``lost``; ``missing``, if a trigger was dropped, or a
    # partition came that has none; ``disabled``, if one was switched off; ``altered``, if one, or a column that it
    # captures, is not as it was; ``gone``, if the table is. Declaring it again repairs all but ``held`` and the last,
    # unless it does not fit the table any more
    state: State
    declared_at: datetime


@dataclass(frozen=True, slots=True)
class Source:
    """The statements that read the rows of an interest, spelled as its triggers spell them."""

    # rows in the order of the interest, with the parameter of how many: key, captured columns as they are, captured
    # columns as they were, and the place in that order. If that is the order of keys, each place is the key, but for
    # rows whose key is text that is no UTF-8. Nobody can say it, so it tells no row
    first: Statement
    following: Statement  # the same after a place: its first parameter, as it was given
    among: Statement  # those of some keys: a JSON array of keys, each spelled like that
    keys: Statement  # those of some keys that belong to a row of the table
    # of rows as they were captured, a JSON array, the ones not behind a place: their numbers from 0
    passed: Statement
    parted: bool = False  # whether the table has partitions, and one may be truncated alone


class Interests(Noun, ABC, Generic[Right], queries=("interests",)):
    """Interests at rest, and the triggers that capture their changes."""

    _first: Sequence[str] = ()  # run before triggers are repaired, so that it waits for nobody

    async def add(self, interests: Sequence[Interest], now: datetime) -> builtins.list[int]:
        """Give interests their numbers, without capturing anything yet; known ones keep theirs."""
        stored, numbers = await self._read_stored(), builtins.list[int]()
        for one in interests:
            while (found := stored.get(identity_of(one))) is None:  # another release may have replaced it already
                await self._add(None, one, now)
                stored = await self._read_stored()
            numbers.append(found.id)
        return numbers

    async def check(self, interests: Sequence[Interest], now: datetime) -> None:
        """Raise the errors of `declare`, without changing anything; interests in order take no lock.

        Where others hold locks on a table, it is not tried out what its database says to the SQL.
        """
        if not interests:
            return
        stored = await self._read_stored()
        if wanted := [one for one in interests if self._state(stored.get(identity_of(one))) not in IN_ORDER]:
            await self._try_out(wanted, now)

    async def declare(self, interests: Sequence[Interest], now: datetime) -> builtins.list[int]:
        """Have changes captured from now on, and repair broken triggers; the numbers of the interests, in their order.

        Declared ones in order are left alone, and no lock is taken for them. One that was captured before
        and was not in order is told of as ``lost``, in the transaction that makes its triggers again. So is one that a
        task is declared with already, as it should have been captured.

        Raises:
            DeclarationError: There is no such table, it is a view or the like, or the database refuses the SQL.
            DatabaseBusy: Others hold locks on the table for too long.
        """
        stored = await self._read_stored()
        if any(self._state(stored.get(identity_of(one))) not in IN_ORDER for one in interests):
            async with self._changing() as right:
                stored = await self._declare(right, interests, now)
        return [stored[identity_of(one)].id for one in interests]

    async def replace(self, interests: Sequence[Interest], numbers: Sequence[int], now: datetime) -> frozenset[int]:
        """Have changes captured under the numbers that `add` gave, and for no others of the same names any more.

        One transaction ends the one and begins the other. Interests that are in order and alone take no lock.

        Returns:
            The numbers that are gone, as somebody else has replaced them meanwhile: nothing was done about these.
            Raises the errors of `declare`.
        """
        stored = await self._read_stored()
        if not orphans(interests, numbers, stored) and all(self._is_current(one, stored) for one in interests):
            return frozenset()
        async with self._changing() as right:
            missing = orphans(interests, numbers, await self._read_stored(self._within(right)))
            left = [one for one, number in zip(interests, numbers, strict=True) if number not in missing]
            await self._declare(right, left, now, drop_namesakes=True)
        return missing

    async def keep_declared(self, interests: Sequence[Interest], now: datetime) -> None:
        """Capture for tasks exactly the interests they are declared with now.

        If that is one of these, it replaces all others of its name, in one transaction. It is told of as ``lost`` if
        somebody has dropped it meanwhile. If it is not, as another release has declared the task since, the one that
        was given is dropped. Raises the errors of `declare`.
        """
        stored, declared = await self._read_stored(), await self._current(interests)
        if all(identity_of(one) in declared and self._is_current(one, stored) for one in interests):
            return
        async with self._changing() as right:
            declared = await self._current(interests, self._within(right))
            left = [one for one in interests if identity_of(one) in declared]
            await self._declare(right, left, now, drop_namesakes=True)
            stored = await self._read_stored(self._within(right))
            stale = [stored.get(identity_of(one)) for one in interests if identity_of(one) not in declared]
            await self._drop(right, [one for one in stale if one is not None])

    async def drop(self, ids: Sequence[int], *, unused: bool = False) -> None:
        """Stop capturing them, or only those `unused`: added, and never captured.

        Captured changes stay until their readers have passed them.
        """
        if ids:
            async with self._changing() as right:
                stored = (await self._read_stored(self._within(right))).values()
                await self._drop(right, [one for one in stored if one.id in ids and not (unused and one.installed)])

    async def everywhere(self, session: OpenTransaction) -> builtins.list[Self]:
        """The interests of each program on the database that has tables of its own: they watch a table together."""
        return [self._in_schema(schema) for (schema,) in await self._fetch(session, "schemas")]

    def _in_schema(self, schema: str) -> Self:
        access, other = copy(self._access), copy(self)
        access.dialect = access.dialect.in_schema(schema)
        Noun.__init__(other, access)
        return other

    async def hold(
        self, table: str, session: OpenTransaction | None = None, *, alone: bool = False
    ) -> builtins.list[str]:
        """Let the columns of a table be dropped and retyped, until `release`: its triggers name none of them.

        Nothing is missed silently: each statement that writes the table meanwhile tells its readers ``lost``. In one
        transaction with the change and with `release` there is none, as nobody else can write the table.

        Returns:
            The names of the interests that are held.
        """
        if session is None:
            async with self._writing() as own:
                return await self.hold(table, own, alone=True)
        stored = await self._read_stored(session)
        found = [one for one in stored.values() if self._is_of(one, table) and one.installed and one.found]
        broken = [one.id for one in found if self._state(one) not in IN_ORDER]
        for number in sorted({one.capture for one in found if one.capture is not None and self._state(one) != "held"}):
            await self._hold(session, number, [one for one in found if one.capture == number], alone=alone)
        if broken:  # what they have missed so far
            await session.execute(Statement(self._tell_lost(broken)))
        return [one.interest.name for one in found if one.capture is not None]

    async def release(self, table: str, session: OpenTransaction | None = None) -> builtins.list[str]:
        """Capture the changes of a held table again. They are told ``lost`` if another table has its name by now.

        Returns:
            The names of the interests that do not fit the table any more: a column is gone, or the database refuses a
            condition, as a column has another type. Each is told ``lost``, and captured again once it fits.
        """
        if session is None:
            async with self._writing() as own:
                return await self.release(table, own)
        stored = await self._read_stored(session)
        held = [one for one in stored.values() if self._is_of(one, table) and self._state(one) == "held"]
        misfits = [one for one in held if await self._is_refused(session, one)]
        for number in sorted({one.capture for one in held if one.capture is not None}):
            fitting = [one for one in held if one.capture == number and one not in misfits]
            missed = [identity_of(one.interest) for one in fitting if has_other_rows(one)]
            unfit = [one for one in misfits if one.capture == number]
            await self._release(session, Rebuild(stored, fitting, missed=missed, misfits=unfit))
        if misfits:
            await session.execute(Statement(self._tell_lost([one.id for one in misfits])))
        return [one.interest.name for one in misfits]

    @property
    def _schema(self) -> str:
        return self._access.dialect.schema

    def _is_of(self, one: StoredInterest, table: str) -> bool:
        return self._name(one.interest.table).casefold() == self._name(table).casefold()

    async def list(self) -> builtins.list[InterestRow]:
        """All interests by number, and whether each still captures."""
        stored = (await self._read_stored()).values()
        return [InterestRow(one.id, one.interest, self._state(one), one.declared_at) for one in stored]

    async def each_of(self, tables: Sequence[str], session: OpenTransaction | None = None) -> frozenset[str]:
        """The tables, of some, whose every change counts, as a transaction sees it.

        Tables are compared, and not names: an interest may spell its table otherwise.
        """
        names = {self._name(table): table for table in tables}
        return frozenset(names[row["source"]] for row in await self._ask(session, "each_of", tables=[*names]))

    async def source(
        self, number: int, only: ConditionSql | None = None, columns: Sequence[str] | None = None
    ) -> Source | None:
        """The statements that read the rows of an interest; None if there is no such interest, or no such table.

        With `only` they read a part of its rows, with its columns as they were. These rows are kept from being changed
        until the transaction ends in which they are read. With `columns` they are read in place of the captured ones.
        """
        one = next((one for one in (await self._read_stored()).values() if one.id == number), None)
        if one is None or one.found is None:
            return None
        interest = one.interest if only is None else one.interest.narrow(only.sql, only.columns)
        if columns is not None:
            interest = replace(interest, after=tuple(columns))
        return self._source(interest, one, held=only is not None)

    async def mend(self, id_: int) -> bool:
        """Make the triggers of an interest again, waiting for nobody; False if it is in order, or not there any more.

        Raises:
            DeclarationError: It does not fit the table any more.
            DatabaseBusy: Others hold locks on the table.
        """
        async with self._writing() as session:
            for statement in self._first:
                await session.execute(self._own(statement))
            stored = await self._read_stored(session)
            one = next((one for one in stored.values() if one.id == id_), None)
            if one is None or one.installed is None or self._state(one) in IN_ORDER:  # its program declares it
                return False
            await self._release(session, Rebuild(stored, [one]))
        return True

    # ----- steps

    async def _read_stored(self, session: OpenTransaction | None = None) -> Stored:
        """All interests, as a transaction sees them, or now."""
        return by_identity(self._read(StoredInterest, await self._ask(session, "list")))

    async def _current(self, interests: Sequence[Interest], session: OpenTransaction | None = None) -> set[Identity]:
        """The interests with which the tasks of these interests are declared now."""
        rows = await self._ask(session, "declared", names=[one.name for one in interests])
        return {(row["name"], row["digest"]) for row in rows}

    async def _add(self, session: OpenTransaction | None, interest: Interest, now: datetime) -> builtins.list[int]:
        """Give an interest a number, in a transaction or in one of its own."""
        values = self._values_of(interest, now)
        rows = await (self._run("add", **values) if session is None else self._fetch(session, "add", **values))
        return [row["id"] for row in rows]

    def _values_of(self, interest: Interest, now: datetime) -> dict[str, Any]:
        source = self._name(interest.table)
        return {"name": interest.name, "digest": interest.digest, "source": source, "spec": interest.text(), "now": now}

    def _name(self, table: str) -> str:
        """The name of a table as it is kept: where there are schemas, as SQL."""
        dialect = self._access.dialect
        return dialect.table(table) if dialect.schemas else table

    async def _declare(
        self, right: Right, interests: Sequence[Interest], now: datetime, *, drop_namesakes: bool = False
    ) -> Stored:
        """Have interests captured, a group that shares triggers at a time; all interests as they were before that."""
        session = self._within(right)
        declared = await self._current(interests, session)
        stored, added = await self._with_numbers(interests, now, session)
        try:
            for place, group in enumerate(by_capture(interests)):
                if place and drop_namesakes:  # the group before may share triggers with one that is dropped now
                    stored = await self._read_stored(session)
                declare = partial(self._declare_some, right, group, stored, declared, drop_namesakes)
                await by_one_if_refused(group, declare)
        except PenstockError:
            if added and session is None:  # a transaction takes them back by itself
                for one in (await self._read_stored()).values():
                    if one.id in added and one.installed is None:
                        await self._run("remove", id=one.id)
            raise
        return stored

    async def _with_numbers(
        self, interests: Sequence[Interest], now: datetime, session: OpenTransaction | None
    ) -> tuple[Stored, builtins.list[int]]:
        """All interests, among them these, and the numbers of the unknown ones."""
        stored, added = await self._read_stored(session), builtins.list[int]()
        for one in interests:
            if identity_of(one) not in stored:
                added += await self._add(session, one, now)
        return (await self._read_stored(session) if added else stored), added

    async def _declare_some(
        self,
        right: Right,
        group: Sequence[Interest],
        stored: Stored,
        declared: set[Identity],
        drop_namesakes: bool,
        some: Sequence[Interest],
    ) -> None:
        if len(some) < len(group):  # another one of the group may have been captured since
            stored = await self._read_stored(self._within(right))
        asked = [one for one in (stored[identity_of(each)] for each in some) if self._state(one) not in IN_ORDER]
        dropped = [other for one in some for other in namesakes(one, stored)] if drop_namesakes else []
        if asked or dropped:
            await self._rebuild(right, Rebuild(stored, asked, dropped, declared))

    async def _drop(self, right: Right, dropped: Sequence[StoredInterest]) -> None:
        """Drop interests, all of a table at once, as the remaining ones have their triggers made again each time."""
        for table in dict.fromkeys(one.interest.table for one in dropped):
            group = [one for one in dropped if one.interest.table == table]
            await self._rebuild(right, Rebuild(await self._read_stored(self._within(right)), dropped=group))

    def _is_current(self, interest: Interest, stored: Stored) -> bool:
        return self._state(stored.get(identity_of(interest))) in IN_ORDER and not namesakes(interest, stored)

    # ----- different on each store

    def _within(self, right: Right | None) -> OpenTransaction | None:  # noqa: ARG002 - a lock is no transaction
        """The transaction that is the right to make triggers, if it is one."""
        return None

    @abstractmethod
    def _source(self, interest: Interest, one: StoredInterest, *, held: bool) -> Source:
        """How the rows of an interest are read; `held`, so that they are not changed before the transaction ends."""

    @abstractmethod
    def _changing(self) -> AbstractAsyncContextManager[Right]:
        """The right to make triggers, for a block."""

    @abstractmethod
    def _state(self, one: StoredInterest | None) -> State:
        """Whether an interest is captured as it was declared."""

    @abstractmethod
    async def _rebuild(self, right: Right, rebuild: Rebuild) -> None:
        """Make triggers again."""

    @abstractmethod
    async def _try_out(self, interests: Sequence[Interest], now: datetime) -> None:
        """Declare interests, and undo that."""

    @abstractmethod
    async def _hold(
        self, session: OpenTransaction, number: int, members: Sequence[StoredInterest], *, alone: bool
    ) -> None:
        """Replace triggers by such that name no column, and tell that a change was lost."""

    @abstractmethod
    async def _is_refused(self, session: OpenTransaction, one: StoredInterest) -> bool:
        """Whether a held interest does not fit its table any more. The transaction goes on."""

    @abstractmethod
    async def _release(self, right: OpenTransaction, rebuild: Rebuild) -> None:
        """Make triggers again in a transaction."""

    @abstractmethod
    def _tell_lost(self, numbers: Sequence[int]) -> str:
        """The statement that tells interests that a change was lost."""


async def by_one_if_refused(
    interests: Sequence[Interest], work: Callable[[Sequence[Interest]], Awaitable[None]]
) -> None:
    """Run a step for interests together; if one is refused, for each, so that the error names the right one."""
    try:
        await work(interests)
    except DeclarationError:
        if len(interests) == 1:
            raise
    else:
        return
    for one in interests:
        await work([one])
