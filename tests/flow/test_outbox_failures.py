# mypy: disable-error-code="union-attr"
"""Outboxes: what becomes of messages that fail, and of those behind them."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest
from stage.families import TABLES, Child
from stage.outboxes import OutboxStage, aside, drain, failing, outbox_row, run_sql, states

from penstock import NonRetryableError, Retry, Snooze, Table
from penstock.outbox.message import Message

SOON = Retry.fixed(timedelta(seconds=10), max_attempts=3, jitter=0)
TEN = timedelta(seconds=10)


class Item(Table):
    note: str = ""
    lane: str = "a"
    value: int = 0


def broken() -> Exception:
    return ValueError("no")


def of(*notes: str) -> list[Item]:
    return [Item(note=note) for note in notes]


@pytest.mark.parametrize("mutation", [False, True])
async def test_one_that_fails_halts_all_behind_it_until_it_does_not(database_url: str, *, mutation: bool) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, retry=SOON, mutation=mutation)
    stage.fails = failing(broken, "b")
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of("a", "b", "c"))
        await drain(test)
        row = await outbox_row(test)
        assert row.trouble is not None
        assert (row.trouble.attempts, row.trouble.error, row.trouble.halted) == (1, "ValueError: no", False)
        assert row.delivered == 1
        for attempts, wait in ((2, 10), (3, 10), (4, 20), (5, 40)):
            await drain(test, timedelta(seconds=9))
            assert (await outbox_row(test)).trouble.attempts == attempts - 1, "not before its time"
            await drain(test, timedelta(seconds=wait - 9))
            trouble = (await outbox_row(test)).trouble
            assert (trouble.attempts, trouble.halted) == (attempts, attempts >= 3)
        stage.fails = failing(broken)
        await drain(test, timedelta(seconds=80))
        assert (await stage.written(test) if mutation else stage.texts()) == ["a", "b", "c"]
        row = await outbox_row(test)
        assert (row.trouble, row.delivered) == (None, 3)


@pytest.mark.parametrize("mutation", [False, True])
async def test_of_its_key_alone_those_behind_it_wait(database_url: str, *, mutation: bool) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, retry=SOON, on_failure="halt_key", partition_by="lane", mutation=mutation)
    stage.fails = failing(broken, "a1")
    async with stage.open(database_url) as test:
        rows = [Item(note=f"{lane}{number}", lane=lane) for number in (1, 2, 3) for lane in "ab"]
        await stage.insert(test, *rows)
        await drain(test)
        first = await stage.written(test) if mutation else stage.texts()
        assert first == ["b1", "b2", "b3"]
        assert await states(test) == ["halted", "waiting", "waiting"]
        await stage.insert(test, Item(note="a4", lane="a"), Item(note="b4", lane="b"))
        await drain(test, TEN)
        assert await states(test) == ["halted", "waiting", "waiting", "waiting"]
        stage.fails = failing(broken, "a3")
        await drain(test, TEN)
        assert await states(test) == ["halted", "waiting"]
        stage.fails = failing(broken)
        await drain(test, TEN)
        assert await states(test) == []
        got = await stage.written(test) if mutation else stage.texts()
        assert [text for text in got if text[0] == "a"] == ["a1", "a2", "a3", "a4"]
        assert (await outbox_row(test)).delivered == 8


FAILED, HALTED, PARKED = "outbox.failed", "outbox.halted", "outbox.parked"


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("halt", [FAILED, FAILED, FAILED, HALTED, FAILED, FAILED]),
        ("halt_key", [FAILED, FAILED, FAILED, HALTED, FAILED, FAILED]),
        ("park", [FAILED, FAILED, FAILED, PARKED]),
    ],
)
async def test_that_attempts_are_used_up_is_told_once_as_what_follows_from_it(
    database_url: str, caplog: pytest.LogCaptureFixture, policy: str, expected: list[str]
) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, retry=SOON, on_failure=policy)
    stage.fails = failing(broken, "a")
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of("a"))
        with caplog.at_level(logging.WARNING, "penstock"):
            for wait in (1, 1, 1, 2, 4):
                await drain(test, wait * TEN)
        assert [record.event for record in caplog.records if hasattr(record, "event")] == expected


@pytest.mark.parametrize("mutation", [False, True])
async def test_one_whose_attempts_are_used_up_is_parked_and_the_rest_flows(
    database_url: str, *, mutation: bool
) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, retry=SOON, on_failure="park", mutation=mutation)
    stage.fails = failing(broken, "b")
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of("a", "b", "c"))
        await drain(test)
        await drain(test, TEN)
        assert "parked" not in await states(test)
        await drain(test, TEN)
        (parked,) = await aside(test)
        assert (parked.state, parked.trouble.attempts, parked.trouble.error) == ("parked", 3, "ValueError: no")
        assert "raise error" in (parked.trouble.traceback or "")
        assert (await stage.written(test) if mutation else stage.texts()) == ["a", "c"]
        await drain(test, timedelta(days=1))
        assert await aside(test) == [parked], "and is not tried again by itself"
        stage.fails = failing(broken)
        assert await test.engine.store.outboxes.retry("send", test.clock.now(), [parked.change.seq]) == 1
        await drain(test, timedelta(seconds=2))
        assert await states(test) == []
        assert (await stage.written(test) if mutation else stage.texts()) == (["a", "c", "b"] if mutation else ["b"])
        assert (await outbox_row(test)).delivered == 3


async def test_one_that_was_parked_and_fails_again_is_parked_again(database_url: str) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, retry=SOON, on_failure="park")
    stage.fails = failing(broken, "a")
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of("a", "b"))
        for _ in range(4):
            await drain(test, TEN)
        assert stage.texts() == ["b"]
        (parked,) = await aside(test)
        await test.engine.store.outboxes.retry("send", test.clock.now())
        for _ in range(4):
            await drain(test, TEN)
        (again,) = await aside(test)
        assert (again.state, again.trouble.attempts) == ("parked", 3)
        assert again.change == parked.change
        await stage.insert(test, *of("c"))
        await drain(test, TEN)
        assert stage.texts() == ["c"]


async def test_what_says_that_trying_again_is_of_no_use_ends_at_once(database_url: str) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, "halts", retry=SOON)
    stage.outbox(Item, "halts_key", retry=SOON, on_failure="halt_key")
    stage.outbox(Item, "parks", retry=SOON, on_failure="park")
    stage.fails = failing(lambda: NonRetryableError("never"), "a")
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of("a", "b"))
        await drain(test)
        await drain(test, timedelta(days=1))
        trouble = (await outbox_row(test, "halts")).trouble
        assert (trouble.attempts, trouble.halted, trouble.retry_at) == (1, True, None)
        (halted,) = await aside(test, "halts_key")
        assert (halted.state, halted.trouble.attempts, halted.trouble.retry_at) == ("halted", 1, None)
        assert await states(test, "parks") == ["parked"]
        assert stage.texts() == ["b", "b"]
        stage.fails = failing(broken)
        for name in ("halts", "halts_key", "parks"):
            assert await test.engine.store.outboxes.retry(name, test.clock.now()) == 1
        await drain(test, timedelta(seconds=2))
        assert sorted(stage.texts()) == ["a", "a", "a", "b"]


@pytest.mark.parametrize("policy", ["halt", "halt_key", "park"])
async def test_one_that_snoozes_has_not_failed(database_url: str, policy: str) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, retry=Retry(max_attempts=1), on_failure=policy)
    stage.fails = failing(lambda: Snooze(timedelta(minutes=5)), "a")
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of("a", "b"))
        for _ in range(4):
            await drain(test, timedelta(minutes=5))
        assert len(set(stage.tried)) == (2 if policy == "halt_key" else 1)
        assert "parked" not in await states(test)
        stage.fails = failing(broken)
        await drain(test, timedelta(minutes=4))
        assert stage.texts() == (["b"] if policy == "halt_key" else [])
        await drain(test, timedelta(minutes=1))
        assert sorted(stage.texts()) == (["a"] if policy == "halt_key" else ["a", "b"])


@pytest.mark.parametrize("mutation", [False, True])
@pytest.mark.parametrize("policy", ["halt", "halt_key", "park"])
async def test_one_that_failed_can_be_skipped(database_url: str, policy: str, *, mutation: bool) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, retry=SOON, on_failure=policy, mutation=mutation)
    stage.fails = failing(broken, "b")
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of("a", "b", "c"))
        await drain(test)
        row, asides = await outbox_row(test), await aside(test)
        seq = row.trouble.seq if row.trouble is not None else asides[0].change.seq
        store = test.engine.store.outboxes
        assert not await store.skip("send", seq + 1)
        assert await store.skip("send", seq)
        assert not await store.skip("send", seq), "once"
        await drain(test, timedelta(seconds=2))
        await drain(test, TEN)
        assert (await stage.written(test) if mutation else stage.texts()) == ["a", "c"]
        row = await outbox_row(test)
        assert (row.skips, row.trouble, row.delivered, await states(test)) == ((), None, 2, [])


async def test_after_one_was_skipped_all_go_side_by_side_again(database_url: str) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, retry=SOON, parallelism=4)
    stage.fails = failing(broken, "b")
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of("a", "b", "c"))
        await drain(test)
        row = await outbox_row(test)
        assert await test.engine.store.outboxes.skip("send", row.trouble.seq)
        await drain(test, timedelta(seconds=2))
        at_once, most = 0, 0

        async def during(_ctx: object, _message: object) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            for _ in range(20):
                await test.engine.machine.sleep(0)
            at_once -= 1

        stage.during = during
        await stage.insert(test, *of(*"defghijk"))
        await drain(test, timedelta(seconds=2))
        assert most == 4
        assert sorted(stage.texts()) == sorted("acdefghijk")


@pytest.mark.parametrize("options", [{}, {"batch": 3}])
async def test_a_mutation_that_fails_as_it_commits_is_found_among_its_group(
    database_url: str, options: dict[str, Any]
) -> None:
    await run_sql(database_url, *TABLES)
    stage = OutboxStage(Item, Child)
    stage.outbox(Item, mutation=True, retry=SOON, **options)

    async def during(ctx: Any, message: Message[Item]) -> None:
        await ctx.db.insert(Child(number=int(message.row.note), parent=1 if message.row.note < "5" else 2))

    stage.during = during
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of(*"01234567"))
        await drain(test)
        assert await stage.written(test) == list("01234")
        trouble = (await outbox_row(test)).trouble
        assert (trouble.attempts, trouble.error.split(":")[0]) == (1, "ConstraintViolation")


@pytest.mark.parametrize("mutation", [False, True])
async def test_a_batch_is_never_larger_than_was_asked_for(database_url: str, *, mutation: bool) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, batch=4, retry=SOON, mutation=mutation)
    stage.fails = failing(broken, "2")
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of(*map(str, range(40))))
        await drain(test)
        assert (await stage.written(test) if mutation else sorted(set(stage.texts()))) == ["0", "1"]
        stage.fails = failing(broken)
        await drain(test, TEN)
        assert max(stage.calls) == 4
        assert stage.calls[-6:-1] == [4] * 5
        assert (await outbox_row(test)).delivered == 40


@pytest.mark.parametrize("options", [{"mutation": True}, {}, {"batch": 2}])
async def test_one_that_takes_too_long_has_failed(database_url: str, options: dict[str, Any]) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, timeout=timedelta(seconds=1), retry=SOON, on_failure="park", **options)

    async def during(_ctx: Any, message: Message[Item]) -> None:
        if message.row.note == "b":
            await asyncio.Event().wait()

    stage.during = during
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of("a", "b", "c"))
        for _ in range(4):
            await drain(test, TEN)
        (parked,) = await aside(test)
        assert (parked.trouble.attempts, parked.trouble.error.split(":")[0]) == (3, "CallTimeout")
        assert (await stage.written(test) if options.get("mutation") else sorted({*stage.texts()})) == ["a", "c"]
