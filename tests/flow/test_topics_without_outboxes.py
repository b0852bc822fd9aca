"""A topic whose outboxes are all gone: what is sent to it is taken, and dropped in time, whoever reads the feed."""

from __future__ import annotations

from datetime import timedelta

import pytest
from stage.outboxes import OutboxStage, drain, send
from stage.reactive import Stage

from penstock.changes.position import BEGINNING
from penstock.changes.rotation import SLOT_AGE
from penstock.services.pruner import Pruner
from penstock.testing import TestApp, TestClock


def listening(topic: str, name: str) -> OutboxStage:
    stage = OutboxStage()
    stage.outbox(topic, name)
    return stage


async def orphaned(url: str) -> TestClock:
    """Have a topic that no outbox has any more, with a message that was read and one that was not; the time."""
    stage = listening("gone", "old")
    async with stage.open(url) as test:
        await send(test, "gone", '"read"')
        await drain(test)
        await send(test, "gone", '"unread"')
        await stage.app.outboxes.drop(test, "old")
        assert stage.texts() == ["read"]
        return test.clock


async def prune(test: TestApp) -> None:
    """Have the pruner look after the feed for a while."""
    pruner = test.make_service("pruner")
    assert isinstance(pruner, Pruner)
    for _ in range(6):
        test.clock.advance(SLOT_AGE)
        await pruner.tick()


async def kept(test: TestApp) -> list[str | None]:
    return [one.after for one in (await test.engine.store.changes.read(BEGINNING, 100)).changes]


async def test_with_no_reader_at_all_nothing_is_kept(database_url: str) -> None:
    clock = await orphaned(database_url)
    async with Stage().open(database_url, clock=clock) as test:
        assert await send(test, "gone", '"later"'), "it is no error to send to it"
        assert await kept(test)
        await prune(test)
        assert await kept(test) == []


async def test_another_outbox_passes_it_by_and_loses_nothing_of_its_own(database_url: str) -> None:
    clock = await orphaned(database_url)
    stage = listening("here", "new")
    async with stage.open(database_url, clock=clock) as test:
        for number in range(3):
            await send(test, "gone", f'"dead {number}"')
            await send(test, "here", f'"{number}"')
        await prune(test)
        assert '"2"' in await kept(test), "it is not delivered yet"
        await drain(test)
        assert stage.texts() == ["0", "1", "2"]
        await send(test, "gone", '"dead"')
        for _ in range(2):
            await drain(test, timedelta(seconds=6))  # who has nothing to deliver moves on all the same
        await prune(test)
        assert await kept(test) == []


@pytest.mark.parametrize("pruned", [False, True])
async def test_a_new_outbox_of_it_begins_with_what_is_still_kept(database_url: str, *, pruned: bool) -> None:
    clock = await orphaned(database_url)
    stage = listening("gone", "again")
    async with Stage().open(database_url, clock=clock) as test:
        if pruned:
            await prune(test)
    async with stage.open(database_url, clock=clock) as test:
        await send(test, "gone", '"new"')
        await drain(test)
        assert stage.texts() == (["new"] if pruned else ["read", "unread", "new"])
