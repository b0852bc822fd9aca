"""What is put aside while rows are handed over that are older than their outbox, and how far the feed is read then."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from stage.items import ONCE, TEN, Item, begun, handed, pieces, rows_before, staged, valued
from stage.outboxes import OutboxStage, aside, drain, failing, outbox_row, states

from penstock import Retry, Table
from penstock.app import Backend
from penstock.changes.position import Position
from penstock.errors import CallTimeout, DatabaseUnavailable
from penstock.services.relay.sending import Sending
from penstock.store.nouns.changes import Batch
from penstock.store.nouns.outboxes import Step
from penstock.store.session import Session
from penstock.store.sql.conditions import ConditionSql


class Other(Table, name="other"):
    note: str = ""


COUNT = 9
ORDERED: dict[str, Any] = {"order_by": "value", "batch": 1, "retry": ONCE}


# ----- rows that come by their changes


@pytest.mark.parametrize("on", [("insert",), ("insert", "update")])
@pytest.mark.parametrize(("policy", "state"), [("park", "parked"), ("halt_key", "halted")])
async def test_a_row_that_came_by_its_change_and_failed_stays_aside_wherever_the_outbox_is_moved(
    database_url: str, policy: Any, state: str, on: tuple[str, ...]
) -> None:
    ids = await rows_before(database_url, *valued(COUNT))
    stage = staged("7", **ORDERED, on_failure=policy, on=on)
    async with stage.open(database_url) as test:
        await pieces(test, 4)
        await stage.patch(test, Item, ids[7], value=-100)
        await drain(test)
        assert (await outbox_row(test)).backfill is None
        (before,) = await aside(test)
        assert (before.state, before.change.kind, before.as_insert) == (state, "enter", True)
        for _ in range(2):
            await stage.app.outboxes.move(test, "send", "beginning")
            await drain(test)
            assert await aside(test) == [before]
        assert Counter(stage.texts()) == Counter(str(one) for one in range(COUNT) if one != 7)
        stage.fails = lambda _message: None
        await stage.app.outboxes.retry(test, "send")
        await drain(test, timedelta(seconds=2))
        assert (stage.texts(), await aside(test)) == (["7"], [])


@pytest.mark.parametrize("to", ["beginning", "end"])
async def test_rows_that_came_by_their_changes_and_wait_come_once_or_are_passed_by_when_it_is_moved(
    database_url: str, to: Any
) -> None:
    ids = await rows_before(database_url, *valued(COUNT))
    stage = staged("new", **ORDERED)
    async with stage.open(database_url) as test:
        await pieces(test, 4)
        await stage.insert(test, Item(note="new", value=-1))
        for one in (5, 8):
            await stage.patch(test, Item, ids[one], value=-100)
        await drain(test)
        assert ((await outbox_row(test)).backfill, await states(test)) == (None, ["waiting"] * 3)
        await stage.app.outboxes.move(test, "send", to)
        stage.fails = lambda _message: None
        if to == "beginning":
            assert [one.change.kind for one in await aside(test)] == ["enter"] * 2, "the new one is read again"
            await stage.app.outboxes.retry(test, "send")
        await drain(test, timedelta(seconds=2))
        passed = set() if to == "beginning" else {"new", "5", "8"}
        assert len({one.id for one in stage.got}) == len(stage.got)
        assert sorted(stage.texts()) == sorted({*map(str, range(COUNT)), "new"} - passed)
        assert await aside(test) == []


# ----- what other tables capture meanwhile


def beside(**options: Any) -> OutboxStage:
    """An outbox that hands over rows, and another one whose table is written to meanwhile."""
    stage = OutboxStage(Item, Other)
    stage.outbox(Item, **{"batch": 1, "retry": ONCE, **options})
    stage.outbox(Other, "second", start="end")
    return stage


async def unread(test: Backend) -> int:
    """How much of all that was captured its reader has still before it."""
    changes = test.engine.store.changes
    (reader,) = [one for one in await changes.readers() if one.name == "outbox:send"]
    return (await changes.lag(reader.position, 1000)).rows


@pytest.mark.parametrize("options", [{}, {"order_by": "value"}, {"batch": None, "mutation": True}])
async def test_the_reader_moves_with_the_rows_that_are_handed_over(database_url: str, options: Any) -> None:
    await rows_before(database_url, *valued(300))
    stage = beside(**options)
    async with stage.open(database_url) as test:
        await pieces(test)
        for _ in range(2):
            await stage.insert(test, *[Other(note=str(one)) for one in range(5)])
            assert await unread(test) == 5
            await pieces(test)
            assert await unread(test) == 0
        assert (await outbox_row(test)).backfill is not None


async def test_the_reader_moves_past_rows_that_are_no_messages_and_at_their_end(database_url: str) -> None:
    await rows_before(database_url, *valued(COUNT))
    stage = beside(filter=lambda item: item.value < 0)
    async with stage.open(database_url) as test:
        await stage.insert(test, Other(note="a"))
        await drain(test)
        assert ((await outbox_row(test)).backfill, await unread(test)) == (None, 0)


async def test_an_outbox_whose_older_row_fails_keeps_nothing_of_other_tables(database_url: str) -> None:
    await rows_before(database_url, *valued(COUNT))
    stage = beside(retry=Retry(max_attempts=2, initial_backoff=1, max_backoff=2))
    stage.fails = failing(lambda: ValueError("no"), "0")
    async with stage.open(database_url) as test:
        await pieces(test)
        await stage.insert(test, Other(note="a"), Other(note="b"))
        for _ in range(3):
            await drain(test, timedelta(seconds=10))
        assert (await outbox_row(test)).trouble is not None
        assert await unread(test) == 0
        stage.fails = lambda _message: None
        await drain(test, timedelta(seconds=10))
        assert [text for text in stage.texts() if text.isdigit()] == [str(one) for one in range(COUNT)]


async def test_what_was_captured_is_looked_at_once(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a session there is no time for much of it: there is read on from where was just looked."""
    await rows_before(database_url, *valued(COUNT))
    stage = beside(retry=Retry(max_attempts=2, initial_backoff=1, max_backoff=2))
    stage.fails = failing(lambda: ValueError("no"), "3")
    async with stage.open(database_url) as test:
        await pieces(test, 2)
        changes = test.engine.store.changes
        read, looks = changes.read, list[tuple[Position, Batch]]()

        async def spied(position: Position, *args: Any) -> Batch:
            with monkeypatch.context() as within:  # on SQLite it calls itself
                within.setattr(changes, "read", read)
                batch = await read(position, *args)
            looks.append((position, batch))
            return batch

        monkeypatch.setattr(changes, "read", spied)
        for _ in range(4):
            await stage.insert(test, Other(note="a"))
            test.clock.advance(timedelta(seconds=10))
            await pieces(test)
        assert len(looks) == 8, "one for what is put aside, and one with the rows"
        assert all(start == before.position for (_, before), (start, _) in pairwise(looks))


