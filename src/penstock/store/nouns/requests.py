"""Mutations that clients sent over a web socket, with their results, for clients that send them again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from datetime import datetime, timedelta

from penstock.dataclass import dataclass
from penstock.store.nouns.noun import Noun
from penstock.store.session import OpenTransaction

_KEPT = timedelta(days=1)
_RESERVED = -1


@dataclass(frozen=True, slots=True)
class RequestKey:
    """The key that tells whether two requests are one: the client's session and number, and a hash of what it calls."""

    session: str
    request: int
    call: int


class Requests(Noun, queries=("requests",)):
    """Mutations that clients sent over a web socket, with their results."""

    async def find(self, key: RequestKey) -> str | None:
        """The result of a request that took effect; None if it did not."""
        rows = await self._look("find", **asdict(key))
        return None if not rows else self._access.encryption.decrypt(rows[0]["result"])

    async def find_shown(self, transaction: OpenTransaction, keys: Collection[RequestKey]) -> set[RequestKey]:
        """The requests, of some, that a transaction sees to have taken effect."""
        rows = await self._fetch_each(transaction, "shown", list(map(asdict, keys)))
        return set(self._read(RequestKey, rows))

    async def record(self, transaction: OpenTransaction, key: RequestKey, result: str, now: datetime) -> bool:
        """Record a request, with all else that its transaction writes; False if it took effect before."""
        values = asdict(key) | {"result": self._access.encryption.encrypt(result)}
        return bool(await self._fetch(transaction, "record", **values, kept_until=now + _KEPT))

    async def reserve(self, session: str, now: datetime) -> bool:
        """Reserve a session's number for a client that comes without one; False if another client has it."""
        values = asdict(RequestKey(session, _RESERVED, 0))
        return bool(await self._run("record", **values, result="", kept_until=now + _KEPT))
