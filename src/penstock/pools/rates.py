"""Rate limits: how many tokens may be taken, and when there will be enough of them.

Owns the two policies and the arithmetic of token counts. Leaves storing them in a table, under a name and a key, to
others. The policies and their words are those of Convex's rate limiter, on whole numbers instead of floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import gcd
from typing import NoReturn

from penstock.crons.schedule import in_utc
from penstock.errors import DeclarationError, LimitExceeded, ValueInvalid
from penstock.values import EPOCH

_TICK = timedelta.resolution
_UNITS = {
    "day": timedelta(days=1),
    "h": timedelta(hours=1),
    "min": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_LONGEST = timedelta(days=36525)
_LARGEST = 2**63 - 1  # the largest integer in a column of either database


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """Tokens that come evenly, and gather up to a capacity: a steady rate that allows for bursts.

    In no stretch of time of length W are more than ``capacity + rate · W / period`` tokens given.

    Args:
        rate: Tokens that come in each period, at least 1.
        period: The length of time in which they come.
        capacity: Tokens that can gather, at least 1; it starts with as many. By default as many as come in a period.
        max_reserved: Tokens that can be reserved ahead; by default as many as can gather. Convex has no limit here if
            none is given.

    Raises:
        DeclarationError: A number is out of its bounds, or they are too large together.
    """

    rate: int
    period: timedelta
    capacity: int | None = None
    max_reserved: int | None = None

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True)
class FixedWindow:
    """Tokens that come all at once, with each window of time; unused ones are carried over, up to a capacity.

    In n windows on end no more than ``capacity + (n - 1) · rate`` tokens are given: ``rate`` in each, if nothing is
    carried over.

    Args:
        rate: Tokens that come with each window, at least 1.
        period: The length of a window.
        capacity: Tokens that can gather, at least as many as come with a window; it starts with as many. By default no
            more than that, so that nothing is carried over.
        max_reserved: Tokens that can be reserved ahead; by default as many as can gather. Convex has no limit here if
            none is given.
        start: When a window starts, aware; all others follow on it, before and after. By default the beginning of 1970
            in UTC, so that windows of a day are days of UTC. Convex takes a random one.

    Raises:
        DeclarationError: A number is out of its bounds, they are too large together, or the start has no time zone.
    """

    rate: int
    period: timedelta
    capacity: int | None = None
    max_reserved: int | None = None
    start: datetime = EPOCH

    def __post_init__(self) -> None:
        start: object = self.start
        if not isinstance(start, datetime) or start.tzinfo is None:
            fix = "Write datetime(2030, 1, 1, tzinfo=UTC)."
            _refuse(self, f"start must be a datetime with a time zone, not {start!r}", fix)
        _check(self)
        if capacity(self) < self.rate:
            fix = f"Write rate={self.capacity}, or leave out capacity."
            _refuse(self, f"a capacity of {self.capacity} cannot hold the {self.rate} tokens of one window", fix)


RateLimit = TokenBucket | FixedWindow


@dataclass(frozen=True, slots=True)
class RateState:
    """The token count of a rate limit, as stored; None stands for one that nobody has taken from yet."""

    value: int  # parts of tokens that are left; below zero if more are reserved
    parts: int  # how many parts a token has: as many as are needed for a whole number of them to come in a microsecond
    moment: datetime  # the latest time seen, for which the value holds; in UTC


@dataclass(frozen=True, slots=True)
class Taken:
    """The outcome of an attempt to take tokens."""

    ok: bool  # whether they were taken or reserved
    state: RateState | None  # the state to store; if they were not taken, the state before
    # zero for tokens that were taken. For tokens that were reserved, the time after which the work may begin. For
    # tokens that were refused, the time after which the same attempt succeeds, and no sooner, if nobody takes others
    # meanwhile
    retry_after: timedelta


def take(policy: RateLimit, state: RateState | None, now: datetime, count: int = 1, *, reserve: bool = False) -> Taken:
    """Take tokens, if there are enough; `reserve` takes some that are still to come.

    The clock that is furthest ahead counts: one behind it gets tokens that are left, and brings none.
    """
    _check_count(policy, count)
    before, step = _refill(policy, state, in_utc(now)), _step(policy)
    full, needed = capacity(policy) * before.parts, count * before.parts
    lowest = -max_reserved(policy) * before.parts if reserve else 0
    # A reservation counts when it may begin: tokens above the capacity until then are lost, as always.
    coming = _divide_up(max(needed - before.value, 0), step) * step
    left = min(before.value + coming, full) - needed - coming
    if left >= lowest:
        after = RateState(left, before.parts, before.moment)
        return Taken(ok=True, state=after, retry_after=_wait(policy, before, now, coming))
    enough = max(needed + lowest, needed - (full - needed - lowest) // step * step)
    return Taken(ok=False, state=state, retry_after=_wait(policy, before, now, enough - before.value))


def peek(policy: RateLimit, state: RateState | None, now: datetime) -> int:
    """Whole tokens that are left; below zero if more are reserved."""
    settled = _refill(policy, state, in_utc(now))
    return settled.value // settled.parts


def full_at(policy: RateLimit, state: RateState) -> datetime:
    """When the bucket is full if nobody takes any: then the state says nothing any more."""
    missing = capacity(policy) * state.parts - state.value
    return state.moment + _wait(policy, state, state.moment, missing)


def open_at(policy: RateLimit, state: RateState) -> datetime:
    """When a token can be taken, if nobody takes any before."""
    return state.moment + _wait(policy, state, state.moment, state.parts - state.value)


def capacity(policy: RateLimit) -> int:
    return policy.rate if policy.capacity is None else policy.capacity


def max_reserved(policy: RateLimit) -> int:
    return capacity(policy) if policy.max_reserved is None else policy.max_reserved


def rate_words(policy: RateLimit | None) -> str:
    """A rate limit in few words: ``600 per min, burst 20``, or ``1,000 in each day``."""
    if policy is None:
        return "-"
    if isinstance(policy, TokenBucket):
        return f"{policy.rate:,} per {_period_words(policy.period)}, burst {capacity(policy):,}"
    kept = "" if capacity(policy) == policy.rate else f", up to {capacity(policy):,}"
    return f"{policy.rate:,} in each {_period_words(policy.period)}{kept}"


def _period_words(period: timedelta) -> str:
    for word, unit in _UNITS.items():
        if not period % unit:
            number = period // unit
            return word if number == 1 else f"{number:,} {word}{'s' * (word == 'day')}"
    return f"{period.total_seconds():g} s"


def _refill(policy: RateLimit, state: RateState | None, now: datetime) -> RateState:
    """The token count now, or at the latest time seen if that is later."""
    parts, full = _parts(policy), capacity(policy) * _parts(policy)
    if state is None:
        return RateState(full, parts, now)
    moment = max(state.moment, now)
    # A policy that was declared again may divide tokens otherwise, and allow fewer to be reserved. Less than a part is
    # lost, and a debt beyond that is forgiven, or a slow policy would be closed for centuries.
    value = max(state.value * parts // state.parts, -max_reserved(policy) * parts)
    return RateState(min(value + _come(policy, state.moment, moment), full), parts, moment)


def _come(policy: RateLimit, start: datetime, end: datetime) -> int:
    """Parts of tokens that come in ``(start, end]``."""
    if isinstance(policy, TokenBucket):
        return (end - start) // _TICK * _step(policy)
    return (_window(policy, end) - _window(policy, start)) * _step(policy)


def _wait(policy: RateLimit, settled: RateState, now: datetime, missing: int) -> timedelta:
    if missing <= 0:
        return timedelta(0)
    steps = _divide_up(missing, _step(policy))
    if isinstance(policy, TokenBucket):
        return settled.moment + steps * _TICK - now
    return policy.start.astimezone(UTC) + (_window(policy, settled.moment) + steps) * policy.period - now


def _divide_up(number: int, by: int) -> int:
    return -(-number // by)


def _window(policy: FixedWindow, moment: datetime) -> int:
    return (moment - policy.start) // policy.period


def _parts(policy: RateLimit) -> int:
    """Parts of a token, so that whole numbers of them come in a microsecond; with windows, tokens are whole."""
    if isinstance(policy, FixedWindow):
        return 1
    ticks = policy.period // _TICK
    return ticks // gcd(policy.rate, ticks)


def _step(policy: RateLimit) -> int:
    """How many parts come at once: in a microsecond, or with a window."""
    return policy.rate if isinstance(policy, FixedWindow) else policy.rate // gcd(policy.rate, policy.period // _TICK)


def _check_count(policy: RateLimit, count: object) -> None:
    if type(count) is not int or count < 1:
        raise ValueInvalid(f"Tokens are taken in whole numbers of at least 1, not {count!r}.", fix="Write count=1.")
    most = capacity(policy)
    if count > most:
        raise LimitExceeded(
            f"{count} tokens are more than the capacity of {most}, so waiting would not help.",
            fix="Take them in parts, or declare a greater capacity.",
            limit=most,
        )


def _check(policy: RateLimit) -> None:
    wants: tuple[tuple[str, object, int], ...] = (
        ("rate", policy.rate, 1),
        ("capacity", capacity(policy), 1),
        ("max_reserved", max_reserved(policy), 0),
    )
    for what, given, least in wants:
        if type(given) is not int or given < least:
            _refuse(policy, f"{what} must be a whole number of at least {least}, not {given!r}")
    period: object = policy.period
    if not isinstance(period, timedelta) or period <= timedelta(0):
        _refuse(policy, f"period must be a timedelta above zero, not {period!r}", "Write timedelta(minutes=1).")
    most = capacity(policy) + max_reserved(policy)
    if most * (period // _TICK) > policy.rate * (_LONGEST // _TICK):
        problem = f"{most} tokens, capacity and reservations together, take more than a hundred years to refill"
        _refuse(policy, problem, "Declare a lower capacity and max_reserved, or a higher rate.")
    if most * _parts(policy) > _LARGEST:
        fix = "Choose a rate that divides the period, such as 1000 a second, or a shorter period."
        _refuse(policy, "this rate and period need more precision than the databases have", fix)


def _refuse(policy: RateLimit, why: str, fix: str = "") -> NoReturn:
    raise DeclarationError(f"{type(policy).__name__}: {why}.", fix=fix)
