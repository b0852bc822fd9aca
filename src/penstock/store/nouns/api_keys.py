"""API keys at rest: their hashes, so that who reads the database can call nothing with them."""

from __future__ import annotations

import builtins
import json
from collections.abc import Sequence
from datetime import datetime

from penstock.dataclass import dataclass
from penstock.store.nouns.noun import Noun
from penstock.store.session import Row


@dataclass(frozen=True, slots=True)
class ApiKeyRow:
    """An API key."""

    name: str  # its name, which no other key has
    scopes: tuple[str, ...]  # the words that functions can ask for
    created_at: datetime  # when it was created
    expires_at: datetime | None  # when it holds no more; None for never


class ApiKeys(Noun, queries=("api_keys",)):
    """API keys at rest. Each verb is a transaction of its own."""

    async def create(
        self, name: str, key_hash: str, scopes: Sequence[str], now: datetime, expires_at: datetime | None
    ) -> bool:
        """Keep the hash of a new key; False if another key has its name."""
        said = json.dumps(list(scopes))
        return bool(await self._run("create", name=name, hash=key_hash, scopes=said, now=now, expires_at=expires_at))

    async def find(self, key_hash: str) -> ApiKeyRow | None:
        """The key with a hash, whether or not it has expired; None if there is none."""
        return next(iter(self._keys(await self._look("find", hash=key_hash))), None)

    async def list(self) -> builtins.list[ApiKeyRow]:
        """All keys, by name."""
        return self._keys(await self._look("list"))

    async def revoke(self, name: str) -> bool:
        """Forget a key; False if there is none of this name."""
        return bool(await self._run("revoke", name=name))

    def _keys(self, rows: Sequence[Row]) -> builtins.list[ApiKeyRow]:
        return self._read(ApiKeyRow, rows, scopes=lambda row: tuple(json.loads(row["scopes"])))
