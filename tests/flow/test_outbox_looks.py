"""What is shown of messages that were put aside, or are older than their outbox, when they fail."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from stage.outboxes import OutboxStage, drain, failing
from stage.reactive import Stage

from penstock import OutboxPage, OutboxStatus, Retry, Table
from penstock.app import Backend
from penstock.outbox.message import Message

SOON = Retry.fixed(timedelta(seconds=10), max_attempts=3, jitter=0)
TEN = timedelta(seconds=10)


class Item(Table):
    note: str = ""
    lane: str = "a"


def staged(*fails: str, **options: Any) -> OutboxStage:
    stage = OutboxStage(Item)
    stage.outbox(Item, retry=SOON, **options)
    stage.fails = failing(lambda: ValueError("no"), *fails)
    return stage


async def rows_before(url: str, *notes: str) -> None:
    stage = Stage(Item)
    async with stage.open(url) as test:
        await stage.insert(test, *[Item(note=note) for note in notes])


async def status(stage: OutboxStage, test: Backend) -> OutboxStatus:
    (found,) = await stage.app.outboxes.list(test)
    return found


async def test_one_that_waited_for_older_rows_and_fails_is_shown_once_and_whole(database_url: str) -> None:
    await rows_before(database_url, "older")
    stage = staged("first", on_failure="halt")
    tried: list[Message[Any]] = []

    async def during(_ctx: object, message: Message[Any]) -> None:
        tried.append(message)

    stage.during = during
    async with stage.open(database_url) as test:
        outboxes = stage.app.outboxes
        await stage.insert(test, Item(note="first"), Item(note="second"))
        await drain(test)
        failed = tried[-1]
        for _ in range(3):
            now = await status(stage, test)
            assert (now.messages, now.waiting, now.error) == (2, 1, "ValueError: no")
            page = await outboxes.messages(test, "send")
            assert [(one.state, one.content["note"]) for one in page.messages] == [
                ("failing", "first"), ("waiting", "second"),
            ]  # fmt: skip
            head = page.messages[0]
            assert (head.number, head.id, head.kind) == (failed.number, failed.id, "insert")
            assert (head.key, head.written_at) == (failed.key, failed.written_at)
            await drain(test, TEN)
        assert (await status(stage, test)).halted
        assert [one.state for one in await pages(stage, test)] == ["failing", "waiting"]
        behind = await outboxes.messages(test, "send", states=["waiting"])
        assert [one.content["note"] for one in behind.messages] == ["second"]
        assert [one.state for one in (await outboxes.messages(test, "send", states=["failing"])).messages] == [
            "failing"
        ]
        await outboxes.skip(test, "send", failed.number, "of no use")
        await drain(test, TEN)
        assert stage.texts() == ["older", "second"]
        now = await status(stage, test)
        assert (now.messages, now.waiting) == (0, 0)


@pytest.mark.parametrize("older", [False, True])
async def test_one_that_was_parked_and_fails_again_is_shown_once(database_url: str, *, older: bool) -> None:
    await rows_before(database_url, *["bad"] * older)
    stage = staged("bad", on_failure="park")
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *[Item(note="bad")] * (not older))
        for _ in range(4):
            await drain(test, TEN)
        (parked,) = await pages(stage, test)
        assert parked.state == "parked"
        await stage.app.outboxes.retry(test, "send")
        await drain(test, timedelta(seconds=2))
        (failing,) = await pages(stage, test)
        assert (failing.state, failing.number, failing.id) == ("failing", parked.number, parked.id)
        assert failing.content == parked.content
        now = await status(stage, test)
        assert (now.messages, now.waiting, now.parked) == (1, 0, 0)


@pytest.mark.parametrize("policy", ["halt", "halt_key", "park"])
async def test_when_an_older_row_was_written_nobody_knows(database_url: str, policy: str) -> None:
    await rows_before(database_url, "older")
    stage = staged("older", on_failure=policy)
    async with stage.open(database_url) as test:
        for _ in range(4):
            await drain(test, TEN)
            (found,) = await pages(stage, test)
            assert (found.written_at, found.kind, found.content["note"]) == (None, "insert", "older")
            assert found.failed_at is not None
        (found,) = await pages(stage, test)
        assert found.state == {"halt": "failing", "halt_key": "halted", "park": "parked"}[policy]


async def pages(stage: OutboxStage, test: Backend) -> list[Any]:
    """All messages, one to a page."""
    found, after = [], None
    while True:
        page: OutboxPage = await stage.app.outboxes.messages(test, "send", limit=1, after=after)
        found += page.messages
        if page.next is None:
            return found
        after = page.next
