"""Tokens that the program signs itself, and the keys that verify them.

Owns which key signs, and how long an older one verifies. A process reads the keys once a minute, and sooner if a token
names one that it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from penstock.clock import Clock
from penstock.config import Config
from penstock.errors import ConfigError, ValueInvalid
from penstock.store.nouns.signing_keys import SigningKey
from penstock.store.store import Store
from penstock.transaction.transaction import Transaction

ALGORITHM: Final = "ES256"
Make = Callable[[Transaction], Awaitable[SigningKey]]
Write = Callable[[Make], Awaitable[SigningKey]]

_RESERVED = ("exp", "iat", "iss", "nbf")
_SHORTEST, _LONGEST = timedelta(seconds=1), timedelta(hours=1)
_VERIFIES = 2 * _LONGEST  # how long an older key does, once there is a newer one: its last tokens, and late processes
_FRESH = 60.0  # seconds
_MOST_BYTES = 4000  # of claims: a token has more characters, and headers of HTTP have room for 8,192


class Signing:
    """Signs tokens, and knows the public keys. One for each process."""

    def __init__(self, store: Store, config: Config, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self.issuer = config.public_url
        self._keys: Sequence[SigningKey] = ()
        self._read_at = float("-inf")

    async def sign(self, claims: Mapping[str, Any], expires_in: timedelta, now: datetime, write: Write) -> str:
        """Sign claims; see `SigningAuth.sign_jwt`. `write` makes the first key, in a transaction."""
        import jwt  # noqa: PLC0415 - takes a seventh of the time to import an app, and few apps sign tokens

        if not self.issuer:
            raise ConfigError(
                "sign_jwt needs the setting public_url, which names the issuer of its tokens.",
                fix="Set public_url to the URL at which others reach this program.",
            )
        _check(claims, expires_in)
        keys = await self.read()
        key = keys[0] if keys else await write(self._make_first)
        said = {**claims, "iss": self.issuer, "iat": int(now.timestamp()), "exp": int((now + expires_in).timestamp())}
        return jwt.encode(said, self._store.signing_keys.pem_of(key), ALGORITHM, {"kid": key.id})

    async def read(self, *, again: bool = False) -> Sequence[SigningKey]:
        """The keys that verify tokens, the newest first: as they are now, or were less than a minute ago."""
        if again or not self._is_fresh:
            self._keys, self._read_at = await self._store.signing_keys.list(), self._clock.monotonic()
        now = self._clock.now()
        newer: Sequence[datetime | None] = [None, *(key.created_at for key in self._keys)]
        return [
            key
            for key, replaced_at in zip(self._keys, newer, strict=False)
            if replaced_at is None or now - replaced_at < _VERIFIES
        ]

    def has(self, key_id: str) -> bool:
        """Whether there was a key less than a minute ago; False also if nobody has looked since then."""
        return self._is_fresh and any(key.id == key_id for key in self._keys)

    @property
    def _is_fresh(self) -> bool:
        return self._clock.monotonic() - self._read_at <= _FRESH

    async def rotate(self, transaction: Transaction, *, at_once: bool) -> SigningKey:
        """Make a key that signs from now on. Older ones verify for two hours, or at once no more.

        Processes sign with the one that they know for up to a minute.
        """
        keys = self._store.signing_keys
        old = await keys.list(transaction)
        now = self._clock.now()
        ends = [key.created_at for key in old]  # of the one after each
        gone = [key.id for key, end in zip(old[1:], ends, strict=False) if now - end >= _VERIFIES]
        await keys.forget(transaction, [key.id for key in old] if at_once else gone)
        return await self._make(transaction)

    # ----- steps

    async def _make_first(self, transaction: Transaction) -> SigningKey:
        found = await self._store.signing_keys.list(transaction)
        return found[0] if found else await self._make(transaction)

    async def _make(self, transaction: Transaction) -> SigningKey:
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - see `sign`
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - see `sign`
        from jwt.algorithms import ECAlgorithm  # noqa: PLC0415 - see `sign`

        self._read_at = float("-inf")
        pair = ec.generate_private_key(ec.SECP256R1())
        plain = serialization.NoEncryption()  # the codec encrypts it
        pem = pair.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()
        key_id = f"{self._clock.uuid7():032x}"
        public = {**ECAlgorithm.to_jwk(pair.public_key(), as_dict=True), "kid": key_id, "alg": ALGORITHM, "use": "sig"}
        key = SigningKey(key_id, self._clock.now(), public, "")
        await self._store.signing_keys.add(transaction, key, pem)
        return next(one for one in await self._store.signing_keys.list(transaction) if one.id == key_id)


def _check(claims: object, expires_in: timedelta) -> None:
    if not isinstance(claims, Mapping) or not all(isinstance(name, str) for name in claims):
        raise ValueInvalid(f"sign_jwt takes a dict of claims, not {type(claims).__name__}.")
    if set_here := [name for name in _RESERVED if name in claims]:
        raise ValueInvalid(f"sign_jwt sets {set_here[0]} itself.", fix=f"Leave out {', '.join(set_here)}.")
    try:
        size = len(json.dumps(claims, allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueInvalid(f"The claims cannot be written as JSON: {error}.") from error
    if size > _MOST_BYTES:
        raise ValueInvalid(f"The claims have {size:,} bytes, and may have {_MOST_BYTES:,}.", fix="Store them instead.")
    if not _SHORTEST <= expires_in <= _LONGEST:
        raise ValueInvalid(f"A token cannot expire in {expires_in}.", fix="Pass from a second to an hour.")
