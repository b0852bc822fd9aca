"""How programs say how work has ended that waits for an outside system. `calls/enqueue` does the rest."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, overload

from penstock.calls.enqueue.jobs import calls_of
from penstock.pools.results import Completion

if TYPE_CHECKING:
    from penstock.api.callers import AsyncWaiter, SyncWaiter


class Completer:
    """Ends work by the token that ``ctx.work.complete_later()`` gave, in whichever pool it is."""

    @overload
    def complete(self, ctx: AsyncWaiter, token: str, result: Any = None) -> Coroutine[Any, Any, Completion]: ...
    @overload
    def complete(self, ctx: SyncWaiter, token: str, result: Any = None) -> Completion: ...
    def complete(self, ctx: Any, token: str, result: Any = None) -> Any:
        """End work with success; what counts, if it has ended before.

        Args:
            ctx: The ctx of an action, or the backend of a program.
            token: What ``complete_later`` gave.
            result: Its result; anything that JSON can say.

        Raises:
            TokenInvalid: There is no such token.
            TokenExpired: Its time is over, or its attempt has ended.
            LimitExceeded: The result is too large.
            ContextError: The ctx is one of a mutation or a query, whose transactions end no work.
        """
        calls = calls_of(ctx)
        return calls.answer(calls.complete(token, result))

    @overload
    def fail(
        self, ctx: AsyncWaiter, token: str, error: str, *, retryable: bool = True
    ) -> Coroutine[Any, Any, Completion]: ...
    @overload
    def fail(self, ctx: SyncWaiter, token: str, error: str, *, retryable: bool = True) -> Completion: ...
    def fail(self, ctx: Any, token: str, error: str, *, retryable: bool = True) -> Any:
        """End the attempt with failure: it is tried again if its retry policy says so.

        Args:
            ctx: As for `complete`.
            token: As for `complete`.
            error: What went wrong.
            retryable: Whether a further attempt makes sense.

        Raises:
            TokenInvalid: There is no such token.
            TokenExpired: Its time is over, or its attempt has ended.
            ValueInvalid: The error is no text.
        """
        calls = calls_of(ctx)
        return calls.answer(calls.fail(token, error, retryable=retryable))
