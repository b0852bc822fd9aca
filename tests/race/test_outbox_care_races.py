"""Whoever looks after outboxes does so beside relays: one that knows an outbox as it was writes nothing any more."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

from penstock import ActionCtx, App, Index, Message, MutationCtx, QueryCtx, Table
from penstock.testing import TestApp, gate

ROUNDS, ROWS = 6, 40

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


async def test_a_relay_that_handed_over_before_a_move_cannot_write_how_far_it_has_come(database_url: str) -> None:
    ids.clear()
    async with TestApp(app, database_url) as test:
        await hand_over(test)
        await test.run_mutation(put, 0, 1)
        with gate("outbox.write", most=1, when=of("send")) as held:
            relay = asyncio.ensure_future(test.relay.drain())
            await held.arrived()  # it has handed the message over
            assert (await app.outboxes.move(test, "send", "beginning")).messages == 1
            held.open()
            await relay
        await hand_over(test)
        assert len(ids) == 2
        assert len(set(ids)) == 1
        found = await status(test, "send")
        assert (found.messages, found.delivered) == (0, 1)  # what was handed over first counts as never delivered


async def test_a_message_that_was_next_before_an_outbox_was_paused_is_not_written(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await hand_over(test)
        await test.run_mutation(put, 0, 3)
        with gate("outbox.next", most=1, when=of("count")) as held:
            relay = asyncio.ensure_future(test.relay.drain())
            await held.arrived()
            await app.outboxes.pause(test, "count")
            held.open()
            await relay
        await hand_over(test)
        assert await test.run_query(sums) == {}  # the mutation has run, and was undone
        await app.outboxes.resume(test, "count")
        await hand_over(test)
        assert await test.run_query(sums) == {"0": 1, "1": 1, "2": 1}


async def test_a_message_that_was_next_before_an_outbox_was_dropped_or_moved_is_undone(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await hand_over(test)
        for number, verb in enumerate((app.outboxes.move, app.outboxes.drop)):
            await test.run_mutation(put, number, 1)
            with gate("outbox.next", most=1, when=of("count")) as held:
                relay = asyncio.ensure_future(test.relay.drain())
                await held.arrived()
                await (verb(test, "count", "end") if number == 0 else verb(test, "count"))  # type: ignore[operator]
                held.open()
                await relay
            await hand_over(test)
            assert await test.run_query(sums) == {}


async def test_what_a_relay_was_handing_over_is_not_counted_twice_by_a_rebuild(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await hand_over(test)
        await test.run_mutation(put, 0, 3)
        with gate("outbox.next", most=1, when=of("count")) as held:
            relay = asyncio.ensure_future(test.relay.drain())
            await held.arrived()
            await app.outboxes.rebuild(test, "count")
            held.open()
            await relay
        await hand_over(test)
        assert await test.run_query(sums) == {"0": 1, "1": 1, "2": 1}


async def test_a_rebuild_that_is_interrupted_has_not_happened(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await test.run_mutation(put, 0, 3)
        await hand_over(test)
        with gate("outbox.rebuild") as held:
            rebuild = asyncio.ensure_future(app.outboxes.rebuild(test, "count"))
            await held.arrived()  # the reset has run
            rebuild.cancel()
            await asyncio.gather(rebuild, return_exceptions=True)
        assert await test.run_query(sums) == {"0": 1, "1": 1, "2": 1}
        await test.run_mutation(put, 3, 1)
        await hand_over(test)
        assert await test.run_query(sums) == {"0": 1, "1": 1, "2": 1, "3": 1}
        found = await status(test, "count")
        assert (found.older_rows, found.error, found.messages) == (None, None, 0)


async def test_a_process_that_dies_while_it_rebuilds_leaves_the_outbox_to_relays(database_url: str) -> None:
    async with TestApp(app, database_url) as test, TestApp(app, database_url, clock=test.clock) as other:
        await test.run_mutation(put, 0, 2)
        await hand_over(test)
        lease = await other.engine.store.leases.take("rebuild count", timedelta(seconds=30), test.clock.now())
        assert await other.engine.store.outboxes.hold("count", lease)  # and then it dies
        await test.run_mutation(put, 2, 1)
        await hand_over(test)
        assert await test.run_query(sums) == {"0": 1, "1": 1}
        test.clock.advance(timedelta(seconds=31))
        await test.worker.tick()  # it takes over what the dead have left
        for _ in range(3):  # as if the message had killed it, it is tried again after a while
            await hand_over(test)
        await hand_over(test)
        assert await test.run_query(sums) == {"0": 1, "1": 1, "2": 1}


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
        found = Counter(await test.run_query(sums))
        assert len(found) == ROUNDS * 20
        assert set(found.values()) == {1}
        assert (await status(test, "count")).messages == 0
