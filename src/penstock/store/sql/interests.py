"""Interests at rest, the part that both stores share: declaring, dropping and rebuilding them.

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
from penstock.store.contract.changes import InterestRow, State
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

Right = TypeVar("Right")  # the right to make triggers: a transaction on SQLite, the schema lock on PostgreSQL


class StoredInterests(ABC, Generic[Right]):
    """See `store.contract.changes.Interests`."""

    async def check(self, interests: Sequence[Interest], now: datetime) -> None:
        stored = await self._stored()
        if wanted := [one for one in interests if self._state(stored.get(identity_of(one))) != "ok"]:
            await self._try_out(wanted, now)

    async def declare(self, interests: Sequence[Interest], now: datetime) -> builtins.list[int]:
        stored = await self._stored()
        if any(self._state(stored.get(identity_of(one))) != "ok" for one in interests):
            async with self._changing() as right:
                stored = await self._declare(right, interests, now)
        return [stored[identity_of(one)].id for one in interests]

    async def replace(self, interests: Sequence[Interest], numbers: Sequence[int], now: datetime) -> frozenset[int]:
        stored = await self._stored()
        if not replaced(interests, numbers, stored) and all(self._is_current(one, stored) for one in interests):
            return frozenset()
        async with self._changing() as right:
            missing = replaced(interests, numbers, await self._stored(right))
            left = [one for one, number in zip(interests, numbers, strict=True) if number not in missing]
            await self._declare(right, left, now, drop_namesakes=True)
        return missing

    async def keep_declared(self, interests: Sequence[Interest], now: datetime) -> None:
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
        if ids:
            async with self._changing() as right:
                stored = (await self._stored(right)).values()
                await self._drop(right, [one for one in stored if one.id in ids and not (unused and one.installed)])

    async def list(self) -> builtins.list[InterestRow]:
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

    # ----- different on each store

    @abstractmethod
    def _changing(self) -> AbstractAsyncContextManager[Right]:
        """The right to make triggers, for a block."""

    @abstractmethod
    async def _stored(self, right: Right | None = None) -> Stored:
        """All interests."""

    @abstractmethod
    async def _declared(self, interests: Sequence[Interest], right: Right | None = None) -> set[Identity]:
        """The interests with which the tasks of these interests are declared now."""

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
