"""Rate limits that functions use: tokens are taken with the transaction, hold for each key, and come back with time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    ActionCtx,
    App,
    ContextError,
    DeclarationError,
    FixedWindow,
    LimitExceeded,
    MutationCtx,
    QueryCtx,
    RateStatus,
    TokenBucket,
    ValueInvalid,
)
from penstock.calls.run.syncctx import SyncMutationCtx
from penstock.testing import TestApp

MINUTE = timedelta(minutes=1)
app = OPENED = App()
logins = app.rate_limit("logins", TokenBucket(rate=2, period=MINUTE))
mails = app.rate_limit("mails", FixedWindow(rate=3, period=MINUTE))


@app.mutation
async def log_in(ctx: MutationCtx, user: str, fail: bool = False) -> bool:
    status = await ctx.rate_limit("logins", user)
    if fail:
        raise RuntimeError("never mind")
    return status.ok


@app.mutation
def log_in_in_a_thread(ctx: SyncMutationCtx, user: str) -> bool:
    return ctx.rate_limit("logins", key=user).ok


@app.action
async def mail(ctx: ActionCtx, count: int) -> timedelta:
    return (await ctx.rate_limit("mails", count=count, reserve=True)).retry_after


@app.query
async def left(ctx: QueryCtx, user: str) -> int:
    return await logins.peek(ctx, user)


@app.query
async def take_in_a_query(ctx: QueryCtx) -> Any:
    return await logins.take(ctx)  # type: ignore[call-overload]


@app.mutation
async def unknown(ctx: MutationCtx) -> None:
    await ctx.rate_limit("nothing")


async def test_tokens_hold_for_each_key_and_come_back(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        assert [await backend.run_mutation(log_in, "ada") for _ in range(3)] == [True, True, False]
        assert await backend.run_mutation(log_in_in_a_thread, "bob")
        assert (await backend.run_query(left, "ada"), await backend.run_query(left, "bob")) == (0, 1)
        backend.clock.advance(MINUTE / 2)
        assert [await backend.run_mutation(log_in, "ada") for _ in range(2)] == [True, False]
        refused = await logins.take(backend, "ada")
        assert refused == RateStatus(ok=False, retry_after=MINUTE / 2)
        backend.clock.advance(refused.retry_after)
        assert (await logins.take(backend, "ada")).ok


async def test_tokens_are_given_back_with_the_transaction(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        for _ in range(3):
            with pytest.raises(RuntimeError, match="never mind"):
                await backend.run_mutation(log_in, "ada", fail=True)
        assert await backend.run_query(left, "ada") == 2


async def test_tokens_are_reserved_ahead_and_forgotten(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        assert await backend.run_action(mail, 3) == timedelta(0)
        wait = await backend.run_action(mail, 2)
        assert timedelta(0) < wait <= MINUTE
        assert await mails.peek(backend) == -2
        await mails.reset(backend)
        assert await mails.peek(backend) == 3
        with pytest.raises(LimitExceeded):
            await mails.take(backend, count=4)


async def test_of_many_who_take_at_once_only_so_many_get_tokens(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        got = await asyncio.gather(*(backend.run_mutation(log_in, "ada") for _ in range(8)))
        assert sorted(got) == [False] * 6 + [True] * 2
        other = await asyncio.gather(*(backend.run_mutation(log_in, f"user {number}") for number in range(8)))
        assert all(other)


async def test_full_rate_limits_are_pruned(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        for number in range(5):
            await logins.take(backend, f"user {number}")
        prune = backend.engine.store.rates.prune
        assert await prune(backend.clock.now(), 100) == 0
        backend.clock.advance(MINUTE)
        assert await prune(backend.clock.now(), 3) == 3
        assert await prune(backend.clock.now(), 100) == 2
        assert await backend.run_query(left, "user 1") == 2


async def test_what_cannot_be_is_refused(database_url: str) -> None:
    with pytest.raises(DeclarationError, match="two rate limits"):
        app.rate_limit("logins", TokenBucket(1, MINUTE))
    with pytest.raises(DeclarationError, match="neither a TokenBucket"):
        app.rate_limit("new", 5)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="cannot be called"):
        app.rate_limit("pool:sms", TokenBucket(1, MINUTE))

    async with TestApp(app, database_url) as backend:
        with pytest.raises(ContextError, match="declares no rate limit 'nothing'"):
            await backend.run_mutation(unknown)
        with pytest.raises(ContextError, match="only reads"):
            await backend.run_query(take_in_a_query)
        for key in ("x" * 201, "\0", 5):
            with pytest.raises(ValueInvalid, match="key of a rate limit"):
                await logins.take(backend, key)  # type: ignore[arg-type]
        with pytest.raises(ValueInvalid, match="whole numbers"):
            await logins.take(backend, count=0)