# ----- errors, and rows in the way


@pytest.mark.parametrize("options", [{}, {"parallelism": 2}, {"mutation": True}, {"batch": 2}])
async def test_what_could_not_be_put_aside_at_once_is_put_aside_later(
    database_url: str, options: dict[str, Any]
) -> None:
    ids = await rows_before(database_url, *valued(250))
    stage = staged(on=("insert", "update", "delete"), **options)
    async with stage.open(database_url) as test:
        await pieces(test)
        await stage.patch(test, Item, ids[0], note="changed")
        await stage.delete(test, Item, ids[1])
        outboxes = test.engine.store.outboxes
        advance, away = outboxes.advance, True

        async def advanced(step: Step, now: datetime, session: Session | None = None) -> bool:
            nonlocal away
            if step.put and away:
                away = False
                raise DatabaseUnavailable("for a moment")
            return await advance(step, now, session)

        outboxes.advance = advanced  # type: ignore[method-assign]
        with suppress(DatabaseUnavailable):
            await drain(test)
        assert not away
        await drain(test)
        (told,) = (await handed(stage, test)).values()
        assert len(told) == 252
        assert [text for text in told if text in {"changed", "delete 1", "update changed"}] == told[-2:]


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Has the time of the next handler be over as it is committed, once this says so."""
    run, asked = Sending.run, list[bool]()

    async def too_long(self: Sending, *args: Any) -> None:
        await run(self, *args)
        if asked and asked.pop():
            raise CallTimeout("It took longer than a second.")

    monkeypatch.setattr(Sending, "run", too_long)
    return asked


@pytest.mark.parametrize("count", [1, 3])
async def test_rows_whose_time_is_over_as_they_are_committed_are_handled_once(
    database_url: str, count: int, late: list[bool]
) -> None:
    await rows_before(database_url, *valued(count))
    stage = staged(mutation=True)
    late.append(True)
    async with stage.open(database_url) as test:
        with suppress(CallTimeout):
            await drain(test)
        await drain(test, TEN)
        assert not late
        assert await stage.written(test) == [str(one) for one in range(count)]


async def test_one_that_failed_before_and_whose_time_is_over_as_it_is_committed_is_handled_once(
    database_url: str, late: list[bool]
) -> None:
    """The reader has passed it when it was put aside, so it does not tell on any store what was committed."""
    stage = staged("a", mutation=True, on_failure="halt_key")
    async with begun(stage, database_url, "a") as test:
        stage.fails = lambda _message: None
        late.append(True)
        with suppress(CallTimeout):
            await drain(test, timedelta(seconds=10))
        await drain(test, timedelta(seconds=20))
        assert not late
        assert await stage.written(test) == ["a"]
        assert (await outbox_row(test)).delivered == 1


async def test_rows_of_a_key_that_has_failed_do_not_have_all_others_read_again(database_url: str) -> None:
    await rows_before(database_url, *[Item(note=str(one), value=one % 2) for one in range(80)])
    stage = staged("0", partition_by="value", on_failure="halt_key", retry=ONCE)
    async with stage.open(database_url) as test:
        await pieces(test)
        interests = test.engine.store.interests
        source, pages = interests.source, 0

        async def counted(number: int, only: ConditionSql | None = None) -> Any:
            nonlocal pages
            pages += 1
            return await source(number, only)

        interests.source = counted  # type: ignore[method-assign]
        await drain(test)
        assert stage.texts() == [str(one) for one in range(80) if one % 2]
        assert pages <= 5
        assert [one.change.seq for one in await aside(test)] == sorted(one.change.seq for one in await aside(test))
