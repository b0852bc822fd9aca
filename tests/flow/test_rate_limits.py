"""Rate limits: so much work of a pool, and of each key, starts in a time, and functions take tokens of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from stage.stories import tell_in

from penstock import (
    ActionCtx,
    App,
    ContextError,
    DeclarationError,
    FixedWindow,
    LimitExceeded,
    MutationCtx,
    RateStatus,
    TokenBucket,
    ValueInvalid,
)
from penstock.calls.run.syncctx import SyncMutationCtx
from penstock.testing import TestApp

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
app = OPENED = App()
write, read, act = tell_in(app)
slow = app.workpool("slow", rate_limit=TokenBucket(rate=10, period=10 * SECOND, capacity=2))
windows = app.workpool("windows", key_rate_limit=FixedWindow(rate=2, period=60 * SECOND))

logins = app.rate_limit("logins", TokenBucket(rate=2, period=MINUTE))
mails = app.rate_limit("mails", FixedWindow(rate=3, period=MINUTE))
started: list[tuple[str, datetime]] = []
fail: list[Exception] = []


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    started.clear()
    fail.clear()


@app.internal_action
async def call(ctx: ActionCtx, who: str) -> None:
    started.append((who, ctx.now()))
    if fail:
        raise fail.pop()


def seconds() -> list[float]:
    """When each one started, since the first."""
    times = sorted(moment for _, moment in started)
    return [(moment - times[0]).total_seconds() for moment in times]


async def test_work_starts_no_faster_than_its_pool_may(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await slow.enqueue_batch(backend, call, [{"who": "x"}] * 6)
        await backend.run_until_idle()
        assert seconds() == [0, 0, 1, 2, 3, 4]


async def test_each_key_has_a_limit_of_its_own(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        for who, count in (("a", 5), ("b", 1)):
            work = windows.with_options(concurrency_key=who)
            await work.enqueue_batch(backend, call, [{"who": who}] * count)
        await windows.enqueue_batch(backend, call, [{"who": ""}] * 4)
        await backend.run_until_idle(advance=False)
        assert Counter(who for who, _ in started) == {"a": 2, "b": 1, "": 4}
        await backend.run_until_idle()
        assert Counter(who for who, _ in started) == {"a": 5, "b": 1, "": 4}
        assert started[-1][1] - started[0][1] >= 60 * SECOND


@app.mutation
def log_in_in_a_thread(ctx: SyncMutationCtx, user: str) -> bool:
    return ctx.rate_limit("logins", key=user).ok


async def test_functions_take_tokens_of_each_key_with_their_transaction(database_url: str) -> None:
    async def log_in(ctx: MutationCtx) -> bool:
        return (await ctx.rate_limit("logins", "ada")).ok

    async def log_in_and_fail(ctx: MutationCtx) -> None:
        await log_in(ctx)
        raise RuntimeError("never mind")

    async with TestApp(app, database_url) as backend:
        for _ in range(3):
            with pytest.raises(RuntimeError, match="never mind"):
                await backend.run_mutation(write, log_in_and_fail)
        assert [await backend.run_mutation(write, log_in) for _ in range(3)] == [True, True, False]
        assert await backend.run_mutation(log_in_in_a_thread, "bob")
        for user, left in (("ada", 0), ("bob", 1)):
            assert await backend.run_query(read, lambda ctx, user=user: logins.peek(ctx, user)) == left
        backend.clock.advance(MINUTE / 2)
        assert [await backend.run_mutation(write, log_in) for _ in range(2)] == [True, False]
        refused = await logins.take(backend, "ada")
        assert refused == RateStatus(ok=False, retry_after=MINUTE / 2)
        backend.clock.advance(refused.retry_after)
        assert (await logins.take(backend, "ada")).ok

        def reserve(count: int) -> Any:
            return backend.run_action(act, lambda ctx: ctx.rate_limit("mails", count=count, reserve=True))

        assert (await reserve(3)).retry_after == timedelta(0)
        assert timedelta(0) < (await reserve(2)).retry_after <= MINUTE
        assert await mails.peek(backend) == -2
        await mails.reset(backend)
        assert await mails.peek(backend) == 3
        with pytest.raises(LimitExceeded):
            await mails.take(backend, count=4)


async def test_what_cannot_be_is_refused(database_url: str) -> None:
    with pytest.raises(DeclarationError, match="two rate limits"):
        app.rate_limit("logins", TokenBucket(1, MINUTE))
    with pytest.raises(DeclarationError, match="neither a TokenBucket"):
        app.rate_limit("new", 5)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="cannot be called"):
        app.rate_limit("pool:sms", TokenBucket(1, MINUTE))

    async with TestApp(app, database_url) as backend:
        with pytest.raises(ContextError, match="declares no rate limit 'nothing'"):
            await backend.run_mutation(write, lambda ctx: ctx.rate_limit("nothing"))
        with pytest.raises(ContextError, match="only reads"):
            await backend.run_query(read, logins.take)
        for key in ("x" * 201, "\0", 5):
            with pytest.raises(ValueInvalid, match="key of a rate limit"):
                await logins.take(backend, key)  # type: ignore[arg-type]
        with pytest.raises(ValueInvalid, match="whole numbers"):
            await logins.take(backend, count=0)
