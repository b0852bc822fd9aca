"""What outboxes are declared and looked after with: sets mean the same everywhere, and what cannot be is refused."""

from __future__ import annotations

from typing import Any

import pytest
from stage.outboxes import OutboxStage, drain, failing, states

from penstock import DeclarationError, NonRetryableError, OutboxNotFound, Table, TaskFilter, ValueInvalid
from penstock.store.sqlite.dialect import SQLITE

NAMES = ("note", *(f"c{number}" for number in range(9)))


class Wide(Table):
    note: str = ""
    c0: int = 0
    c1: int = 0
    c2: int = 0
    c3: int = 0
    c4: int = 0
    c5: int = 0
    c6: int = 0
    c7: int = 0
    c8: int = 0


def declared(**options: Any) -> tuple[str, str]:
    stage = OutboxStage(Wide)
    stage.outbox(Wide, **options)
    (one,) = stage.app.outboxes
    return one.outbox.spec(), one.interest(SQLITE).digest


# ----- sets


@pytest.mark.parametrize("several", [set, frozenset])
def test_sets_are_declared_alike_in_each_process(several: Any) -> None:
    events = ("delete", "insert", "truncate", "update")
    assert declared(fields=several(NAMES)) == declared(fields=tuple(sorted(NAMES)))
    assert declared(on=several(events)) == declared(on=events)


@pytest.mark.parametrize("several", [set, frozenset])
def test_a_set_has_no_order_for_rows(several: Any) -> None:
    with pytest.raises(DeclarationError, match=f"order_by is a tuple of fields, not a {several.__name__}"):
        declared(order_by=several({"c0", "c1"}))


@pytest.mark.parametrize("fields", [{1, "note"}, {None}])
def test_a_set_of_something_else_is_refused(fields: Any) -> None:
    with pytest.raises(DeclarationError, match="has no field"):
        declared(fields=fields)


def test_what_is_none_is_left_out() -> None:
    none: dict[str, Any] = dict.fromkeys(("fields", "partition_by", "order_by"))
    assert declared(**none) == declared()
    stage = OutboxStage(Wide)
    stage.outbox("news", **none)
    (one,) = stage.app.outboxes
    assert one.outbox.topic == "news"


@pytest.mark.parametrize("option", [{"on": None}, {"fields": ()}, {"order_by": "note"}, {"partition_by": "note"}])
def test_a_topic_has_no_options_of_tables(option: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError, match="are for tables"):
        OutboxStage(Wide).outbox("news", **option)


# ----- looking after them


@pytest.mark.parametrize("reason", [None, 5, b"why", "", " \n"])
async def test_a_reason_is_a_text(sqlite_url: str, reason: Any) -> None:
    stage = OutboxStage(Wide)
    stage.outbox(Wide)
    async with stage.open(sqlite_url) as test:
        with pytest.raises(ValueInvalid, match="Skipping a message needs a reason"):
            await stage.app.outboxes.skip(test, "send", 1, reason)


@pytest.mark.parametrize("numbers", [5, "5", 0, object()])
async def test_numbers_come_several_at_once(sqlite_url: str, numbers: Any) -> None:
    stage = OutboxStage(Wide)
    stage.outbox(Wide)
    async with stage.open(sqlite_url) as test:
        with pytest.raises(ValueInvalid, match="numbers takes a list"):
            await stage.app.outboxes.retry(test, "send", numbers)


@pytest.mark.parametrize("several", [list, set, iter])
async def test_numbers_may_come_from_anything_that_has_several(sqlite_url: str, several: Any) -> None:
    stage = OutboxStage(Wide)
    stage.outbox(Wide, on_failure="park")
    stage.fails = failing(lambda: NonRetryableError("no"), "a", "b")
    async with stage.open(sqlite_url) as test:
        await stage.insert(test, Wide(note="a"), Wide(note="b"))
        await drain(test)
        (one, _other) = (await stage.app.outboxes.messages(test, "send")).messages
        assert await stage.app.outboxes.retry(test, "send", several([one.number])) == 1
        assert await states(test) == ["waiting", "parked"]


@pytest.mark.parametrize("given", [None, 5, "parked", ["nowhere"], [["parked"]]])
async def test_states_are_some_of_those_that_there_are(sqlite_url: str, given: Any) -> None:
    stage = OutboxStage(Wide)
    stage.outbox(Wide)
    async with stage.open(sqlite_url) as test:
        with pytest.raises(ValueInvalid, match="states takes some of"):
            await stage.app.outboxes.messages(test, "send", states=given)


@pytest.mark.parametrize("to", [None, 5, b"end"])
async def test_a_place_is_a_text_or_a_time(sqlite_url: str, to: Any) -> None:
    stage = OutboxStage(Wide)
    stage.outbox(Wide)
    async with stage.open(sqlite_url) as test:
        with pytest.raises(ValueInvalid, match="move takes 'beginning', 'end', a time or a position"):
            await stage.app.outboxes.move(test, "send", to)


@pytest.mark.parametrize("name", [None, 5, ["send"]])
async def test_what_is_no_name_is_none_of_an_outbox(sqlite_url: str, name: Any) -> None:
    stage = OutboxStage(Wide)
    stage.outbox(Wide)
    async with stage.open(sqlite_url) as test:
        for verb in ("messages", "retry", "pause", "resume", "rebuild", "drop"):
            with pytest.raises(OutboxNotFound, match="knows no outbox"):
                await getattr(stage.app.outboxes, verb)(test, name)


@pytest.mark.parametrize("where", [None, "task", {}])
async def test_rows_of_tasks_are_picked_by_a_filter(sqlite_url: str, where: Any) -> None:
    stage = OutboxStage(Wide)
    async with stage.open(sqlite_url) as test:
        for verb in ("records", "count", "retry", "cancel", "skip", "delete"):
            with pytest.raises(ValueInvalid, match="are picked by a TaskFilter"):
                await getattr(stage.app.tasks, verb)(test, where)
        assert await stage.app.tasks.count(test, TaskFilter()) == {}
