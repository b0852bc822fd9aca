"""`ctx.auth`: who calls a function, and tokens that the program signs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from penstock.calls.enqueue.jobs import JobCalls
from penstock.errors import NotSignedIn, Unauthenticated
from penstock.identity.identity import Identity
from penstock.transaction.tracking import Calls, track_calls
from penstock.transaction.words import refuses_other_words


@refuses_other_words
class Auth:
    """``ctx.auth`` of one run of a function: the identity of its caller."""

    __slots__ = ("_calls", "_read", "_refusal")

    def __init__(
        self, calls: Calls, read: Callable[[], Identity | None], refusal: Unauthenticated | None = None
    ) -> None:
        self._calls = calls
        self._read = read
        self._refusal = refusal

    @property
    def error(self) -> Unauthenticated | None:
        """The reason why the header ``authorization`` names no user; None if it does, or is missing.

        Only below HTTP actions: elsewhere such a call is refused before it runs.
        """
        return self._refusal

    @track_calls
    async def get_user_identity(self) -> Identity | None:
        """The identity of the caller; None if nobody has signed in, or the program itself calls.

        Raises:
            Unauthenticated: The header ``authorization`` of an HTTP action's request names no user.
        """
        if self._refusal is not None:
            raise self._refusal
        return self._read()

    @track_calls
    async def require(self) -> Identity:
        """The identity of the caller.

        Raises:
            NotSignedIn: Nobody has signed in, or the program itself calls.
            Unauthenticated: The header ``authorization`` of an HTTP action's request names no user.
        """
        if self._refusal is not None:
            raise self._refusal
        identity = self._read()
        if identity is None:
            raise NotSignedIn
        return identity


class SigningAuth(Auth):
    """``ctx.auth`` of one run of a mutation or an action, which may sign tokens, too."""

    __slots__ = ("_job_calls",)

    def __init__(
        self, calls: Calls, read: Callable[[], Identity | None], refusal: Unauthenticated | None, job_calls: JobCalls
    ) -> None:
        super().__init__(calls, read, refusal)
        self._job_calls = job_calls

    @track_calls
    async def sign_jwt(self, claims: Mapping[str, Any], *, expires_in: timedelta = timedelta(minutes=15)) -> str:
        """Sign a JSON Web Token with the program's own key, by ES256.

        Everybody can verify it with the keys at ``/.well-known/jwks.json``, and with `OwnJWT` this program does. It
        cannot be revoked, and everybody who has it can read the claims. The first token makes the key.

        Args:
            claims: Its claims, such as ``sub`` and ``aud``, as JSON has it, in 4,000 bytes at most. ``iss`` is the
                setting ``public_url``, and ``iat`` and ``exp`` are times; these are not given here, nor is ``nbf``.
            expires_in: How long it holds, from a second to an hour.

        Raises:
            ConfigError: The setting ``public_url`` is not there.
            ValueInvalid: The claims or the time cannot be.
            Undecryptable: No key of the codec fits the stored key.
        """
        calls = self._job_calls
        return await calls.engine.signing.sign(claims, expires_in, calls.now(), calls.write)
