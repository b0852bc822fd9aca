"""Verifies tokens: who has sent one, and until when it holds. Remembers verified tokens.

Owns the checks of a token, and API keys. Leaves fetching a provider's keys to `keys`.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from penstock.api.identity.codes import Codes, SignIn
from penstock.api.identity.keys import KeySet, OwnKeys
from penstock.calls.run.engine import Engine
from penstock.calls.run.threads import Threads
from penstock.dataclass import dataclass
from penstock.errors import Unauthenticated
from penstock.identity.api_key import PREFIX, hash_of, identity_of_key
from penstock.identity.claims import identity_of
from penstock.identity.identity import Identity
from penstock.identity.providers import SHARED, CustomJWT, OwnJWT, Provider, issuer_url

_LONGEST = 8192  # characters
_LEEWAY = timedelta(seconds=5)
_LAST = datetime.max.replace(tzinfo=UTC) - _LEEWAY
_DIGITS = 16  # of an integer that JavaScript may round
_MOST_KNOWN = 10_000
_KEYS_EVERY = 2.0  # seconds after which an API key is looked for again
_FIX = "Sign in again."


@dataclass(frozen=True, slots=True)
class Verified:
    """A token that was verified."""

    identity: Identity  # whom it names
    expires_at: datetime | None  # when it holds no more; None for never
    holds: Callable[[], bool]  # whether it still holds, as far as is known without asking anybody


class Tokens:
    """Verifies the tokens of an app's callers."""

    def __init__(self, engine: Engine, providers: Sequence[Provider]) -> None:
        self._clock = engine.clock
        self._api_keys = engine.store.api_keys
        self._threads = Threads("penstock-identity", 2 * len(providers) + 1)  # one may hang for a while
        fetched = [one for one in providers if not isinstance(one, OwnJWT)]
        fetching = [KeySet(one, self._threads, engine.clock) for one in fetched]
        own = [OwnKeys(one, engine.signing) for one in providers if isinstance(one, OwnJWT)]
        self._key_sets: Sequence[KeySet | OwnKeys] = [*own, *fetching]
        self._known: dict[bytes, Verified] = {}
        self.codes = Codes(fetching)

    async def verify(self, token: str) -> Verified:
        """Verify a token.

        Raises:
            Unauthenticated: It is malformed, expired, forged, for another application, or of an unknown issuer.
            ProviderUnavailable: The keys of its issuer cannot be fetched.
        """
        if len(token) > _LONGEST or not token.isascii():
            raise _refusal(f"This is no token: it has more than {_LONGEST} characters, or some that no token has.")
        digest = sha256(token.encode()).digest()
        known = self._known.pop(digest, None)
        if known is None or not self.holds(known):
            known = await (self._verify_key(token) if token.startswith(PREFIX) else self._verify(token))
        self._known[digest] = known  # the last one, so that unused ones go first
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        return known

    def holds(self, verified: Verified) -> bool:
        """Whether a token that was verified still holds. If not, `verify` says why, or verifies it again."""
        return (verified.expires_at is None or self._clock.now() < verified.expires_at) and verified.holds()

    async def redeem(self, sign_in: SignIn, code: str) -> Identity:
        """Redeem the code that a provider has sent back for the identity that signed in.

        Raises:
            AccessDenied: The provider refuses the code.
            Unauthenticated: Its ID token is forged, expired, or of another sign-in, client or issuer.
            ProviderUnavailable: It does not answer.
        """
        token, provider = await self.codes.redeem(sign_in, code), sign_in.provider
        keys = next(one for one in self._key_sets if one.provider is provider)
        _, claims = await self._claims(keys, token, provider.dashboard_client_id)
        self._check_times(claims)
        wanted = {"iss": issuer_url(provider.issuer), "nonce": sign_in.nonce, "azp": provider.dashboard_client_id}
        found = {"azp": wanted["azp"], **claims, "iss": issuer_url(str(claims["iss"]))}
        wrong = [name for name, value in wanted.items() if found.get(name) != value]
        if wrong:
            raise _refusal(f"The ID token has another {' and '.join(wrong)}.")
        return identity_of(claims, flat=False)

    async def close(self) -> None:
        """Fetch no more keys."""
        await asyncio.gather(*(one.close() for one in self._key_sets))
        self._threads.close()
        self.codes.close()

    # ----- steps

    async def _verify_key(self, key: str) -> Verified:
        """Verify an API key. It may be revoked at any time, so it is looked for again soon."""
        row, now = await self._api_keys.find(hash_of(key)), self._clock.now()
        if row is None or (row.expires_at is not None and row.expires_at <= now):
            raise _refusal("The API key is unknown, revoked or expired.", fix="Look at penstock keys.")
        until = self._clock.monotonic() + _KEYS_EVERY
        return Verified(identity_of_key(row.name, row.scopes), row.expires_at, lambda: self._clock.monotonic() < until)

    async def _verify(self, token: str) -> Verified:
        keys = self._keys_for(_decode_unverified(token)["payload"])
        try:
            key_id, claims = await self._claims(keys, token, keys.provider.application_id)
            expires_at = self._check_times(claims)
        except Unauthenticated as error:
            if isinstance(keys.provider, CustomJWT):
                error.facts["reason"] = "InvalidAuthHeader"  # as Convex calls it
            raise
        identity = identity_of(claims, flat=isinstance(keys.provider, CustomJWT))
        return Verified(identity, expires_at, lambda: keys.has(key_id))

    async def _claims(self, keys: KeySet | OwnKeys, token: str, audience: str | None) -> tuple[str, dict[str, Any]]:
        """The id of the key of a token, and its claims, after a check of its signature and its audience."""
        import jwt  # noqa: PLC0415 - see `KeySet`

        key_id = _decode_unverified(token)["header"].get("kid", "")
        key_id = SHARED if getattr(keys.provider, "secret", "") else key_id
        key = await keys.find(key_id)
        if key is None:
            said = f"its 'kid' is {key_id!r}" if key_id else "it is missing a 'kid' in its header"
            raise _refusal(f"Could not decode token: {said}. The issuer {keys.provider.issuer} has no key {key_id!r}.")
        try:
            claims = jwt.decode(
                token,
                key,
                [key.algorithm_name],
                audience=audience,
                # The times are checked below, by the clock of the app.
                options={
                    "require": ["sub", "iss", "exp"],
                    "verify_aud": audience is not None,
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.PyJWTError as error:
            raise _refusal(f"The token was refused: {error}.") from error
        return key_id, _readable(claims)

    def _keys_for(self, claims: dict[str, Any]) -> KeySet | OwnKeys:
        """The keys of the provider that the token says it is of, and for the application that it is for."""
        issuer, audience = claims.get("iss"), claims.get("aud")
        if issuer is None:
            raise _refusal("The token names no issuer: its claim 'iss' is missing.", reason="InvalidAuthHeader")
        audiences = audience if isinstance(audience, list) else [audience]
        for keys in self._key_sets:
            provider = keys.provider
            same = isinstance(issuer, str) and issuer_url(issuer) == issuer_url(provider.issuer)
            if same and (provider.application_id is None or provider.application_id in audiences):
                return keys
        listed = ", ".join(one.provider.summary for one in self._key_sets) or "none"
        raise _refusal(
            f"No auth provider found matching the given token, which the issuer {issuer!r} made for {audience!r}.",
            fix=f"Compare with App(auth=[…]), the configured providers: {listed}.",
            reason="NoAuthProvider",
        )

    def _check_times(self, claims: dict[str, Any]) -> datetime:
        now = self._clock.now()
        expires_at = min(_time(claims["exp"]), _LAST) + _LEEWAY
        if expires_at <= now:
            raise _refusal(f"Token expired {_seconds(now - expires_at + _LEEWAY)} ago.")
        for name in ("nbf", "iat"):
            if name in claims and (valid_from := _time(claims[name])) > now + _LEEWAY:
                wait = _seconds(valid_from - now)
                raise _refusal(
                    f"The token will be valid in {wait}: its {name} is in the future.", fix="Compare the clocks."
                )
        return expires_at


def _decode_unverified(token: str) -> dict[str, Any]:
    import jwt  # noqa: PLC0415 - see `KeySet`

    try:
        return jwt.decode_complete(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError) as error:
        what = "The token is no JSON Web Token: a JWT has three base64-encoded parts, separated by dots."
        raise _refusal(what, reason="InvalidAuthHeader") from error


def _readable(claims: dict[str, Any]) -> dict[str, Any]:
    """Claims as every client can read them: integers that JavaScript would round are text.

    Refuses claims that no client can read, and a subject that names nobody.
    """
    try:
        text = json.dumps(claims, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise _refusal("The token has a claim with a number or a text that no client can read.") from error
    if not claims["sub"].strip() or "\0" in claims["sub"]:
        raise _refusal("The token names nobody: its sub is empty.")
    found: dict[str, Any] = json.loads(text, parse_int=lambda said: int(said) if len(said) < _DIGITS else said)
    return found


def _seconds(wait: timedelta) -> str:
    return f"{max(math.ceil(wait.total_seconds()), 1)} seconds"


def _time(claim: Any) -> datetime:
    try:
        return datetime.fromtimestamp(float(claim), UTC)
    except (TypeError, ValueError, OverflowError, OSError) as error:
        raise _refusal("The token has a claim that should be a time, and is not.") from error


def _refusal(what: str, *, fix: str = _FIX, reason: str = "Unauthenticated") -> Unauthenticated:
    error = Unauthenticated(what, fix=fix, reason=reason)
    error.at_the_door = True
    return error
