"""What is shown of messages that were put aside, or are older than their outbox, when they fail."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from stage.items import TEN, begun, of, rows_before, several, staged
from stage.outboxes import OutboxStage, drain

from penstock import OutboxPage
from penstock.app import Backend
from penstock.outbox.message import Message


async def test_one_that_waited_for_older_rows_and_fails_is_shown_once_and_whole(database_url: str) -> None:
    await rows_before(database_url, *of("older"))
    stage, tried = staged("first"), list[Message[Any]]()

    async def during(_ctx: object, message: Message[Any]) -> None:
        tried.append(message)

    stage.during = during
    async with stage.open(database_url) as test:
        outboxes = stage.app.outboxes
        await stage.insert(test, *of("first", "second"))
        await drain(test)
        failed = tried[-1]
        for _ in range(3):
            (now,) = await outboxes.list(test)
            assert (now.messages, now.waiting, now.error) == (2, 1, "ValueError: no")
            page = await outboxes.messages(test, "send")
            assert [(one.state, one.content["note"]) for one in page.messages] == [
                ("failing", "first"), ("waiting", "second"),
            ]  # fmt: skip
            head = page.messages[0]
            assert (head.number, head.id, head.kind) == (failed.number, failed.id, "insert")
            assert (head.key, head.written_at) == (failed.key, failed.written_at)
            await drain(test, TEN)
        (now,) = await outboxes.list(test)
        assert now.halted
        assert [one.state for one in await pages(stage, test, "send")] == ["failing", "waiting"]
        behind = await outboxes.messages(test, "send", states=["waiting"])
        assert [one.content["note"] for one in behind.messages] == ["second"]
        assert [one.state for one in (await outboxes.messages(test, "send", states=["failing"])).messages] == [
            "failing"
        ]
        await outboxes.skip(test, "send", failed.number, "of no use")
        await drain(test, TEN)
        assert stage.texts() == ["older", "second"]
        (now,) = await outboxes.list(test)
        assert (now.messages, now.waiting) == (0, 0)


@pytest.mark.parametrize("older", [False, True])
async def test_one_that_fails_is_shown_once_with_all_that_is_known_of_it(database_url: str, *, older: bool) -> None:
    await rows_before(database_url, *of(*["bad"] * older))
    states = {"halt": "failing", "halt_key": "halted", "park": "parked"}
    stage = several({policy: {"on_failure": policy} for policy in states}, "bad")
    async with begun(stage, database_url, *["bad"] * (not older)) as test:
        for _ in range(3):
            await drain(test, TEN)
            for policy in states:
                (found,) = await pages(stage, test, policy)
                assert (found.kind, found.content["note"]) == ("insert", "bad"), policy
                assert (found.written_at is None) is older, "nobody knows when an older row was written"
                assert found.failed_at is not None
        for policy, state in states.items():
            (found,) = await pages(stage, test, policy)
            assert found.state == state
        await stage.app.outboxes.retry(test, "park")
        await drain(test, timedelta(seconds=2))
        (again,) = await pages(stage, test, "park")
        assert (again.state, again.number, again.id, again.content) == (
            "failing", found.number, found.id, found.content,
        )  # fmt: skip
        now = next(one for one in await stage.app.outboxes.list(test) if one.name == "park")
        assert (now.messages, now.waiting, now.parked) == (1, 0, 0)


async def pages(stage: OutboxStage, test: Backend, name: str) -> list[Any]:
    """All messages, one to a page."""
    found, after = [], None
    while True:
        page: OutboxPage = await stage.app.outboxes.messages(test, name, limit=1, after=after)
        found += page.messages
        if page.next is None:
            return found
        after = page.next
