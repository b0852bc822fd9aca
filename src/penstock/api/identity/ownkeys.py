"""The keys with which this program verifies the tokens that it has signed, read from its own database."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock.calls.run.signing import ALGORITHM, Signing
from penstock.identity.providers import CustomJWT, OwnJWT

if TYPE_CHECKING:
    import jwt

_NONE_YET = "data:," + json.dumps({"keys": []})


class OwnKeys:
    """The keys of the program; stands where the `KeySet` of another provider does."""

    def __init__(self, own: OwnJWT, signing: Signing) -> None:
        self.provider = CustomJWT(signing.issuer, _NONE_YET, ALGORITHM, own.application_id)
        self._signing = signing

    async def find(self, key_id: str) -> jwt.PyJWK | None:
        """The key with an id; None if the program has none, or it is too old."""
        import jwt  # noqa: PLC0415 - see `KeySet`

        for again in (False, True):
            for key in await self._signing.read(again=again):
                if key.id == key_id:
                    return jwt.PyJWK(dict(key.public))
        return None

    def has(self, key_id: str) -> bool:
        """Whether the program has a key with this id, as far as is known without a look."""
        return self._signing.has(key_id)

    async def close(self) -> None:
        """Nothing is under way."""
