"""Rate limits as functions use them: take tokens in the transaction that needs them, or learn when there will be some.

Owns the words. Leaves the arithmetic to `pools/rates`, and what is left to the store.
"""

from __future__ import annotations

import re
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, overload

from penstock.calls.enqueue.jobs import JobCalls, calls_of
from penstock.errors import ContextError, DeclarationError, ValueInvalid
from penstock.pools.rates import FixedWindow, RateLimit, TokenBucket, peek, take
from penstock.store.contract.keys import RateRow
from penstock.store.contract.session import OpenTransaction
from penstock.transaction.transaction import Transaction

if TYPE_CHECKING:
    from penstock.calls.enqueue.callers import Program
    from penstock.calls.run.context import ActionCtx, MutationCtx, QueryCtx
    from penstock.calls.run.syncbackend import SyncWords
    from penstock.calls.run.syncctx import SyncActionCtx, SyncMutationCtx, SyncQueryCtx

_LONGEST_KEY = 200
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True, slots=True)
class RateStatus:
    """What became of an attempt to take tokens.

    Attributes:
        ok: Whether they were taken, or reserved.
        retry_after: If they were refused: after which time the same attempt succeeds, if nobody takes others meanwhile.
            If they were reserved: after which time what they are for may begin. Otherwise zero.
    """

    ok: bool
    retry_after: timedelta


class RateLimiter:
    """A rate limit under a name. Made with `App.rate_limit`.

    What is taken belongs to the transaction that takes it: if that is rolled back, nothing was taken. It holds over all
    processes on the database. The semantics are those of Convex's rate limiter.

    Attributes:
        name: What it is called.
        policy: How many tokens there are.
    """

    def __init__(self, name: str, policy: RateLimit) -> None:
        self.name = name
        self.policy = policy

    def __repr__(self) -> str:
        return f"<rate limit {self.name}>"

    @overload
    def take(
        self, ctx: MutationCtx | ActionCtx | Program, key: str = "", *, count: int = 1, reserve: bool = False
    ) -> Coroutine[Any, Any, RateStatus]: ...
    @overload
    def take(
        self, ctx: SyncMutationCtx | SyncActionCtx | SyncWords, key: str = "", *, count: int = 1, reserve: bool = False
    ) -> RateStatus: ...
    def take(self, ctx: Any, key: str = "", *, count: int = 1, reserve: bool = False) -> Any:
        """Take tokens, if there are enough.

        Args:
            ctx: The ctx of a mutation or an action, or a backend. An action takes them at once.
            key: Whose tokens: each key has its own, such as a user's id.
            count: How many.
            reserve: Take tokens that are still to come, for something that begins when they have come.

        Raises:
            LimitExceeded: So many never gather.
            ValueInvalid: The key is no text of up to 200 characters, or the count no whole number of at least 1.
            ContextError: The ctx is one of a query.
        """
        calls = calls_of(ctx, writes=True)
        return calls.answer(self._take(calls, _checked(key), count, reserve=reserve))

    @overload
    def peek(self, ctx: QueryCtx | ActionCtx | Program, key: str = "") -> Coroutine[Any, Any, int]: ...
    @overload
    def peek(self, ctx: SyncQueryCtx | SyncActionCtx | SyncWords, key: str = "") -> int: ...
    def peek(self, ctx: Any, key: str = "") -> Any:
        """How many tokens are left; below zero if some are reserved."""
        calls = calls_of(ctx)
        return calls.answer(self._peek(calls, _checked(key)))

    @overload
    def reset(self, ctx: MutationCtx | ActionCtx | Program, key: str = "") -> Coroutine[Any, Any, None]: ...
    @overload
    def reset(self, ctx: SyncMutationCtx | SyncActionCtx | SyncWords, key: str = "") -> None: ...
    def reset(self, ctx: Any, key: str = "") -> Any:
        """Forget what was taken."""
        calls = calls_of(ctx, writes=True)
        return calls.answer(self._reset(calls, _checked(key)))

    # ----- steps

    async def _take(self, calls: JobCalls, key: str, count: int, *, reserve: bool) -> RateStatus:
        async def attempt(transaction: Transaction) -> RateStatus:
            rates, now = transaction.store.rates, calls.now()
            state = await rates.hold(transaction, self.name, key, now)
            taken = take(self.policy, state, now, count, reserve=reserve)
            if taken.ok and taken.state is not None:
                await rates.keep(transaction, [RateRow(self.name, key, self.policy, taken.state)])
            return RateStatus(taken.ok, taken.retry_after)

        return await calls.write(attempt)

    async def _peek(self, calls: JobCalls, key: str) -> int:
        async def look(transaction: OpenTransaction) -> int:
            state = await calls.store.rates.peek(transaction, self.name, key)
            return peek(self.policy, state, calls.now())

        return await calls.read(look)

    async def _reset(self, calls: JobCalls, key: str) -> None:
        await calls.write(lambda transaction: transaction.store.rates.forget(transaction, self.name, key))


class RateLimiters:
    """The rate limits of an app, by name."""

    def __init__(self) -> None:
        self._known: dict[str, RateLimiter] = {}

    def add(self, name: object, policy: object) -> RateLimiter:
        """Add one.

        Raises:
            DeclarationError: There is one of this name already, or the name or the policy cannot be.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise DeclarationError(
                f"A rate limit cannot be called {name!r}.",
                fix="Use letters, digits, dot, dash and underscore, at most 63.",
            )
        if name in self._known:
            raise DeclarationError(f"There are two rate limits called {name!r}.", fix="Give one of them another name.")
        if not isinstance(policy, TokenBucket | FixedWindow):
            raise DeclarationError(
                f"Rate limit {name}: {policy!r} is neither a TokenBucket nor a FixedWindow.",
                fix="Write TokenBucket(rate=100, period=timedelta(minutes=1)).",
            )
        self._known[name] = RateLimiter(name, policy)
        return self._known[name]

    def get(self, name: str) -> RateLimiter:
        """The one of this name.

        Raises:
            ContextError: There is none.
        """
        found = self._known.get(name)
        if found is None:
            raise ContextError(f"The app declares no rate limit {name!r}.", fix=f"Write app.rate_limit({name!r}, …).")
        return found


def _checked(key: object) -> str:
    if not isinstance(key, str) or len(key) > _LONGEST_KEY or "\0" in key:
        raise ValueInvalid(f"The key of a rate limit is a text of up to {_LONGEST_KEY} characters, not {key!r}.")
    return key
