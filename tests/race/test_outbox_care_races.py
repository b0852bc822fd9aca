"""Whoever looks after outboxes does so beside relays: one that knows an outbox as it was writes nothing any more."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from stage.faults import held

from penstock import ActionCtx, App, Index, Message, MutationCtx, QueryCtx, Table
from penstock.testing import TestApp

ROUNDS = 6

app = OPENED = App()
ids: list[str] = []


class Crate(Table, name="crate_of_outbox"):
    number: int


class Sum(Table, name="sum_of_outbox"):
    number: int
    seen: int = 1

    by_number = Index("number", unique=True)


@app.outbox(Crate, name="send", start="end")
async def send(ctx: ActionCtx, message: Message[Crate]) -> None:
    ids.append(message.id)


async def clear(ctx: MutationCtx) -> None:
    async for one in ctx.db.query(Sum):
        await ctx.db.delete(Sum, one.id)


@app.outbox(Crate, name="count", reset=clear)
async def count(ctx: MutationCtx, crate: Crate) -> None:
    known = await ctx.db.query(Sum).with_index(Sum.by_number, number=crate.number).first()
    if known is None:
        await ctx.db.insert(Sum(number=crate.number))
    else:
        await ctx.db.patch(Sum, known.id, seen=known.seen + 1)


@app.internal_mutation
async def put(ctx: MutationCtx, first: int, rows: int) -> None:
    for number in range(first, first + rows):
        await ctx.db.insert(Crate(number=number))


@app.internal_query
async def sums(ctx: QueryCtx) -> dict[str, int]:
    return {str(one.number): one.seen async for one in ctx.db.query(Sum)}


def of(name: str) -> Any:
    return lambda outbox, **_facts: outbox == name


async def status(test: TestApp, name: str) -> Any:
    return next(one for one in await app.outboxes.list(test) if one.name == name)


async def hand_over(test: TestApp) -> None:
    test.clock.advance(timedelta(seconds=2))
    await test.relay.drain()


async def test_what_a_relay_was_handing_over_counts_as_whoever_changed_the_outbox_meanwhile_said(
    database_url: str,
) -> None:
    ids.clear()
    outboxes = app.outboxes
    async with TestApp(app, database_url) as test:

        async def meanwhile(point: str, name: str, number: int, verb: Any, *args: Any) -> dict[str, int]:
            """Write a row, and do something with the outbox while a relay is at it; what is counted then."""
            await test.run_mutation(put, number, 1)
            async with held(point, test.relay.drain(), when=of(name)):
                await verb(test, name, *args)
            await hand_over(test)
            found: dict[str, int] = await test.run_query(sums)
            return found

        await hand_over(test)
        await meanwhile("outbox.write", "send", 0, outboxes.move, "beginning")
        assert (len(ids), len(set(ids))) == (2, 1), "handed over before the move, it comes again"
        found = await status(test, "send")
        assert (found.messages, found.delivered) == (0, 1), "what was handed over first counts as never delivered"
        assert await meanwhile("outbox.next", "count", 1, outboxes.pause) == {"0": 1}, "it has run, and was undone"
        await outboxes.resume(test, "count")
        await hand_over(test)
        assert await test.run_query(sums) == {"0": 1, "1": 1}
        assert await meanwhile("outbox.next", "count", 2, outboxes.move, "end") == {"0": 1, "1": 1}
        everything = {str(number): 1 for number in range(4)}
        assert await meanwhile("outbox.next", "count", 3, outboxes.rebuild) == everything, "none twice"
        assert await meanwhile("outbox.next", "count", 4, outboxes.drop) == everything


@pytest.mark.both_stores
async def test_rebuilds_beside_writers_and_relays_count_each_row_once(database_url: str) -> None:
    async with TestApp(app, database_url) as test, TestApp(app, database_url, clock=test.clock) as other:

        async def write() -> None:
            for number in range(ROUNDS * 2):
                await test.run_mutation(put, number * 10, 10)

        async def relay(one: TestApp) -> None:
            for _ in range(ROUNDS * 4):
                await hand_over(one)

        async def rebuild() -> None:
            for _ in range(ROUNDS):
                await app.outboxes.rebuild(other, "count")

        await hand_over(test)
        await hand_over(other)
        await asyncio.gather(write(), relay(test), relay(other), rebuild())
        for _ in range(4):
            await hand_over(test)
            await hand_over(other)
        assert await test.run_query(sums) == {str(number): 1 for number in range(ROUNDS * 20)}
        assert (await status(test, "count")).messages == 0
