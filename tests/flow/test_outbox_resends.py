"""Rows that an outbox sends again because somebody asks for it: which ones, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from stage.items import ONCE, POLICIES, TEN, Item, broken, handed, several, staged, valued
from stage.outboxes import OutboxStage, drain, error_of, failing, outbox_row, run_sql, sql
from stage.waits import SOON

from penstock.errors import ContextError, DeclarationError, ValueInvalid
from penstock.store.session import OpenTransaction
from penstock.testing import TestApp


async def handed_over(stage: OutboxStage, test: TestApp, *rows: Item) -> list[Any]:
    """Rows that were handed over; their ids."""
    ids = await stage.insert(test, *rows)
    await drain(test)
    stage.got.clear()
    return ids


# ----- which rows


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


# ----- in which order


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


# ----- what fails


async def test_one_that_is_sent_again_fails_as_any_other(database_url: str) -> None:
    stage = several({policy: {"on_failure": policy} for policy in POLICIES}, retry=ONCE)
    async with stage.open(database_url) as test:
        await handed_over(stage, test, *valued(3))
        stage.fails = failing(broken, "1")
        for policy in POLICIES:
            await stage.app.outboxes.resend(test, policy, "value > 0")
        await drain(test)
        assert await handed(stage, test) == {"halt_key": ["2"], "park": ["2"]}
        stage.fails = lambda _message: None
        for policy in POLICIES:
            await stage.app.outboxes.retry(test, policy)
        await drain(test, TEN)
        assert await handed(stage, test) == {"halt": ["1", "2"], "halt_key": ["2", "1"], "park": ["2", "1"]}


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
