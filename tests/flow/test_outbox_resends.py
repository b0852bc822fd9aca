"""Rows that an outbox sends again, and what outboxes are declared and looked after with: what cannot be is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from flow.items import Item, several, staged, valued
from stage.databases import run_sql, sql
from stage.outboxes import OutboxStage, drain, error_of, failing, outbox_row, states
from stage.waits import SOON

from penstock import DeclarationError, NonRetryableError, OutboxNotFound, Table, TaskFilter, ValueInvalid
from penstock.errors import ContextError
from penstock.store.session import OpenTransaction
from penstock.store.sqlite.dialect import SQLITE
from penstock.testing import TestApp


async def handed_over(stage: OutboxStage, test: TestApp, *rows: Item) -> list[Any]:
    """Rows that were handed over; their ids."""
    ids = await stage.insert(test, *rows)
    await drain(test)
    stage.got.clear()
    return ids


async def test_chosen_rows_come_once_more_as_they_are_now(database_url: str) -> None:
    wheres: dict[str, Any] = {"sends": "value in [1, 3]", "writes": lambda item: item.value.in_([1, 3])}
    stage = several({name: {"mutation": name == "writes"} for name in wheres})
    async with stage.open(database_url) as test:
        ids = await handed_over(stage, test, *valued(5))
        await sql(test, f"update item set note = 'new' where id = '{ids[1]}'")
        known = set(stage.tried)
        for name, where in wheres.items():
            assert await stage.app.outboxes.resend(test, name, where) == 2
        await drain(test)
        assert len(set(stage.tried) - known) == 4, "a sink that leaves out ids it has seen takes them"
        assert (await stage.written(test))[5:] == ["new", "3"]
        assert [(one.kind, one.resent, one.older, one.previous) for one in stage.got] == [
            ("insert", True, False, None)
        ] * 2
        assert [one.key for one in stage.got] == [ids[1], ids[3]]
        assert stage.texts() == ["new", "3"]
        assert (await outbox_row(test, "sends")).delivered == 7


async def test_rows_that_the_filter_of_the_outbox_does_not_mean_are_left_out(database_url: str) -> None:
    stage = staged(filter=lambda item: item.note.matches("^[ab]$"), fields=("value",))  # which SQL says wider
    async with stage.open(database_url) as test:
        await handed_over(stage, test, Item(note="a", value=1), Item(note="b", value=2), Item(note="c", value=3))
        assert await stage.app.outboxes.resend(test, "send", lambda item: item.note.matches("^[bc]$")) >= 1
        await drain(test)
        assert [one.row.value for one in stage.got if one.row is not None] == [2]


async def test_what_cannot_be_sent_again_is_refused(database_url: str) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item)
    stage.outbox(Item, "ends", on=("delete",))
    stage.outbox("news", "topic")
    async with stage.open(database_url) as test:
        resend = stage.app.outboxes.resend
        for name in ("ends", "topic"):
            with pytest.raises(ContextError, match="does not send inserted rows"):
                await resend(test, name, "value == 1")
        with pytest.raises(ValueInvalid, match="nothing"):
            await resend(test, "send", "nothing == 1")
        with pytest.raises(DeclarationError):
            await resend(test, "send", lambda item: item.nothing == 1)
        await drain(test)
        assert stage.texts() == []


async def test_they_come_in_the_order_of_the_outbox_behind_what_is_still_to_be_handed_over(database_url: str) -> None:
    stage = staged(order_by="value", on=("insert", "update"))
    async with stage.open(database_url) as test:
        values = [3, 1, 2, 0]
        await handed_over(stage, test, *[Item(note=str(value), value=value) for value in values])
        await sql(test, "update item set note = 'changed' where value = 2")
        assert await stage.app.outboxes.resend(test, "send", "value > 0") == 3
        await stage.insert(test, Item(note="after"))
        await drain(test)
        assert stage.texts() == ["update changed", "1", "changed", "3", "after"]


async def test_a_row_that_others_change_meanwhile_comes_as_it_was_before_that(database_url: str) -> None:
    stage = staged(on=("insert", "update"))
    async with stage.open(database_url) as test:
        await handed_over(stage, test, Item(note="a"))
        store, changing = test.engine.store.outboxes, list[asyncio.Task[Any]]()
        resend = store.resend

        async def slow(session: OpenTransaction, interest: int, rows: Sequence[tuple[str, str]]) -> None:
            changing.append(asyncio.ensure_future(sql(test, "update item set note = 'b'")))
            done, _ = await asyncio.wait(changing, timeout=0.1)
            assert not done, "it waits for the end of the transaction that sends the row"
            await resend(session, interest, rows)

        store.resend = slow  # type: ignore[method-assign]
        await stage.app.outboxes.resend(test, "send", "value == 0")
        await asyncio.wait_for(changing[0], SOON)
        await drain(test)
        assert stage.texts() == ["a", "update b"]


async def test_lost_changes_are_told_with_time_and_number_and_made_good(database_url: str) -> None:
    trigger = "drop trigger _penstock_change_{}_insert" + (" on item" if database_url.startswith("postgres") else "")
    stage = staged()
    async with stage.open(database_url) as test:
        await handed_over(stage, test, *valued(2))
        number = (await outbox_row(test)).interests[-1]
        for value in (7, 8, 9):  # three times somebody drops it, and it is found
            await run_sql(database_url, trigger.format(number))
            await stage.insert(test, Item(note=str(value), value=value))
            assert await test.engine.store.interests.mend(number)
        await stage.insert(test, Item(note="after"))
        await drain(test)
        error = await error_of(test)
        assert "ChangesLost: changes of table item could not be captured" in error
        assert "noted 3 times, from 20" in error
        assert "The last message before was handed over at 20" in error
        assert stage.texts() == []
        await run_sql(database_url, trigger.format(number))
        assert await test.engine.store.interests.mend(number)
        assert await stage.app.outboxes.resend(test, "send", "value >= 7") == 3
        trouble = (await outbox_row(test)).trouble
        assert trouble is not None
        await stage.app.outboxes.skip(test, "send", trouble.seq, "sent again")
        await drain(test)
        assert stage.texts() == ["after"]
        assert "noted once, at" in await error_of(test), "nobody was told of it when the other one was skipped"
        trouble = (await outbox_row(test)).trouble
        assert trouble is not None
        await stage.app.outboxes.skip(test, "send", trouble.seq, "sent again")
        await drain(test)
        assert stage.texts() == ["7", "8", "9"]


NAMES = ("note", *(f"c{number}" for number in range(9)), "maybe", "tags")


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
    maybe: int | None = None
    tags: tuple[str, ...] = ()


def declared(**options: Any) -> tuple[str, str]:
    stage = OutboxStage(Wide)
    stage.outbox(Wide, **options)
    (one,) = stage.app.outboxes
    return one.outbox.spec(), one.interest(SQLITE).digest


def test_sets_are_declared_alike_in_each_process_and_what_is_none_is_left_out() -> None:
    events = ("delete", "insert", "truncate", "update")
    for made in (set, frozenset):
        assert declared(fields=made(NAMES)) == declared(fields=tuple(sorted(NAMES)))
        assert declared(on=made(events)) == declared(on=events)
    none: dict[str, Any] = dict.fromkeys(("fields", "partition_by", "order_by"))
    assert declared(**none) == declared()
    stage = OutboxStage(Wide)
    stage.outbox("news", **none)
    (one,) = stage.app.outboxes
    assert one.outbox.topic == "news"


def test_what_cannot_be_declared_is_refused() -> None:
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (Wide, {"order_by": {"c0", "c1"}}, "order_by is a tuple of fields, not a set"),
        (Wide, {"order_by": "none"}, "no field 'none'"),
        (Wide, {"order_by": ("c0", "c0")}, "twice"),
        (Wide, {"order_by": "maybe"}, "may be None"),
        (Wide, {"order_by": "tags"}, "no order"),
        (Wide, {"order_by": "c0", "on": ("update",)}, "only with on="),
        (Wide, {"order_by": "c0", "start": "end"}, "begins behind them"),
        (Wide, {"fields": {1, "note"}}, "has no field"),
        (Wide, {"keep_for": timedelta(days=367)}, "keep_for is a timedelta of up to a year, not "),
        (Wide, {"linger": timedelta(hours=1), "batch": 2}, "linger is a timedelta of up to a minute, not "),
        (Wide, {"on": ("truncate",), "on_failure": "halt_key"}, "all keys"),
        ("news", {"on": None}, "are for tables"),
        ("news", {"fields": ()}, "are for tables"),
        ("news", {"order_by": "note"}, "for tables"),
        ("news", {"partition_by": "note"}, "are for tables"),
    ]
    for source, options, says in cases:
        with pytest.raises(DeclarationError, match=says):
            OutboxStage(Wide).outbox(source, **options)


REFUSED: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    *[("skip", (1, reason), {}, "Skipping a message needs a reason") for reason in (None, 5, " \n")],
    *[("retry", (numbers,), {}, "numbers takes a list") for numbers in (5, "5")],
    *[("messages", (), {"states": given}, "states takes some of") for given in (None, "parked", ["nowhere"])],
    *[("move", (to,), {}, "move takes 'beginning', 'end', a time or a position") for to in (None, b"end")],
    ("move", (datetime.fromisoformat("0001-01-01T00:00:00+14:00"),), {}, "no time in UTC"),
    *[("retry", ([1, number],), {}, "64 bits") for number in (2**63, -(2**63) - 1, True, 1.0, "1", None)],
    *[("skip", (number, "a test"), {}, "64 bits") for number in (2**63, True)],
    *[("messages", (), {"after": number}, "64 bits") for number in (2**63, True)],
    ("messages", (), {"limit": 0}, "limit"),
]


async def test_what_cannot_be_looked_after_is_refused(sqlite_url: str) -> None:
    stage = OutboxStage(Wide)
    stage.outbox(Wide, on_failure="park")
    stage.fails = failing(lambda: NonRetryableError("no"), "a", "b")
    async with stage.open(sqlite_url) as test:
        outboxes: Any = stage.app.outboxes
        for verb, args, options, says in REFUSED:
            with pytest.raises(ValueInvalid, match=says):
                await getattr(outboxes, verb)(test, "send", *args, **options)
        for name in (None, 5, ["send"]):
            for verb in ("messages", "retry", "pause", "resume", "rebuild", "drop"):
                with pytest.raises(OutboxNotFound, match="knows no outbox"):
                    await getattr(outboxes, verb)(test, name)
        where: Any
        for where in (None, "task", {}):
            for verb in ("records", "count", "retry", "cancel", "skip", "delete"):
                with pytest.raises(ValueInvalid, match="are picked by a TaskFilter"):
                    await getattr(stage.app.tasks, verb)(test, where)
        assert await stage.app.tasks.count(test, TaskFilter()) == {}

        await stage.insert(test, Wide(note="a"), Wide(note="b"))
        await drain(test)
        (one, other) = (await outboxes.messages(test, "send")).messages
        assert await outboxes.retry(test, "send", iter([one.number])) == 1, "from anything that has several"
        assert await states(test) == ["waiting", "parked"]
        assert await outboxes.retry(test, "send", {other.number}) == 1
