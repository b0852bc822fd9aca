"""What a store promises of rate limits: what is kept is found, and nobody takes what another one is about to take."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from conformance.bench import NOW, Bench, Suite, after, patiently, story
from penstock.pools.rates import RateState, TokenBucket, take
from penstock.store.nouns.rates import RateRow
from penstock.store.session import Session
from penstock.store.store import Store

POLICY = TokenBucket(rate=10, period=timedelta(seconds=10))


class Rates(Suite):
    """`store.nouns.Rates`."""

    @story
    async def test_what_is_left_is_kept_for_each_name_and_key(self, bench: Bench) -> None:
        rates, state = bench.store.rates, RateState(-9_000_000_000, 1_000_000_000, after(1.5))
        await keep(bench, "one", "a", state)
        assert [await peek(bench, *of) for of in (("one", "a"), ("one", "b"), ("two", "a"))] == [state, None, None]
        await keep(bench, "one", "a", RateState(5, 7, NOW))
        assert await peek(bench, "one", "a") == RateState(5, 7, NOW)
        rows = [RateRow("n", f"k{number}", POLICY, RateState(number, 1, NOW)) for number in range(50)]
        await bench.writing(lambda session: rates.keep(session, rows))
        assert [await peek(bench, row.name, row.key) for row in rows] == [row.state for row in rows]
        await bench.writing(lambda session: rates.keep(session, []))
        for key in ("a", "never"):
            await bench.writing(lambda session, key=key: rates.forget(session, "one", key))  # type: ignore[misc]
        assert await peek(bench, "one", "a") is None
        session = await bench.store.begin_write()
        await rates.hold(session, "one", "a", NOW)
        await rates.keep(session, [RateRow("one", "a", POLICY, RateState(1, 1, NOW))])
        await session.rollback()
        assert await peek(bench, "one", "a") is None, "what is undone was not taken"

    @story
    async def test_what_is_only_held_is_as_if_nothing_was_taken(self, bench: Bench) -> None:
        for _ in range(2):
            assert await bench.writing(lambda session: bench.store.rates.hold(session, "one", "a", NOW)) is None
            assert await peek(bench, "one", "a") is None
        await keep(bench, "one", "a", RateState(3, 1, NOW))
        held = await bench.writing(lambda session: bench.store.rates.hold(session, "one", "a", after(9)))
        assert held == RateState(3, 1, NOW)

    @story
    async def test_of_many_who_take_at_once_none_takes_what_another_took(self, bench: Bench) -> None:
        stores = [bench.store, await bench.another(), await bench.another()]
        taken = 0

        async def try_to_take(store: Store) -> None:
            nonlocal taken
            for _ in range(6):
                ok = False

                async def attempt(session: Session) -> None:
                    nonlocal ok
                    state = await store.rates.hold(session, "one", "", NOW)
                    found = take(POLICY, state, NOW)
                    ok = found.ok
                    if found.ok and found.state is not None:
                        await store.rates.keep(session, [RateRow("one", "", POLICY, found.state)])

                await patiently(lambda attempt=attempt: bench.writing(attempt, store))  # type: ignore[misc]
                taken += ok

        await asyncio.gather(*(try_to_take(store) for store in stores))
        assert taken == 10

    @story
    async def test_those_that_are_full_again_are_forgotten(self, bench: Bench) -> None:
        for number in range(5):
            await keep(bench, "one", f"k{number}", _one_taken(after(number)))
        assert await bench.store.rates.prune(after(0.9), 10) == 0
        assert await bench.store.rates.prune(after(4), 2) == 2
        assert await bench.store.rates.prune(after(4), 10) == 2
        assert [await peek(bench, "one", f"k{number}") is None for number in range(5)] == [True] * 4 + [False]


def _one_taken(now: datetime) -> RateState:
    state = take(POLICY, None, now).state
    assert state is not None
    return state


async def keep(bench: Bench, name: str, key: str, state: RateState) -> None:
    """Keep what is left of a rate limit."""
    row = RateRow(name, key, POLICY, state)
    await bench.writing(lambda session: bench.store.rates.keep(session, [row]))


async def peek(bench: Bench, name: str, key: str) -> RateState | None:
    """What is left of a rate limit."""
    return await bench.reading(lambda session: bench.store.rates.peek(session, name, key))
