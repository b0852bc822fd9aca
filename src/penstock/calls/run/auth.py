"""`ctx.auth`: who calls a function."""

from __future__ import annotations

from collections.abc import Callable

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
