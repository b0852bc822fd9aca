"""The keys of tokens that the program signs itself, at rest."""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterable, Mapping
from dataclasses import field
from datetime import datetime
from typing import Any

from penstock.dataclass import dataclass
from penstock.store.nouns.noun import Noun
from penstock.store.session import OpenTransaction


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A pair of keys."""

    id: str  # its id, the ``kid`` of its tokens
    created_at: datetime  # when it was made
    public: Mapping[str, Any]  # the public key, as a JSON Web Key
    secret: str = field(repr=False)  # the private key in PEM, as a JSON object; encrypted if the program has a codec


class SigningKeys(Noun, queries=("signing_keys",)):
    """The keys at rest."""

    async def add(self, session: OpenTransaction, key: SigningKey, pem: str) -> None:
        """Keep a pair of keys with its private key."""
        secret = self._access.encryption.encrypt(json.dumps({"pem": pem}))
        values = {"id": key.id, "now": key.created_at, "public": json.dumps(key.public), "secret": secret}
        await self._fetch(session, "add", **values)

    async def list(self, session: OpenTransaction | None = None) -> builtins.list[SigningKey]:
        """All pairs, the newest first."""
        rows = await self._ask(session, "list")
        return self._read(SigningKey, rows, public=lambda row: json.loads(row["public"]))

    def pem_of(self, key: SigningKey) -> str:
        """The private key of a pair.

        Raises:
            Undecryptable: No key of the codec fits.
        """
        pem: str = json.loads(self._access.encryption.decrypt(key.secret))["pem"]
        return pem

    async def forget(self, session: OpenTransaction, ids: Iterable[str]) -> None:
        """Forget pairs, whose tokens hold no more."""
        await self._fetch(session, "forget", ids=[*ids])
