"""What a store promises of looking after outboxes: halting, holding, moving and counting them, and keeping for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from conformance.bench import NOW, Bench, Suite, after, story
from conformance.changes import rotate
from conformance.outboxes import PLAN, aside, asides, find, known, position
from penstock.changes.position import BEGINNING, Position
from penstock.errors import CursorInvalid
from penstock.outbox.outbox import reader_name
from penstock.outbox.trouble import reader_lost
from penstock.store.nouns.outboxes import KEPT, Aside, AsideCount, AsideState, Forgets, OutboxRow, Step
from penstock.store.nouns.tasks import Move

LEFT, ANEW = '{"after": "[7]", "count": 7, "order": []}', '{"after": null, "count": 0, "order": []}'


class OutboxCare(Suite):
    """`store.outboxes.Outboxes`: what people ask for."""

    # ----- halting and holding

    @story
    async def test_an_outbox_is_halted_as_a_whole_until_it_is_retried(self, bench: Bench) -> None:
        store, trouble = bench.store.outboxes, reader_lost("o", NOW)
        assert not await store.halt("o", trouble)
        row, lease, _ = await sending(bench)
        assert await store.halt("o", trouble)
        halted = await find(bench)
        assert (halted.trouble, halted.trouble and halted.trouble.due(after(9999))) == (trouble, False)
        assert not await store.advance(await further(bench, row, lease), NOW), "the relay did not know of it"
        assert not await store.skip("o", 5)
        assert await store.retry("o", after(1), [5]) == 0, "no message has failed"
        assert await store.retry("o", after(1)) == 1
        found = await find(bench)
        assert (found.trouble, found.epoch > halted.epoch) == (None, True)
        assert await store.advance(await further(bench, found, lease), NOW)

    @story
    async def test_who_holds_an_outbox_keeps_all_relays_from_it_as_long_as_it_lives(self, bench: Bench) -> None:
        store, changes = bench.store.outboxes, bench.store.changes
        holder = await bench.lease()
        assert not await store.hold("o", holder)
        row, relay, start = await sending(bench)
        assert await store.hold("o", holder)
        held = await find(bench)
        assert held.epoch > row.epoch
        for known_as in (row, held):
            assert not await store.advance(await further(bench, known_as, relay), NOW)
        assert (await changes.take(reader_name("o"), relay), await position(bench)) == (None, start)
        await changes.leave(reader_name("o"), relay)
        assert await changes.take(reader_name("o"), relay) is None, "it is not the relay's to leave"
        await changes.leave(reader_name("o"), holder)
        assert await changes.take(reader_name("o"), relay) == start
        assert await store.advance(await further(bench, held, relay), NOW)
        assert await store.hold("o", holder)
        await bench.store.leases.give_back(holder)
        assert await changes.take(reader_name("o"), relay) is not None

    # ----- moving

    @story
    async def test_moved_back_it_reads_again_and_forgets_only_what_comes_again(self, bench: Bench) -> None:
        """What was put aside before that place stays, and what comes again is not there twice."""
        store = bench.store.outboxes
        row, lease, _ = await sending(bench)
        first = await read(bench, BEGINNING, 2)
        later = await read(bench, first, 9)
        numbers = await seqs(bench, BEGINNING)
        put = [aside(-7), aside(numbers[0], "parked"), aside(numbers[2], "halted"), aside(numbers[3], "parked")]
        step = Step(
            outbox=row, move=Move(reader_name("o"), lease, BEGINNING, later), backfill=LEFT, trouble=known(9), put=put
        )
        assert await store.advance(step, NOW)
        assert await store.place("o", first, KEPT, after(1))
        found = await find(bench)
        assert (found.trouble, found.backfill, found.epoch > row.epoch) == (None, LEFT, True)
        assert (await position(bench), await seqs(bench, first)) == (first, numbers[2:])
        assert [one.change.seq for one in await asides(bench, row)] == [-7, numbers[0]]
        assert not await store.advance(await further(bench, found, lease), NOW), "it was taken from who reads it"
        assert await bench.store.changes.take(reader_name("o"), lease) == first

    @story
    async def test_what_was_turned_into_an_insert_is_not_read_again(self, bench: Bench) -> None:
        store = bench.store.outboxes
        row, lease, _ = await sending(bench)
        numbers = await seqs(bench, BEGINNING)
        given: tuple[AsideState, ...] = ("waiting", "halted", "parked", "parked")
        put = [aside(number, state) for number, state in zip(numbers, given, strict=True)]
        put = [replace(one, as_insert=True) for one in put[:3]] + put[3:]
        assert await store.advance(step_of(row, lease, BEGINNING, put), NOW)
        assert await store.inserts(row.id) == {*numbers[:3]}
        assert await store.place("o", BEGINNING, KEPT, NOW)
        assert await asides(bench, row) == put[:3]
        assert await bench.store.changes.take(reader_name("o"), lease) == BEGINNING
        again = [replace(put[0], state="parked", trouble=known(numbers[0]), as_insert=False)]
        assert await store.advance(step_of(await find(bench), lease, BEGINNING, again), NOW)
        assert await store.inserts(row.id) == {*numbers[:3]}, "it stays so whatever becomes of it"
        assert await store.place("o", None, None, NOW, forgets="pending")
        assert await store.inserts(row.id) == {numbers[0], numbers[2]}
        assert await store.place("o", BEGINNING, ANEW, NOW, forgets="all")
        assert await store.inserts(row.id) == set()

    @story
    async def test_moved_elsewhere_it_forgets_what_it_is_told_to(self, bench: Bench) -> None:
        expected: tuple[tuple[Forgets, str | None, list[AsideState]], ...] = (
            ("again", KEPT, ["waiting", "halted", "parked"]),
            ("again", ANEW, ["halted", "parked"]),  # rows that are older come again: that with a negative number
            ("pending", None, ["parked"]),
            ("all", ANEW, []),
        )
        row, lease, _ = await sending(bench)
        for forgets, backfill, states in expected:
            assert await bench.store.outboxes.place("o", BEGINNING, LEFT, NOW, forgets="all")
            assert await bench.store.changes.take(reader_name("o"), lease) == BEGINNING
            put = [aside(-7), aside(10**9, "halted"), aside(10**9 + 1, "parked")]
            step = step_of(await find(bench), lease, BEGINNING, put)
            assert await bench.store.outboxes.advance(step, NOW)
            assert await bench.store.outboxes.place("o", None, backfill, NOW, forgets=forgets)
            assert sorted(one.state for one in await asides(bench, row)) == sorted(states), (forgets, backfill)
            assert (await find(bench)).backfill == (LEFT if backfill == KEPT else backfill)
            assert await seqs(bench, await position(bench)) == [], "it is at the end"

    @story
    async def test_a_move_is_made_once_it_commits_and_nowhere_ahead_of_the_feed(self, bench: Bench) -> None:
        store = bench.store.outboxes
        assert not await store.place("o", None, None, NOW)
        row, _lease, start = await sending(bench)
        ahead = replace(await read(bench, BEGINNING, 9), high=10**9)
        with pytest.raises(CursorInvalid):
            await store.place("o", ahead, None, NOW)

        async def place(session: Any) -> bool:
            return await store.place("o", None, ANEW, NOW, forgets="all", session=session)

        session = await bench.store.begin_write()
        assert await place(session)
        await session.rollback()
        assert (await find(bench), await position(bench)) == (row, start)
        assert await bench.writing(place)
        assert (await find(bench)).backfill == ANEW
        assert await seqs(bench, await position(bench)) == []

    # ----- counting

    @story
    async def test_what_is_put_aside_is_counted_of_each_outbox_and_no_further_than_asked(self, bench: Bench) -> None:
        store = bench.store.outboxes
        assert await store.backlog(9) == []
        row, lease, _ = await sending(bench)
        other = await store.declare(replace(PLAN, name="quiet"), None, NOW)
        put = [*(written(aside(number), 9 - number) for number in range(3, 8))]
        put += [aside(9, "halted"), aside(8, "halted"), aside(1, "parked")]
        assert await store.advance(step_of(row, lease, BEGINNING, put), NOW)
        found = {one.state: one for one in await store.backlog(100)}
        assert found == {
            "waiting": AsideCount(row.id, "waiting", 5, after(2), 0),
            "halted": AsideCount(row.id, "halted", 2, after(8), 2),
            "parked": AsideCount(row.id, "parked", 1, after(1), 1),
        }, "the oldest was written first, whatever its number"
        few = {one.state: (one.outbox, one.number, one.oldest_at) for one in await store.backlog(2)}
        assert few == {
            "waiting": (row.id, 2, after(5)),
            "halted": (row.id, 2, after(8)),
            "parked": (row.id, 1, after(1)),
        }
        assert (await store.next_retry(other.id), await store.list_kept_keys(other.id)) == (None, set())

    # ----- keeping

    @story
    async def test_what_is_read_is_kept_for_as_long_as_an_outbox_says(self, bench: Bench) -> None:
        store = bench.store.outboxes
        row, lease, start = await sending(bench)
        await store.declare(replace(PLAN, name="long", keep_for=timedelta(days=1)), None, NOW)
        end = await read(bench, start, 9)
        assert await store.advance(step_of(row, lease, start, [], end), NOW)
        numbers = await seqs(bench, BEGINNING)
        assert len(numbers) == 4
        await rotate(bench)
        assert await seqs(bench, BEGINNING) == numbers, "they are younger than that"
        await store.declare(replace(PLAN, keep_for=timedelta(0)), None, NOW)
        await rotate(bench)
        assert await seqs(bench, BEGINNING) == numbers, "the one that keeps for longest says it"
        assert await store.forget("long")
        await rotate(bench)
        assert await seqs(bench, BEGINNING) == []

    @story
    async def test_what_is_unread_is_kept_until_the_outbox_is_dropped(self, bench: Bench) -> None:
        store: Any = bench.store.outboxes
        await sending(bench)
        await store.declare(replace(PLAN, keep_for=timedelta(0)), None, NOW)
        asked: tuple[Callable[[], Awaitable[bool]], ...] = (
            lambda: store.pause("o", paused=True),
            lambda: store.halt("o", known(1)),
        )
        for ask in asked:
            assert await ask()
            await rotate(bench)
            assert len(await seqs(bench, BEGINNING)) == 4
        assert await store.forget("o")
        await rotate(bench)
        assert await seqs(bench, BEGINNING) == []


async def sending(bench: Bench) -> tuple[OutboxRow, int, Position]:
    """An outbox of a topic with four messages that nobody has read, a lease that reads it, and where it is."""
    store = bench.store.outboxes
    row = await store.declare(PLAN, None, NOW)
    await bench.store.changes.register(reader_name("o"), NOW, BEGINNING)
    await store.capture(row.id, [-await store.topic("t")])
    await store.note_prepared(row.id)
    lease = await bench.lease()
    assert await bench.store.changes.take(reader_name("o"), lease) == BEGINNING
    for number in range(4):
        assert await bench.writing(partial(store.send, topic="t", payload=str(number), key=None))
    return await find(bench), lease, BEGINNING


def written(one: Aside, seconds: float) -> Aside:
    """A message aside that was written at another time."""
    return replace(one, change=replace(one.change, changed_at=after(seconds)))


async def read(bench: Bench, start: Position, limit: int) -> Position:
    """Where a reader is after some messages."""
    return (await bench.store.changes.read(start, limit)).position


async def seqs(bench: Bench, start: Position) -> list[int]:
    """The numbers of what comes after a place."""
    return [one.seq for one in (await bench.store.changes.read(start, 99)).changes]


async def further(bench: Bench, row: OutboxRow, lease: int) -> Step:
    """A step to the end of what is there."""
    start = await position(bench)
    return step_of(row, lease, start, [], await read(bench, start, 9))


def step_of(row: OutboxRow, lease: int, before: Position, put: list[Aside], then: Position | None = None) -> Step:
    """A step that puts messages aside."""
    move = Move(reader_name("o"), lease, before, then or before)
    return Step(outbox=row, move=move, backfill=row.backfill, put=put)
