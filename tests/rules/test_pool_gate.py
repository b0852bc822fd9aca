"""Which jobs pass the gate of a pool: in fair turns of their keys, and never more than parallelism and rates allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from penstock.pools.gate import Gate, WaitingKey, passage, recount
from penstock.pools.rates import FixedWindow, RateLimit, RateState, TokenBucket, open_at, peek, take

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
FEW = st.integers(0, 12)
POLICIES = st.one_of(
    st.none(),
    st.builds(TokenBucket, rate=st.integers(1, 9), period=st.just(SECOND), capacity=st.integers(1, 9)),
    st.builds(FixedWindow, rate=st.integers(1, 9), period=st.just(SECOND)),
)


@st.composite
def lines(draw: st.DrawFn) -> tuple[Gate, list[WaitingKey]]:
    gate = Gate(draw(st.none() | st.integers(1, 6)), draw(POLICIES), draw(POLICIES))
    keys = draw(st.lists(st.sampled_from(["", *"abcdefgh"]), unique=True, max_size=6))
    turns = [WaitingKey(key, draw(FEW), draw(FEW), used(gate.key_rate_limit, draw(FEW))) for key in keys]
    turns = [replace(turn, begun=draw(st.integers(0, turn.waiting)) // draw(st.integers(1, 12))) for turn in turns]
    return replace(gate, rate=used(gate.rate_limit, draw(FEW))), turns


def used(policy: RateLimit | None, count: int) -> RateState | None:
    """What is left when up to so many tokens were taken."""
    state = None
    for _ in range(count if policy else 0):
        assert policy is not None
        state = take(policy, state, NOW).state
    return state


def first(turns: list[WaitingKey], counts: Mapping[str, int]) -> int:
    """How many start for the first time, and so need tokens."""
    return sum(max(0, counts.get(turn.key, 0) - turn.begun) for turn in turns)


@given(lines(), st.integers(0, 20))
def test_never_more_than_there_is_room_for_nor_than_limits_allow(
    line: tuple[Gate, list[WaitingKey]], room: int
) -> None:
    gate, turns = line
    found = passage(gate, turns, room, NOW)
    assert sum(found.counts.values()) <= room
    if gate.rate_limit is not None:
        assert first(turns, found.counts) <= peek(gate.rate_limit, gate.rate, NOW)
    for turn in turns:
        count = found.counts.get(turn.key, 0)
        assert count <= turn.waiting
        if turn.key and count and gate.key_parallelism is not None:
            assert count + turn.running <= gate.key_parallelism
        if turn.key and gate.key_rate_limit is not None:
            assert count - turn.begun <= max(0, peek(gate.key_rate_limit, turn.rate, NOW))
    assert found.last is None or found.last in found.counts


@given(lines(), st.integers(0, 20))
def test_nothing_is_held_back_that_may_start(line: tuple[Gate, list[WaitingKey]], room: int) -> None:
    gate, turns = line
    found = passage(gate, turns, room, NOW)
    left = room - sum(found.counts.values())
    tokens = left
    if gate.rate_limit is not None:
        tokens = peek(gate.rate_limit, gate.rate, NOW) - first(turns, found.counts)
    for turn in turns if left > 0 else ():
        count = found.counts.get(turn.key, 0)
        assert (
            count == turn.waiting
            or (tokens <= 0 and count >= turn.begun)
            or (turn.key and gate.key_parallelism is not None and turn.running + count >= gate.key_parallelism)
            or (
                turn.key
                and gate.key_rate_limit is not None
                and max(0, peek(gate.key_rate_limit, turn.rate, NOW)) <= count - turn.begun
            )
        )


@given(lines(), st.integers(0, 20))
def test_what_passes_has_paid(line: tuple[Gate, list[WaitingKey]], room: int) -> None:
    gate, turns = line
    found = passage(gate, turns, room, NOW)
    total = first(turns, found.counts)
    if gate.rate_limit is not None and total:
        assert peek(gate.rate_limit, found.rates[""], NOW) == peek(gate.rate_limit, gate.rate, NOW) - total
    for turn in turns:
        if turn.key and gate.key_rate_limit is not None and turn.key in found.counts:
            before, paid = peek(gate.key_rate_limit, turn.rate, NOW), first([turn], found.counts)
            assert peek(gate.key_rate_limit, found.rates.get(turn.key, turn.rate), NOW) == before - paid
    fewer = {key: count - 1 for key, count in found.counts.items() if count > 1}
    less = recount(gate, turns, found, fewer, NOW)
    assert less.counts == fewer
    if gate.rate_limit is not None and first(turns, fewer):
        left = peek(gate.rate_limit, gate.rate, NOW) - first(turns, fewer)
        assert peek(gate.rate_limit, less.rates[""], NOW) == left, "what did not start has not paid"


@given(st.lists(FEW, min_size=1, max_size=8), st.integers(0, 40))
def test_keys_with_enough_jobs_run_alike(running: list[int], room: int) -> None:
    """Beside those that ran more before, the shares differ by at most one."""
    turns = [WaitingKey(f"k{number}", 1000, count) for number, count in enumerate(running)]
    found = passage(Gate(), turns, room, NOW)
    assert sum(found.counts.values()) == room
    now = {turn.key: turn.running + found.counts.get(turn.key, 0) for turn in turns}
    fewest = min(now.values())
    assert all(now[key] <= fewest + 1 for key in found.counts)


def test_keys_rotate_when_there_is_room_for_one() -> None:
    keys, last, order = ["a", "b", "c", "d"], "", []
    for _ in range(8):
        line = [key for key in keys if key > last] + [key for key in keys if key <= last]
        found = passage(Gate(), [WaitingKey(key, 1000) for key in line], 1, NOW)
        assert found.last is not None
        last = found.last
        order.append(last)
    assert order == keys * 2


@given(lines(), st.integers(1, 20))
def test_who_waits_for_a_rate_limit_knows_how_long(line: tuple[Gate, list[WaitingKey]], room: int) -> None:
    gate, turns = line
    gate = replace(gate, key_parallelism=None, key_rate_limit=None)
    found = passage(gate, turns, room, NOW)
    waiting = sum(turn.waiting - turn.begun for turn in turns) - first(turns, found.counts)
    if gate.rate_limit is None or not waiting:
        assert found.again is None
    elif found.again is not None:
        rate = found.rates.get("", gate.rate)
        turns = [WaitingKey(turn.key, turn.waiting - turn.begun - first([turn], found.counts)) for turn in turns]
        later = replace(gate, rate=rate)
        assert passage(later, turns, room, NOW + found.again).counts
        assert not passage(later, turns, room, NOW + found.again - timedelta.resolution).counts


def test_keys_that_are_left_out_for_want_of_tokens_are_waited_for() -> None:
    policy = TokenBucket(1, SECOND)
    gate = Gate(key_rate_limit=policy, opens_at=NOW + SECOND)
    assert passage(gate, [], 5, NOW).again == SECOND
    assert passage(replace(gate, opens_at=NOW - SECOND), [], 5, NOW).again == timedelta(0)


@given(POLICIES, FEW)
def test_a_rate_limit_says_when_it_opens(policy: RateLimit | None, count: int) -> None:
    if policy is None or (state := used(policy, count)) is None:
        return
    opens = open_at(policy, state)
    assert take(policy, state, max(opens, NOW)).ok
    assert opens <= NOW or not take(policy, state, opens - timedelta.resolution).ok
