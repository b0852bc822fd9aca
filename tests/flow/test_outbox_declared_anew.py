"""Messages that were captured for an older declaration of an outbox: each is judged by what was declared then."""

from __future__ import annotations

from typing import Any

import pytest
from stage.items import Item, rows_before, staged
from stage.outboxes import OutboxStage, drain, outbox_row, send

from penstock import DeclarationError, Table
from penstock.outbox.outbox import MessageCriteria
from penstock.reactive.tracing import trace_filter
from penstock.schema.table import definition_of


class Box(Table):
    note: str = ""


ALL = ("insert", "update", "delete")
FILTERS: dict[str, Any] = {
    "y": lambda row: row.note.matches("^y"),  # which SQLite cannot say, so that its triggers tell of every row
    "n": lambda row: row.note.matches("^n"),  # the same to SQLite
    "value": lambda row: row.value > 0,
}


@pytest.mark.parametrize("then", ["n", "value"])
@pytest.mark.parametrize("older", [False, True])
async def test_what_an_older_filter_did_not_mean_is_no_message(database_url: str, then: str, *, older: bool) -> None:
    """With older rows all that was captured is put aside, and judged again when its turn comes."""
    if older:
        await rows_before(database_url, Item(note="y0", value=1))
    start = "beginning" if older else "end"
    first = staged(filter=FILTERS["y"], on=ALL, start=start)
    second = staged(filter=FILTERS[then], on=ALL, start=start)
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
        row = await outbox_row(test)
        assert len(row.meanings) == 2
    async with second.open(database_url, clock=clock) as test:
        assert (await outbox_row(test)).interests == row.interests, "the same filter under the same name goes on"


async def test_changes_that_were_captured_for_an_order_are_no_messages_later(database_url: str) -> None:
    first = staged(order_by="value")
    second = staged(on=("insert", "update"))
    third = staged(fields=("note",))
    async with first.open(database_url) as test:
        await drain(test)
        (one,) = await first.insert(test, Item(note="a"))
        await first.patch(test, Item, one, value=2)
        clock = test.clock
    async with second.open(database_url, clock=clock) as test:
        await second.patch(test, Item, one, note="b")
    async with third.open(database_url, clock=clock) as test:
        await third.patch(test, Item, one, note="c")
        await third.insert(test, Item(note="d"))
        await drain(test)
        assert third.texts() == ["a", "update b", "d"], "what was asked for when it was written is handed over"


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
