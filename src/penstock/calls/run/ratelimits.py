"""Rate limits as functions use them: take tokens in the transaction that needs them, or learn when there will be some.

Leaves the arithmetic to `pools/rates`, and the token counts to the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from hashlib import blake2b
from ipaddress import IPv6Address, ip_network

from penstock.calls.enqueue.jobs import JobCalls
from penstock.dataclass import dataclass
from penstock.errors import ContextError, ValueInvalid
from penstock.identity.caller import Caller, address_of
from penstock.pools.rates import RateLimit, take
from penstock.store.nouns.rates import RateRow
from penstock.transaction.transaction import Transaction

_LONGEST_KEY = 200


@dataclass(frozen=True, slots=True)
class RateStatus:
    """The outcome of an attempt to take tokens.

    Attributes:
        ok: Whether they were taken, or reserved.
        retry_after: If they were refused: the wait after which the same attempt succeeds, if nobody takes others.
            If they were reserved: the time after which the work may begin. Otherwise zero.
    """

    ok: bool
    retry_after: timedelta


async def take_tokens(
    calls: JobCalls, name: str, policy: RateLimit, key: object, count: int, *, reserve: bool
) -> RateStatus:
    """Take tokens of a rate limit; see `RateLimiter.take`."""
    of = check_key(key)

    async def attempt(transaction: Transaction) -> RateStatus:
        rates, now = transaction.store.rates, calls.now()
        state = await rates.hold(transaction, name, of, now)
        taken = take(policy, state, now, count, reserve=reserve)
        if taken.ok and taken.state is not None:
            await rates.keep(transaction, [RateRow(name, of, policy, taken.state)])
        return RateStatus(taken.ok, taken.retry_after)

    return await calls.write(attempt)


def key_of(caller: Caller) -> str:
    """The key of a rate limit under which the calls of a caller count: the user, or else the address."""
    if caller.identity is not None:
        key = f"user {caller.identity.token_identifier}"
    else:
        key = f"address {_network(caller.address)}"
    return key if len(key) <= _LONGEST_KEY and "\0" not in key else blake2b(key.encode()).hexdigest()


def _network(text: str) -> str:
    """An address; of version 6 the network, as each subscriber has a whole one."""
    found = address_of(text)
    return str(ip_network((found, 64), strict=False) if isinstance(found, IPv6Address) else found or text)


def policy_of(policies: Mapping[str, RateLimit], name: str) -> RateLimit:
    """The policy of a declared rate limit; `ContextError` if there is none of this name."""
    found = policies.get(name)
    if found is None:
        raise ContextError(f"The app declares no rate limit {name!r}.", fix=f"Write app.rate_limit({name!r}, …).")
    return found


def check_key(key: object) -> str:
    """A key of a rate limit. Raises `ValueInvalid`."""
    if not isinstance(key, str) or len(key) > _LONGEST_KEY or "\0" in key:
        raise ValueInvalid(f"The key of a rate limit is a text of up to {_LONGEST_KEY} characters, not {key!r}.")
    return key
