"""Decides which jobs pass the gate of a pool: fair turns for concurrency keys, as limits and rates allow.

Owns the decision. Leaves holding the gate, so that one worker at a time decides, and starting the jobs to the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush

from penstock.dataclass import dataclass
from penstock.pools.rates import RateLimit, RateState, peek, take


@dataclass(frozen=True, slots=True)
class Gate:
    key_parallelism: int | None = None  # how many jobs of one concurrency key run at once; None for any number
    rate_limit: RateLimit | None = None  # how many jobs of the pool start in a time; None for any number
    key_rate_limit: RateLimit | None = None  # how many of one concurrency key do
    rate: RateState | None = None  # the token count of the pool's rate limit
    # when the next key may start a job that waits for tokens only, and has no turn therefore
    opens_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class WaitingKey:
    """A concurrency key whose jobs wait at a gate. The empty key of jobs without one has no limit of its own."""

    key: str
    waiting: int  # how many of its jobs wait; counted no further than there is room
    running: int = 0  # how many run
    rate: RateState | None = None  # the token count of its own rate limit
    begun: int = 0  # how many are runs of workflows that have begun: they come first, and need no token


@dataclass(slots=True)
class Passage:
    """The jobs that pass a gate, by key."""

    counts: dict[str, int] = field(default_factory=dict)  # how many jobs of each key, in the order of their first turns
    last: str | None = None  # the key that had the last turn; None if none had one
    # the token counts of rate limits that gave tokens; that of the pool has an empty key
    rates: dict[str, RateState] = field(default_factory=dict)
    again: timedelta | None = None  # after which time more may pass, if a rate limit is in the way


def passage(gate: Gate, turns: Sequence[WaitingKey], room: int, now: datetime) -> Passage:
    """The jobs that pass a gate, fairly over all keys. `turns` begin after the key that passed last.

    The key that runs the fewest jobs comes first; ties go to the key that got the fewest places now, then to the next.
    """
    found = Passage()
    allowed = {turn.key: _allowance(gate, turn, now) for turn in turns}
    begun, left = {turn.key: turn.begun for turn in turns}, room
    tokens = room if gate.rate_limit is None else max(0, peek(gate.rate_limit, gate.rate, now))
    line = [(turn.running, place, turn.key) for place, turn in enumerate(turns) if allowed[turn.key] > 0]
    heapify(line)
    while left and line:
        running, place, key = heappop(line)
        if found.counts.get(key, 0) >= begun[key]:
            if not tokens:
                continue
            tokens -= 1
        found.counts[key] = found.counts.get(key, 0) + 1
        found.last = key
        left -= 1
        if found.counts[key] < allowed[key]:
            heappush(line, (running + 1, place + len(turns), key))
    _take(gate, turns, found, now)
    return found


def recount(
    gate: Gate, turns: Sequence[WaitingKey], found: Passage, started: Mapping[str, int], now: datetime
) -> Passage:
    """The passage if fewer jobs have started than could: some that wait may be held, or canceled."""
    if found.counts == started:
        return found
    less = Passage(dict(started), found.last)
    _take(gate, turns, less, now)
    return less


def _allowance(gate: Gate, turn: WaitingKey, now: datetime) -> int:
    if not turn.key:
        return turn.waiting
    number = turn.waiting
    if gate.key_parallelism is not None:
        number = min(number, gate.key_parallelism - turn.running)
    if gate.key_rate_limit is not None:
        number = min(number, turn.begun + max(0, peek(gate.key_rate_limit, turn.rate, now)))
    return max(0, number)


def _take(gate: Gate, turns: Sequence[WaitingKey], found: Passage, now: datetime) -> None:
    """Take the tokens of the jobs that pass, and compute when there will be more."""
    if gate.opens_at is not None:
        found.again = max(gate.opens_at - now, timedelta(0))
    if gate.rate_limit is not None:
        waiting = sum(turn.waiting - turn.begun for turn in turns)
        _take_from(found, gate.rate_limit, "", gate.rate, sum(_first(found, turn) for turn in turns), waiting, now)
    if gate.key_rate_limit is not None:
        for turn in turns:
            if turn.key:
                count, waiting = _first(found, turn), turn.waiting - turn.begun
                _take_from(found, gate.key_rate_limit, turn.key, turn.rate, count, waiting, now)


def _first(found: Passage, turn: WaitingKey) -> int:
    """How many jobs of a key start for the first time."""
    return max(0, found.counts.get(turn.key, 0) - turn.begun)


def _take_from(
    found: Passage, policy: RateLimit, key: str, rate: RateState | None, count: int, waiting: int, now: datetime
) -> None:
    if count:
        rate = take(policy, rate, now, count).state
        if rate is not None:
            found.rates[key] = rate
    if count < waiting:
        after = take(policy, rate, now).retry_after
        if after and (found.again is None or after < found.again):
            found.again = after
