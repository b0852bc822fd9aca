"""What a store promises of outboxes: declarations, messages, the fences of steps, and what is put aside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from conformance.bench import NOW, Bench, Suite, after, killed_before, story
from conformance.interests import declare, insert, note, run
from penstock.changes.change import CapturedChange
from penstock.changes.position import BEGINNING, Position
from penstock.outbox.outbox import reader_name
from penstock.outbox.trouble import Trouble
from penstock.store.nouns.outboxes import Aside, AsideState, OutboxPlan, OutboxRow, Step
from penstock.store.nouns.tasks import Move
from penstock.store.session import Session

ODD_TEXTS = ("", "null", '"a"', "[1]", 'it\'s "quoted"\\', "äé€😀", "%s %(a)s $1 ?1 :x", "\x01\x7f\u2028")

PLAN = OutboxPlan("o", "app:send", "action", "topic t", '{"on": []}', 1, timedelta(seconds=90))
STATES: tuple[AsideState, ...] = ("waiting", "halted", "parked")
ODD = 'ž"\\\n\u2028😀'


class Outboxes(Suite):
    """`store.outboxes.Outboxes`."""

    # ----- declaring

    @story
    async def test_a_new_outbox_is_known_until_another_declaration_takes_over(self, bench: Bench) -> None:
        store = bench.store.outboxes
        row = await store.declare(replace(PLAN, version=2), "left", NOW)
        assert (row.plan, row.backfill, row.ready, row.paused) == (replace(PLAN, version=2), "left", False, False)
        assert (row.interests, row.skips, row.trouble, row.delivered, row.delivered_at) == ((), (), None, 0, None)
        assert row.declared_at == NOW
        assert await store.declare(replace(PLAN, version=2), None, after(5)) == row, "and again changes nothing"
        newer = replace(PLAN, version=3, function="app:other", kind="mutation", spec="{}", keep_for=timedelta(days=1))
        later = await store.declare(newer, None, after(5))
        assert (later.plan, later.backfill, later.declared_at, later.id) == (newer, "left", after(5), row.id)
        assert later.epoch > row.epoch
        assert await store.declare(PLAN, None, after(9)) == later, "its version is lower"
        await store.declare(replace(PLAN, name="a"), None, NOW)
        assert [one.plan.name for one in await store.list()] == ["a", "o"]

    @story
    async def test_it_is_read_under_more_numbers_and_each_once(self, bench: Bench) -> None:
        row = await bench.store.outboxes.declare(PLAN, None, NOW)
        for numbers, expected in (([7], (7,)), ([3, 7], (3, 7)), ([7], (3, 7)), ([-2], (-2, 3, 7))):
            before = await find(bench)
            await bench.store.outboxes.capture(row.id, numbers)
            found = await find(bench)
            assert found.interests == expected
            assert (found.epoch > before.epoch) is (found.interests != before.interests)
        for number, meaning in ((11, "said"), (4, ODD), (11, "later")):
            await bench.store.outboxes.capture(row.id, [number], meaning)
        assert (await find(bench)).meanings == {11: "said", 4: ODD}, "what a number means stays so"
        await bench.store.outboxes.note_prepared(row.id)
        ready = await find(bench)
        await bench.store.outboxes.note_prepared(row.id)
        assert (ready.ready, await find(bench)) == (True, ready)

    # ----- topics

    # ----- steps

    @story
    async def test_a_step_is_written_as_a_whole(self, bench: Bench) -> None:
        row, lease = await begun(bench)
        trouble = Trouble(seq=9, attempts=2, since=NOW, retry_at=after(3), error=ODD, traceback=None, halted=True)
        put = [aside(3), aside(1, "halted"), aside(2, "parked")]
        assert await bench.store.outboxes.advance(step(row, lease, 0, 5, trouble=trouble, put=put, delivered=4), NOW)
        found = await find(bench)
        assert (found.trouble, found.delivered, found.delivered_at, found.epoch) == (trouble, 4, NOW, row.epoch)
        assert await position(bench) == at(5)
        assert await asides(bench, row) == [put[1], put[2], put[0]]
        again = step(found, lease, 5, 5, put=[replace(put[0], state="parked", trouble=known(3))], taken=[1, 77])
        assert await bench.store.outboxes.advance(again, after(1))
        assert await asides(bench, row) == [put[2], *again.put]
        assert ((await find(bench)).trouble, (await find(bench)).delivered_at) == (None, NOW)

    @story
    async def test_what_is_done_with_behind_the_next_message_is_kept_until_it_is_moved(self, bench: Bench) -> None:
        row, lease = await begun(bench)
        assert row.passed == frozenset()
        passed = frozenset({(7, None), (9, None), (0, ODD)})
        assert await bench.store.outboxes.advance(step(row, lease, 0, 5, passed=passed), NOW)
        found = await find(bench)
        assert found.passed == passed
        assert await bench.store.outboxes.advance(step(found, lease, 5, 7, passed=frozenset({(9, None)})), NOW)
        assert (await find(bench)).passed == {(9, None)}
        assert await bench.store.outboxes.place("o", at(0), None, NOW)
        assert (await find(bench)).passed == frozenset()

    @story
    async def test_of_steps_of_one_state_one_is_written_once_it_commits(self, bench: Bench) -> None:
        row, lease = await begun(bench)
        stale = replace(row, epoch=row.epoch - 1)
        for wrong in (step(stale, lease, 0, 5), step(row, lease + 1, 0, 5), step(row, lease, 1, 5)):
            for full in (wrong, replace(wrong, put=[aside(1)]), replace(wrong, taken=[1])):
                assert not await bench.store.outboxes.advance(replace(full, delivered=1), NOW)
                assert (await position(bench), await find(bench), await asides(bench, row)) == (at(0), row, [])
        one = step(row, lease, 0, 5, put=[aside(1)], delivered=1)
        session = await bench.store.begin_write()
        assert await bench.store.outboxes.advance(one, NOW, session)
        await session.rollback()
        assert (await position(bench), await find(bench), await asides(bench, row)) == (at(0), row, [])
        assert await bench.writing(lambda session: bench.store.outboxes.advance(one, NOW, session))
        assert (await position(bench), (await find(bench)).delivered) == (at(5), 1)
        next_one = step(await find(bench), lease, 5, 6, delivered=1)
        done = await asyncio.gather(*(bench.store.outboxes.advance(next_one, NOW) for _ in range(4)))
        assert (sorted(done), (await find(bench)).delivered) == ([False, False, False, True], 2)

    # ----- what is put aside

    @story
    async def test_of_a_key_that_has_failed_none_is_next(self, bench: Bench) -> None:
        row, lease = await begun(bench)
        put = [aside(1, "halted", "a", retry=5), aside(2, key="a"), aside(3, key="b"), aside(4, "parked", "b")]
        assert await bench.store.outboxes.advance(step(row, lease, 0, 5, put=put), NOW)
        store = bench.store.outboxes
        assert [one.change.seq for one in await store.waiting(row.id, 9)] == [3]
        assert await store.list_failed(row.id, after(4), 9) == []
        assert [one.change.seq for one in await store.list_failed(row.id, after(5), 9)] == [1]
        later = step(await find(bench), lease, 5, 6, put=[aside(6, "halted", "c", retry=4)])
        assert await bench.store.outboxes.advance(later, NOW)
        assert [one.change.seq for one in await store.list_failed(row.id, after(5), 9)] == [6, 1], (
            "the longest due first"
        )
        assert await bench.store.outboxes.advance(step(await find(bench), lease, 6, 6, taken=[6]), NOW)
        assert (await store.next_retry(row.id), await store.list_kept_keys(row.id)) == (after(5), {"a", "b"})
        counts = {one.state: one.number for one in await store.backlog(9)}
        assert counts == {"waiting": 2, "halted": 1, "parked": 1}
        assert [one.change.seq for one in await store.aside(row.id, ["waiting", "parked"], 2, 2)] == [3, 4]
        for kinds, expected in ((["enter"], {"[1]"}), (["enter", "change"], {"[1]"}), (["leave"], set())):
            found = await bench.reading(partial(store.put_keys, outbox=row.id, keys=["[1]", "[9]"], kinds=kinds))
            assert found == expected

    # ----- what people ask for

    @story
    async def test_what_people_ask_for_stops_the_next_step(self, bench: Bench) -> None:
        store = bench.store.outboxes
        assert not await store.pause("o", paused=True)
        row, lease = await begun(bench)
        trouble, put = known(9), [aside(1, "halted"), aside(2, "parked"), aside(3)]
        assert await store.advance(step(row, lease, 0, 5, trouble=trouble, put=put), NOW)
        asked: tuple[Callable[[], Awaitable[int]], ...] = (
            lambda: store.pause("o", paused=True),
            lambda: store.retry("o", after(1)),
            lambda: store.skip("o", 1),
            lambda: store.skip("o", 9),
            lambda: store.place("o", at(0), None, NOW),
        )
        for ask in asked:
            before = await find(bench)
            assert await ask()
            assert not await store.advance(step(before, lease, 5, 6), NOW)
            assert (await find(bench)).epoch > before.epoch
        assert await position(bench) == at(0)

    @story
    async def test_what_failed_is_tried_again_or_skipped(self, bench: Bench) -> None:
        store = bench.store.outboxes
        row, lease = await begun(bench)
        put = [aside(1, "halted"), aside(2, "parked"), aside(3), aside(4, "parked")]
        assert await store.advance(step(row, lease, 0, 5, trouble=known(9), put=put), NOW)
        assert await store.retry("o", after(1), [2, 3, 9, 77]) == 2
        trouble = (await find(bench)).trouble
        assert trouble is not None
        assert (trouble.seq, trouble.attempts, trouble.retry_at, trouble.halted) == (9, 0, after(1), False)
        assert [one.state for one in await asides(bench, row)] == ["halted", "waiting", "waiting", "parked"]
        assert await store.retry("o", after(2)) == 3
        assert not await store.skip("o", 2), "it waits"
        assert await store.skip("o", 1)
        assert await store.skip("o", 9)
        found = await find(bench)
        assert (found.skips, found.trouble) == ((9,), None)
        assert await store.advance(replace(step(found, lease, 5, 6), skipped=[9]), NOW)
        assert (await find(bench)).skips == ()
        assert [one.change.seq for one in await asides(bench, row)] == [2, 3, 4]

    @story
    async def test_all_that_failed_is_tried_again_as_if_no_process_had_died_or_nothing(self, bench: Bench) -> None:
        """Otherwise the next process to die would put an end to its attempts at once."""
        store = bench.store.outboxes
        row, lease = await begun(bench)
        put = [replace(one, trouble=deadly(one.change.seq)) for one in (aside(1, "halted"), aside(2, "parked"))]
        assert await store.advance(step(row, lease, 0, 5, trouble=deadly(9), put=put), NOW)
        before = await find(bench)
        with killed_before(store, "retry_aside"):
            await store.retry("o", after(1))
        assert await find(bench) == before
        assert await store.retry("o", after(1)) == 3
        later = [(await find(bench)).trouble, *(one.trouble for one in await asides(bench, row))]
        assert [one and (one.attempts, one.deaths, one.halted) for one in later] == [(0, 0, False)] * 3
        assert await store.forget("o")
        assert not await store.forget("o")
        assert (await store.list(), await bench.store.changes.readers(), await asides(bench, row)) == ([], [], [])

    @story
    async def test_a_topic_has_one_number_whoever_asks(self, bench: Bench) -> None:
        stores = [bench.store, *[await bench.another() for _ in range(3)]]
        found = await asyncio.gather(*(store.outboxes.topic("a") for store in stores))
        assert len(set(found)) == 1
        assert await bench.store.outboxes.topic("b") not in found
        assert await bench.store.outboxes.topic("a") == found[0]

    @story
    async def test_what_is_sent_is_a_change_of_its_topic_if_that_is_known(self, bench: Bench) -> None:
        a, b = await bench.store.outboxes.topic("a"), await bench.store.outboxes.topic("b")
        messages = [("a", "1", "k"), ("A", "0", None), ("b", "2", None), ("", "0", None), ("a", "3", None)]
        assert await sent(bench, *messages) == [True, False, True, False, True]
        first, second, third = await unread(bench)
        assert [one.interest for one in (first, second, third)] == [-a, -b, -a]
        assert [(one.kind, one.key, one.before, one.after) for one in (first, second, third)] == [
            ("message", "k", None, "1"), ("message", None, None, "2"), ("message", None, None, "3"),
        ]  # fmt: skip
        assert first.seq < second.seq < third.seq
        assert first.changed_at.tzinfo is not None
        assert [one.after for one in await unread(bench, [-b])] == ["2"]
        await sent(bench, *(("b", text, text) for text in ODD_TEXTS))
        assert [(one.after, one.key) for one in (await unread(bench, [-b]))[1:]] == [(text, text) for text in ODD_TEXTS]

    @story
    async def test_messages_and_rows_are_in_the_order_of_statements_unless_they_are_undone(self, bench: Bench) -> None:
        await declare(bench, note("all"))
        await bench.store.outboxes.topic("a")
        gone = await bench.store.begin_write()
        await bench.store.outboxes.send(gone, "a", "gone", None)
        await gone.rollback()

        async def write(session: Session) -> None:
            for number in range(3):
                await bench.store.outboxes.send(session, "a", str(number), None)
                await session.savepoint("here")
                await bench.store.outboxes.send(session, "a", "gone", None)
                await session.rollback_to("here")
                await bench.insert(session, f"n{number}")

        await bench.writing(write)
        found = await unread(bench)
        assert [one.kind for one in found] == ["message", "enter"] * 3
        assert [one.after for one in found[::2]] == ["0", "1", "2"]

    @story
    async def test_messages_have_their_place_in_time_among_rows(self, bench: Bench) -> None:
        await declare(bench, note("all"))
        await bench.store.outboxes.topic("a")
        await run(bench, insert("before", 1))
        await sent(bench, ("a", "1", None), ("a", "2", None))
        await run(bench, insert("after", 1))
        changes = await unread(bench)
        assert [one.kind for one in changes] == ["enter", "message", "message", "enter"]
        assert [one.changed_at for one in changes] == sorted(one.changed_at for one in changes)
        for place in (0, 1, 3):  # where a transaction begins
            moment = changes[place].changed_at
            found = (await bench.store.changes.read(await bench.store.changes.before(moment), 100)).changes
            alike = [other.seq for other in changes[:place] if other.changed_at == moment]
            assert [other.seq for other in found][-len(changes[place:]) :] == [other.seq for other in changes[place:]]
            assert len(found) <= len(alike) + len(changes[place:])


async def begun(bench: Bench) -> tuple[OutboxRow, int]:
    """An outbox whose reader is at the beginning, under a lease."""
    await bench.store.outboxes.declare(PLAN, None, NOW)
    await bench.store.changes.register(reader_name("o"), NOW, at(0))
    lease = await bench.lease()
    await bench.store.changes.take(reader_name("o"), lease)
    await bench.store.outboxes.note_prepared((await find(bench)).id)
    return await find(bench), lease


async def find(bench: Bench) -> OutboxRow:
    """The outbox as it is kept."""
    return next(row for row in await bench.store.outboxes.list() if row.plan.name == "o")


async def position(bench: Bench) -> Position:
    """Where its reader is."""
    return next(row.position for row in await bench.store.changes.readers() if row.name == reader_name("o"))


async def asides(bench: Bench, row: OutboxRow) -> list[Aside]:
    """All that is put aside."""
    return list(await bench.store.outboxes.aside(row.id, STATES, 99))


def at(number: int) -> Position:
    """A position."""
    return Position(high=number)


def step(row: OutboxRow, lease: int, before: int, then: int, **said: Any) -> Step:
    """A step that moves the reader."""
    return Step(outbox=row, move=Move(reader_name("o"), lease, at(before), at(then)), backfill=row.backfill, **said)


def aside(number: int, state: AsideState = "waiting", key: str = ODD, retry: float = 1) -> Aside:
    """A message that is put aside."""
    change = CapturedChange(number, 1, "enter", f"[{number}]", None, f'{{"text": "{number}"}}', after(number))
    return Aside(change, key, state, None if state == "waiting" else known(number, retry))


def deadly(number: int) -> Trouble:
    """What is known of a message at which processes have ended three times."""
    return replace(known(number), deaths=3)


def known(number: int, retry: float = 1) -> Trouble:
    """What is known of a message that has failed."""
    return Trouble(seq=number, attempts=2, since=NOW, retry_at=after(retry), error=ODD, traceback=ODD, halted=True)


async def sent(bench: Bench, *messages: tuple[str, str, str | None]) -> list[bool]:
    """Send messages in one transaction; whether each was."""

    async def write(session: Session) -> list[bool]:
        return [await bench.store.outboxes.send(session, *message) for message in messages]

    return await bench.writing(write)


async def unread(bench: Bench, interests: Sequence[int] | None = None) -> list[CapturedChange]:
    """All that is in the feed."""
    return (await bench.store.changes.read(BEGINNING, 100, interests)).changes
