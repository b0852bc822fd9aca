"""Interests at rest, as far as both stores agree: which are declared, dropped and made anew, and when.

Owns the order of a declaration. Each store reads interests with their tables, and makes triggers.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from functools import partial
from typing import Generic, TypeVar

from penstock.changes.interest import Interest
from penstock.errors import DeclarationError, PenstockError
from penstock.store.contract.changes import InterestRow, Source, State
from penstock.store.contract.session import OpenTransaction
from penstock.store.rows.interests import (
    Identity,
    Rebuild,
    Stored,
    StoredInterest,
    by_capture,
    identity_of,
    namesakes,
    replaced,
)
from penstock.store.sql.conditions import ConditionSql

Right = TypeVar("Right")  # the right to make triggers: a transaction on SQLite, the schema lock on PostgreSQL


class Interests(ABC, Generic[Right]):
    """Interests at rest, and the triggers that capture what they want."""

    async def check(self, interests: Sequence[Interest], now: datetime) -> None:
        """Refuse what `declare` would refuse, without changing anything; what is in order takes no lock.

        Where others hold locks on a table, it is not tried out what its database says to the SQL.

        Raises:
            DeclarationError: See `declare`.
        """
        stored = await self._stored()
        if wanted := [one for one in interests if self._state(stored.get(identity_of(one))) != "ok"]:
            await self._try_out(wanted, now)

    async def declare(self, interests: Sequence[Interest], now: datetime) -> builtins.list[int]:
        """Have changes captured from now on, and mend what is amiss; the numbers of the interests, in their order.

        Those that are declared and in order are left alone, and no lock is taken for them. One that was captured before
        and was not in order is told of as ``lost``, in the transaction that makes its triggers anew; so is one that a
        task is declared with already, as it should have been captured.

        Raises:
            DeclarationError: There is no such table, it is a view or the like, or the database refuses the SQL.
            DatabaseBusy: Others hold locks on the table for too long.
        """
        stored = await self._stored()
        if any(self._state(stored.get(identity_of(one))) != "ok" for one in interests):
            async with self._changing() as right:
                stored = await self._declare(right, interests, now)
        return [stored[identity_of(one)].id for one in interests]

    async def replace(self, interests: Sequence[Interest], numbers: Sequence[int], now: datetime) -> frozenset[int]:
        """Have changes captured under the numbers that `add` gave, and for no others of the same names any more.

        One transaction ends the one and begins the other. Those that are in order and alone take no lock.

        Returns:
            The numbers that are gone, as somebody else has replaced them meanwhile: nothing was done about these.

        Raises:
            DeclarationError: See `declare`.
            DatabaseBusy: Others hold locks on the table for too long.
        """
        stored = await self._stored()
        if not replaced(interests, numbers, stored) and all(self._is_current(one, stored) for one in interests):
            return frozenset()
        async with self._changing() as right:
            missing = replaced(interests, numbers, await self._stored(right))
            left = [one for one, number in zip(interests, numbers, strict=True) if number not in missing]
            await self._declare(right, left, now, drop_namesakes=True)
        return missing

    async def keep_declared(self, interests: Sequence[Interest], now: datetime) -> None:
        """Have captured for tasks what they are declared with now, and nothing else.

        If that is one of these interests, it takes the place of all others of its name, in one transaction, and is
        told of as ``lost`` if somebody has dropped it meanwhile. If it is not, as another release has declared the task
        since, the one that was given is dropped.

        Raises:
            DeclarationError: See `declare`.
            DatabaseBusy: Others hold locks on the table for too long.
        """
        stored, declared = await self._stored(), await self._declared(interests)
        if all(identity_of(one) in declared and self._is_current(one, stored) for one in interests):
            return
        async with self._changing() as right:
            declared = await self._declared(interests, right)
            left = [one for one in interests if identity_of(one) in declared]
            stored = await self._declare(right, left, now, drop_namesakes=True)
            stale = [stored.get(identity_of(one)) for one in interests if identity_of(one) not in declared]
            await self._drop(right, [one for one in stale if one is not None])

    async def drop(self, ids: Sequence[int], *, unused: bool = False) -> None:
        """Have them captured no more. What was captured stays until its readers have passed it.

        Args:
            ids: Their numbers.
            unused: Whether only those of them are dropped which were added, and never captured.
        """
        if ids:
            async with self._changing() as right:
                stored = (await self._stored(right)).values()
                await self._drop(right, [one for one in stored if one.id in ids and not (unused and one.installed)])

    async def list(self) -> builtins.list[InterestRow]:
        """All interests by number, and whether each still captures."""
        stored = (await self._stored()).values()
        return [InterestRow(one.id, one.interest, self._state(one), one.declared_at) for one in stored]

    # ----- steps

    async def _declare(
        self, right: Right, interests: Sequence[Interest], now: datetime, *, drop_namesakes: bool = False
    ) -> Stored:
        """Have interests captured, a group that shares triggers at a time; all interests as they are stored then."""
        declared = await self._declared(interests, right)
        for group in by_capture(interests):
            declare = partial(self._declare_group, right, now, declared, drop_namesakes)
            await by_one_if_refused(group, declare)
        return await self._stored(right)

    async def _declare_group(
        self, right: Right, now: datetime, declared: set[Identity], drop_namesakes: bool, group: Sequence[Interest]
    ) -> None:
        stored, added = await self._stored(right), builtins.list[int]()
        for one in group:
            if identity_of(one) not in stored:
                added += await self._add(right, one, now)
        stored = await self._stored(right) if added else stored
        asked = [one for one in (stored[identity_of(each)] for each in group) if self._state(one) != "ok"]
        dropped = [other for one in group for other in namesakes(one, stored)] if drop_namesakes else []
        try:
            if asked or dropped:
                await self._rebuild(right, Rebuild(stored, asked, dropped, declared))
        except PenstockError:
            await self._take_back(right, added)
            raise

    async def _drop(self, right: Right, dropped: Sequence[StoredInterest]) -> None:
        for one in dropped:
            await self._rebuild(right, Rebuild(await self._stored(right), dropped=[one]))

    def _is_current(self, interest: Interest, stored: Stored) -> bool:
        return self._state(stored.get(identity_of(interest))) == "ok" and not namesakes(interest, stored)

    # ----- what each store does

    @abstractmethod
    def _changing(self) -> AbstractAsyncContextManager[Right]:
        """The right to make triggers, for a block."""

    @abstractmethod
    async def _stored(self, right: Right | None = None) -> Stored:
        """All interests."""

    @abstractmethod
    async def _declared(self, interests: Sequence[Interest], right: Right | None = None) -> set[Identity]:
        """What the tasks of these interests are declared with now."""

    @abstractmethod
    def _state(self, one: StoredInterest | None) -> State:
        """Whether an interest is captured as it was declared."""

    @abstractmethod
    async def _add(self, right: Right, interest: Interest, now: datetime) -> builtins.list[int]:
        """Give an interest a number."""

    async def _take_back(self, right: Right, added: Sequence[int]) -> None:
        """Remove interests that could not be captured, if no transaction does."""

    @abstractmethod
    async def _rebuild(self, right: Right, rebuild: Rebuild) -> None:
        """Make triggers anew."""

    @abstractmethod
    async def _try_out(self, interests: Sequence[Interest], now: datetime) -> None:
        """Declare interests, and undo that."""

    # ----- what each store does

    @abstractmethod
    async def add(self, interests: Sequence[Interest], now: datetime) -> builtins.list[int]:
        """Give interests their numbers, without capturing anything yet; those that are known keep theirs."""

    @abstractmethod
    async def mend(self, id_: int) -> bool:
        """Make the triggers of an interest anew, waiting for nobody; False if it is in order, or not there any more.

        Raises:
            DeclarationError: It does not fit the table any more.
            DatabaseBusy: Others hold locks on the table.
        """

    @abstractmethod
    async def each_of(self, tables: Sequence[str], session: OpenTransaction | None = None) -> frozenset[str]:
        """Those of some tables of which each change counts, as a transaction sees it.

        Tables are compared, and not names: whoever declared an interest may spell its table otherwise.
        """

    @abstractmethod
    async def source(self, number: int, only: ConditionSql | None = None) -> Source | None:
        """How the rows are read that an interest is about; None if there is no such interest, or no such table.

        Args:
            number: Its number.
            only: Which of its rows, with the columns that are told as they were. These rows are kept from being changed
                until the transaction ends in which they are read.
        """


async def by_one_if_refused(
    interests: Sequence[Interest], work: Callable[[Sequence[Interest]], Awaitable[None]]
) -> None:
    """Do something for interests together; if one is refused, for each, so that the error names the right one."""
    try:
        await work(interests)
    except DeclarationError:
        if len(interests) == 1:
            raise
    else:
        return
    for one in interests:
        await work([one])
