"""Rate limits as programs declare and use them."""

from __future__ import annotations

from penstock.api.callers import for_ctx_readers, for_functions
from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.run.ratelimits import RateStatus, check_key, take_tokens
from penstock.errors import DeclarationError
from penstock.functions.programs import check_name
from penstock.pools.rates import FixedWindow, RateLimit, TokenBucket, peek


class RateLimiter:
    """A rate limit under a name. Made with `App.rate_limit`.

    Taking tokens is part of the transaction: a rollback gives them back. The limit holds over all
    processes on the database. The semantics are those of Convex's rate limiter.

    Attributes:
        name: Its name.
        policy: Its `TokenBucket` or `FixedWindow`.
    """

    def __init__(self, name: str, policy: RateLimit) -> None:
        self.name = name
        self.policy = policy

    def __repr__(self) -> str:
        return f"<rate limit {self.name}>"

    @for_functions
    async def take(self, calls: JobCalls, key: str = "", *, count: int = 1, reserve: bool = False) -> RateStatus:
        """Take tokens, if there are enough. An action, and a program with its backend, takes them at once.

        Args:
            key: Each key has tokens of its own; for example a user's id.
            count: The number of tokens.
            reserve: Take tokens of the future too. Begin the work after `RateStatus.retry_after`, when they have come.

        Raises:
            LimitExceeded: So many never gather.
            ValueInvalid: The key is no text of up to 200 characters, or the count no whole number of at least 1.
            ContextError: The ctx is one of a query.
        """
        return await take_tokens(calls, calls.name(self.name), self.policy, key, count, reserve=reserve)

    @for_ctx_readers
    async def peek(self, calls: JobCalls, key: str = "") -> int:
        """How many tokens are left; below zero if some are reserved."""
        of = check_key(key)
        state = await calls.read(lambda transaction: calls.store.rates.peek(transaction, calls.name(self.name), of))
        return peek(self.policy, state, calls.now())

    @for_functions
    async def reset(self, calls: JobCalls, key: str = "") -> None:
        """Give all tokens of a key back."""
        of = check_key(key)
        await calls.write(lambda transaction: transaction.store.rates.forget(transaction, calls.name(self.name), of))


def check_rate_limit(name: object, policy: object) -> None:
    """Refuse a name or a policy that cannot be one of a rate limit; `DeclarationError`."""
    check_name("A rate limit", name)
    if not isinstance(policy, TokenBucket | FixedWindow):
        raise DeclarationError(
            f"Rate limit {name}: {policy!r} is neither a TokenBucket nor a FixedWindow.",
            fix="Write TokenBucket(rate=100, period=timedelta(minutes=1)).",
        )
