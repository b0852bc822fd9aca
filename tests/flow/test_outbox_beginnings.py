"""Outboxes: where they begin, rows that are older, and what is declared again. Nothing is missed or doubled."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from flow.items import FILTERS, ONCE, POLICIES, TEN, Item, begun, handed, pieces, rows_before, several, staged, valued
from stage.outboxes import OutboxStage, aside, drain, outbox_row, states, text_of

from penstock import ActionCtx, App, DeclarationError, Message, Retry, Table, sync
from penstock.outbox.backfill import BackfillProgress
from penstock.outbox.outbox import MessageCriteria
from penstock.reactive.tracing import trace_filter
from penstock.schema.table import definition_of


async def test_it_begins_with_the_rows_that_there_are_or_with_what_comes(database_url: str) -> None:
    await rows_before(database_url, Item(note="a"), Item(note="b"))
    stage = several({start: {"start": start} for start in ("beginning", "end")})
    async with stage.open(database_url) as test:
        await stage.insert(test, Item(note="c"))
        await drain(test)
        assert await handed(stage, test) == {"beginning": ["a", "b", "c"], "end": ["c"]}
        assert {text_of(one): one.older for one in stage.got} == {"a": True, "b": True, "c": False}
        numbers = [one.number for one in stage.got if one.outbox == "beginning"]
        assert numbers == sorted(set(numbers))
        assert (await outbox_row(test, "beginning")).backfill is None
    async with stage.open(database_url, clock=test.clock) as test:
        stage.got.clear()
        await drain(test)
        assert stage.texts() == [], "and once"


@pytest.mark.parametrize("how", FILTERS)
async def test_rows_that_enter_while_older_ones_are_read_come_once(database_url: str, how: str) -> None:
    ids = await rows_before(database_url, *[Item(note=f"n{number}", value=0) for number in range(10)])
    ids += await rows_before(database_url, *[Item(note=f"y{number}", value=1) for number in range(10, 250)])
    stage = staged(filter=FILTERS[how], mutation=True)
    async with stage.open(database_url) as test:
        await stage.patch(test, Item, ids[0], note="y0", value=1)
        await stage.patch(test, Item, ids[249], lane="b")
        await pieces(test)
        await stage.patch(test, Item, ids[1], note="y1", value=1)
        await stage.patch(test, Item, ids[240], lane="b")
        await stage.patch(test, Item, ids[245], note="n", value=0)
        await stage.patch(test, Item, ids[245], note="y245", value=1)
        await drain(test)
        expected = Counter({f"y{number}": 1 for number in [0, 1, *range(10, 250)]})
        assert Counter(await stage.written(test)) == expected


async def test_an_older_row_that_fails_keeps_count_of_its_attempts_while_others_are_written(database_url: str) -> None:
    await rows_before(database_url, *[Item(note=text) for text in "abc"])
    stage = several({policy: {"on_failure": policy} for policy in POLICIES}, "b")
    async with stage.open(database_url) as test:
        for number in range(3):
            await drain(test, TEN)
            await stage.insert(test, Item(note=f"new {number}"))
        await drain(test, timedelta(seconds=1))
        row = await outbox_row(test, "halt")
        rest = ["a", "c", "new 0", "new 1", "new 2"]
        assert await handed(stage, test) == {"halt": ["a"], "halt_key": rest, "park": rest}
        assert row.trouble is not None
        assert row.trouble.halted
        assert (await states(test, "halt_key"), await states(test, "park")) == (["halted"], ["parked"])
        stage.fails = lambda _message: None
        for policy in POLICIES:
            await test.engine.store.outboxes.retry(policy, test.clock.now())
        await drain(test, timedelta(seconds=2))
        got = await handed(stage, test)
        assert got == {"halt": ["a", "b", *rest[1:]], "halt_key": [*rest, "b"], "park": [*rest, "b"]}


ORDERS: list[tuple[str, ...]] = [(), ("value",)]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("between", ["nothing", "a move", "a restart"])
async def test_the_number_of_an_older_row_that_failed_and_is_gone_is_given_to_no_other_one(
    database_url: str, between: str, order: tuple[str, ...]
) -> None:
    ids = await rows_before(database_url, *valued(6))
    stage = staged("2", "3", order_by=order, retry=Retry.fixed(timedelta(seconds=1), max_attempts=9, jitter=0))
    async with stage.open(database_url) as test:
        await drain(test)
        before = (await outbox_row(test)).trouble
        assert before is not None
        await stage.delete(test, Item, ids[2])
        if between == "a move":
            position = (await stage.app.outboxes.list(test))[0].position
            assert position is not None
            await stage.app.outboxes.move(test, "send", position)
        if between != "a restart":
            await drain(test, timedelta(seconds=5))
        clock = test.clock
    async with stage.open(database_url, clock=clock) as test:
        await drain(test, timedelta(seconds=5))
        for _ in range(2):
            trouble = (await outbox_row(test)).trouble
            assert trouble is not None
            assert (trouble.key, trouble.seq) == (f'["{ids[3]}"]', before.seq + 1)
            assert not await test.engine.store.outboxes.skip("send", before.seq)
            await drain(test, timedelta(seconds=5))
        assert await test.engine.store.outboxes.skip("send", before.seq + 1)
        await drain(test, timedelta(seconds=5))
        assert stage.texts() == ["0", "1", "4", "5"]
        numbers = Counter(one.number for one in stage.got)
        assert all(number == 1 for number in numbers.values())


def test_what_is_left_of_older_rows_is_read_as_it_was_written() -> None:
    left = BackfillProgress(after='[1, "ž"]', count=7, order=("a", "b"), base=2**40)
    assert BackfillProgress.parse(left.text()) == left
    assert left.after_row("x").number == left.number + 1
    assert left.after_row("x", left.number + 5).count == 12
    assert left.at_number(left.number - 3) == left


class Box(Table):
    note: str = ""


ALL = ("insert", "update", "delete")
MEANINGS: dict[str, Any] = {
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
    first = staged(filter=MEANINGS["y"], on=ALL, start=start)
    second = staged(filter=MEANINGS[then], on=ALL, start=start)
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


@pytest.mark.parametrize("how", MEANINGS)
def test_a_meaning_is_read_as_it_was_written(how: str) -> None:
    condition = trace_filter(definition_of(Item), MEANINGS[how], "a test")
    meaning = MessageCriteria(condition=condition, kinds=("change", "enter"), fields=("note",))
    assert MessageCriteria.parse(meaning.text()) == meaning
    assert MessageCriteria.parse(MessageCriteria().text()) == MessageCriteria()


@pytest.mark.parametrize("later", [{"mutation": True, "batch": 3}, None])
@pytest.mark.parametrize("policy", POLICIES)
async def test_another_handler_under_the_same_name_goes_on_where_the_one_before_was(
    database_url: str, policy: str, later: dict[str, Any] | None
) -> None:
    common: dict[str, Any] = {"on_failure": policy, "partition_by": "note", "start": "end", "retry": ONCE}
    first, second = staged("b", **common), OutboxStage(Item)

    async def deliver(ctx: ActionCtx, message: Message[Item]) -> None:
        second.got.append(message)

    if later is None:
        second.app.outbox(Item, name="send", **common)(deliver)  # only the name of the handler is another one
    else:
        second.outbox(Item, **common, **later)
    async with begun(first, database_url, "a", "b", "c", "b") as test:
        await drain(test, timedelta(seconds=1))
        assert first.texts() == (["a"] if policy == "halt" else ["a", "c"])
    async with second.open(database_url, clock=test.clock) as test:
        await second.insert(test, Item(note="d"))
        await drain(test, timedelta(days=1))
        await second.app.outboxes.retry(test, "send")
        for _ in range(2):
            await drain(test, timedelta(days=1))
        found = (await handed(second, test))["send"]
        assert sorted(found) == (["b", "b", "c", "d"] if policy == "halt" else ["b", "b", "d"]), "each once"
        if policy == "halt":
            assert found == ["b", "c", "b", "d"]
        assert ((await outbox_row(test)).delivered, await aside(test)) == (5, [])


def test_a_handler_whose_ctx_is_of_the_other_kind_is_refused() -> None:
    async def awaits(ctx: sync.ActionCtx, item: Item) -> None: ...

    def waits(ctx: ActionCtx, item: Item) -> None: ...

    for handler in (awaits, waits):
        declare: Any = App().outbox(Item, name="send")
        with pytest.raises(DeclarationError, match=r"takes a .*ActionCtx\. .* def those of penstock\.sync"):
            declare(handler)
