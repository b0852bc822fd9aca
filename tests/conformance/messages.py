"""What a store promises of messages that are sent: they are changes of the feed, in the transaction that sends them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from conformance.bench import Bench, Suite, story
from conformance.interests import declare, insert, note, run
from penstock.changes.change import CapturedChange
from penstock.changes.position import BEGINNING
from penstock.store.session import Session

ODD_TEXTS = ("", "null", '"a"', "[1]", 'it\'s "quoted"\\', "äé€😀", "%s %(a)s $1 ?1 :x", "\x01\x7f\u2028")


class Messages(Suite):
    """`store.outboxes.Outboxes`: `topic` and `send`."""

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


async def sent(bench: Bench, *messages: tuple[str, str, str | None]) -> list[bool]:
    """Send messages in one transaction; whether each was."""

    async def write(session: Session) -> list[bool]:
        return [await bench.store.outboxes.send(session, *message) for message in messages]

    return await bench.writing(write)


async def unread(bench: Bench, interests: Sequence[int] | None = None) -> list[CapturedChange]:
    """All that is in the feed."""
    return (await bench.store.changes.read(BEGINNING, 100, interests)).changes
