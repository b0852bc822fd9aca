"""Messages that were captured for an older declaration of an outbox: each is judged by what was declared then."""

from __future__ import annotations

from typing import Any

import pytest
from stage.outboxes import OutboxStage, drain, outbox_row, send
from stage.reactive import Stage

from penstock import DeclarationError, Index, Table
from penstock.outbox.outbox import MessageCriteria
from penstock.reactive.tracing import trace_filter
from penstock.schema.table import definition_of


class Item(Table):
    note: str = ""
    value: int = 0

    by_value = Index("value")


class Box(Table):
    note: str = ""


ALL = ("insert", "update", "delete")
FILTERS: dict[str, Any] = {
    "y": lambda row: row.note.matches("^y"),  # which SQLite cannot say, so that its triggers tell of every row
    "n": lambda row: row.note.matches("^n"),  # the same to SQLite
    "value": lambda row: row.value > 0,
}


def declared(stage: OutboxStage, **options: Any) -> OutboxStage:
    stage.outbox(Item, **options)
    return stage


@pytest.mark.parametrize("then", ["n", "value"])
@pytest.mark.parametrize("older", [False, True])
async def test_what_an_older_filter_did_not_mean_is_no_message(database_url: str, then: str, *, older: bool) -> None:
    """With older rows all that was captured is put aside, and judged again when its turn comes."""
    if older:
        before = Stage(Item)
        async with before.open(database_url) as test:
            await before.insert(test, Item(note="y0", value=1))
    start = "beginning" if older else "end"
    first = declared(OutboxStage(Item), filter=FILTERS["y"], on=ALL, start=start)
    second = declared(OutboxStage(Item), filter=FILTERS[then], on=ALL, start=start)
    async with first.open(database_url) as test:
        ids = await first.insert(test, Item(note="y1"), Item(note="x1", value=1), Item(note="z1"))
        await first.patch(test, Item, ids[1], note="x2")
        await first.patch(test, Item, ids[2], note="y2")
        await first.patch(test, Item, ids[2], note="z3")
        await first.delete(test, Item, ids[1])
        clock = test.clock
    async with second.open(database_url, clock=clock) as test:
        await second.insert(test, Item(note="n9", value=9), Item(note="y9"), Item(note="n8", value=8))
        await drain(test)
        mine = ["y0"] if older and then == "value" else []
        assert second.texts() == [*mine, "y1", "y2", "delete y2", "n9", "n8"]
        assert len((await outbox_row(test)).meanings) == 2


async def test_the_same_filter_under_the_same_name_goes_on(database_url: str) -> None:
    stages = [declared(OutboxStage(Item), filter=FILTERS["y"], on=ALL, start="end") for _ in range(2)]
    clock: Any = None
    for stage in stages:
        async with stage.open(database_url, **({} if clock is None else {"clock": clock})) as test:
            clock = test.clock
            await stage.insert(test, Item(note="y"), Item(note="x"))
            assert len((await outbox_row(test)).interests) == 1
    async with stages[1].open(database_url, clock=clock) as test:
        await drain(test)
    assert stages[1].texts() == ["y", "y"]


async def test_changes_that_were_captured_for_an_order_are_no_messages_later(database_url: str) -> None:
    first = declared(OutboxStage(Item), order_by="value")
    second = declared(OutboxStage(Item), on=("insert", "update"))
    async with first.open(database_url) as test:
        await drain(test)
        (one,) = await first.insert(test, Item(note="a"))
        await first.patch(test, Item, one, value=2)
        clock = test.clock
    async with second.open(database_url, clock=clock) as test:
        await second.patch(test, Item, one, note="b")
        await drain(test)
        assert second.texts() == ["a", "update b"]


async def test_what_was_asked_for_when_it_was_written_is_handed_over(database_url: str) -> None:
    first = declared(OutboxStage(Item), on=ALL, start="end")
    second = declared(OutboxStage(Item), on=("insert",), start="end", fields=("note",))
    async with first.open(database_url) as test:
        (one,) = await first.insert(test, Item(note="a"))
        await first.patch(test, Item, one, value=2)
        clock = test.clock
    async with second.open(database_url, clock=clock) as test:
        await second.patch(test, Item, one, note="b")
        await second.insert(test, Item(note="c"))
        await drain(test)
        assert second.texts() == ["a", "update a", "c"]


@pytest.mark.parametrize(("source", "other"), [("a", "b"), ("a", Item), (Item, "b"), (Item, Box)])
async def test_another_source_under_the_same_name_is_refused(database_url: str, source: Any, other: Any) -> None:
    first, second = OutboxStage(Item, Box), OutboxStage(Item, Box)
    first.outbox(source)
    second.outbox(other, version=2)
    async with first.open(database_url) as test:
        before, clock = await outbox_row(test), test.clock
    with pytest.raises(DeclarationError, match=r"'send' is one of .* and cannot become one of .*name="):
        async with second.open(database_url, clock=clock):
            pass
    async with first.open(database_url, clock=clock) as test:
        assert await outbox_row(test) == before
        await first.app.outboxes.drop(test, "send")
    async with second.open(database_url, clock=clock) as test:
        assert (await outbox_row(test)).plan.version == 2, "once the one before was dropped"


async def test_an_older_program_with_another_source_leaves_the_outbox_alone(database_url: str) -> None:
    older, newer = OutboxStage(Item), OutboxStage(Item)
    older.outbox("a")
    newer.outbox("b", version=2)
    async with newer.open(database_url) as test:
        await drain(test)
        before = await outbox_row(test)
        async with older.open(database_url, clock=test.clock) as other:
            assert await outbox_row(test) == before
            await drain(other)
        await send(test, "b", '"mine"')
        await drain(test)
        assert (older.texts(), newer.texts()) == ([], ["mine"])


@pytest.mark.parametrize("how", FILTERS)
def test_a_meaning_is_read_as_it_was_written(how: str) -> None:
    condition = trace_filter(definition_of(Item), FILTERS[how], "a test")
    meaning = MessageCriteria(condition=condition, kinds=("change", "enter"), fields=("note",))
    assert MessageCriteria.parse(meaning.text()) == meaning
    assert MessageCriteria.parse(MessageCriteria().text()) == MessageCriteria()
