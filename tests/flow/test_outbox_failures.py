# mypy: disable-error-code="union-attr"
"""Outboxes: what becomes of messages that fail, and of those behind them."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest
from stage.families import TABLES, Child
from stage.items import ONCE, POLICIES, SOON, TEN, Item, begun, broken, handed, of, several, staged
from stage.outboxes import OutboxStage, aside, drain, failing, outbox_row, run_sql, states

from penstock import NonRetryableError, Retry, Snooze
from penstock.outbox.message import Message

BOTH: dict[str, dict[str, Any]] = {"sends": {}, "writes": {"mutation": True}}
EACH: dict[str, dict[str, Any]] = {policy: {"on_failure": policy} for policy in POLICIES}


async def test_one_that_fails_halts_all_behind_it_until_it_does_not(database_url: str) -> None:
    stage = several(BOTH, "b")
    async with begun(stage, database_url, "a", "b", "c") as test:
        for name in BOTH:
            row = await outbox_row(test, name)
            assert row.trouble is not None
            assert (row.trouble.attempts, row.trouble.error, row.trouble.halted) == (1, "ValueError: no", False)
            assert row.delivered == 1
        for attempts, wait in ((2, 10), (3, 10), (4, 20), (5, 40)):
            await drain(test, timedelta(seconds=9))
            before = [(await outbox_row(test, name)).trouble for name in BOTH]
            assert [trouble.attempts for trouble in before] == [attempts - 1] * 2, "not before its time"
            await drain(test, timedelta(seconds=wait - 9))
            after = [(await outbox_row(test, name)).trouble for name in BOTH]
            assert [(trouble.attempts, trouble.halted) for trouble in after] == [(attempts, attempts >= 3)] * 2
        stage.fails = failing(broken)
        await drain(test, timedelta(seconds=80))
        assert await handed(stage, test) == {key: ["a", "b", "c"] for key in BOTH}
        for name in BOTH:
            row = await outbox_row(test, name)
            assert (row.trouble, row.delivered) == (None, 3)


async def test_of_its_key_alone_those_behind_it_wait(database_url: str) -> None:
    stage = several(BOTH, "a1", on_failure="halt_key", partition_by="lane")
    async with stage.open(database_url) as test:

        async def all_states() -> list[str]:
            (found,) = {tuple(await states(test, name)) for name in BOTH}
            return list(found)

        rows = [Item(note=f"{lane}{number}", lane=lane) for number in (1, 2, 3) for lane in "ab"]
        await stage.insert(test, *rows)
        await drain(test)
        assert await handed(stage, test) == {key: ["b1", "b2", "b3"] for key in BOTH}
        assert await all_states() == ["halted", "waiting", "waiting"]
        await stage.insert(test, Item(note="a4", lane="a"), Item(note="b4", lane="b"))
        await drain(test, TEN)
        assert await all_states() == ["halted", "waiting", "waiting", "waiting"]
        stage.fails = failing(broken, "a3")
        await drain(test, TEN)
        assert await all_states() == ["halted", "waiting"]
        stage.fails = failing(broken)
        await drain(test, TEN)
        assert await all_states() == []
        for name, texts in (await handed(stage, test)).items():
            assert [text for text in texts if text[0] == "a"] == ["a1", "a2", "a3", "a4"]
            assert (await outbox_row(test, name)).delivered == 8


async def test_that_attempts_are_used_up_is_told_once_as_what_follows_from_it(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage = several(EACH, "a")
    with caplog.at_level(logging.WARNING, "penstock"):
        async with begun(stage, database_url, "a") as test:
            for wait in (1, 1, 2, 4):
                await drain(test, wait * TEN)
    told = [record for record in caplog.records if hasattr(record, "event")]
    failed, halted, parked = "outbox.failed", "outbox.halted", "outbox.parked"
    expected = [failed, failed, failed, halted, failed, failed]
    for policy, events in (("halt", expected), ("halt_key", expected), ("park", [failed, failed, failed, parked])):
        assert [one.event for one in told if one.facts["outbox"] == policy] == events  # type: ignore[attr-defined]


async def test_one_whose_attempts_are_used_up_is_parked_and_the_rest_flows(database_url: str) -> None:
    stage = several(BOTH, "b", on_failure="park")
    async with begun(stage, database_url, "a", "b", "c") as test:
        await drain(test, TEN)
        assert "parked" not in [*await states(test, "sends"), *await states(test, "writes")]
        await drain(test, TEN)
        parked = {name: (await aside(test, name))[0] for name in BOTH}
        for one in parked.values():
            assert (one.state, one.trouble.attempts, one.trouble.error) == ("parked", 3, "ValueError: no")
            assert "raise error" in (one.trouble.traceback or "")
        assert await handed(stage, test) == {key: ["a", "c"] for key in BOTH}
        await drain(test, timedelta(days=1))
        for name, one in parked.items():
            assert await aside(test, name) == [one], "it is not tried again by itself"
            await test.engine.store.outboxes.retry(name, test.clock.now())
        for _ in range(4):
            await drain(test, TEN)
        for name, one in parked.items():
            (again,) = await aside(test, name)
            assert (again.state, again.trouble.attempts) == ("parked", 3), "it was tried, and failed again"
            assert again.change == one.change
        stage.fails = failing(broken)
        await stage.insert(test, *of("d"))
        await drain(test, TEN)
        for name, one in parked.items():
            assert await test.engine.store.outboxes.retry(name, test.clock.now(), [one.change.seq]) == 1
        await drain(test, timedelta(seconds=2))
        assert await handed(stage, test) == {key: ["a", "c", "d", "b"] for key in BOTH}
        for name in BOTH:
            assert (await states(test, name), (await outbox_row(test, name)).delivered) == ([], 4)


async def test_what_says_that_trying_again_is_of_no_use_ends_at_once(database_url: str) -> None:
    stage = several(EACH)
    stage.fails = failing(lambda: NonRetryableError("never"), "a")
    async with begun(stage, database_url, "a", "b") as test:
        await drain(test, timedelta(days=1))
        trouble = (await outbox_row(test, "halt")).trouble
        assert (trouble.attempts, trouble.halted, trouble.retry_at) == (1, True, None)
        (halted,) = await aside(test, "halt_key")
        assert (halted.state, halted.trouble.attempts, halted.trouble.retry_at) == ("halted", 1, None)
        assert await states(test, "park") == ["parked"]
        assert await handed(stage, test) == {"halt_key": ["b"], "park": ["b"]}
        stage.fails = failing(broken)
        for name in EACH:
            assert await test.engine.store.outboxes.retry(name, test.clock.now()) == 1
        await drain(test, timedelta(seconds=2))
        assert await handed(stage, test) == {"halt": ["a", "b"], "halt_key": ["b", "a"], "park": ["b", "a"]}


async def test_one_that_snoozes_has_not_failed(database_url: str) -> None:
    stage = several(EACH, retry=Retry(max_attempts=1))
    stage.fails = failing(lambda: Snooze(timedelta(minutes=5)), "a")
    async with begun(stage, database_url, "a", "b") as test:
        for _ in range(3):
            await drain(test, timedelta(minutes=5))
        assert not [name for name in EACH if "parked" in await states(test, name)]
        assert await handed(stage, test) == {"halt_key": ["b"]}
        stage.fails = failing(broken)
        await drain(test, timedelta(minutes=4))
        assert await handed(stage, test) == {"halt_key": ["b"]}, "not before its time"
        await drain(test, timedelta(minutes=1))
        assert await handed(stage, test) == {"halt_key": ["b", "a"], "halt": ["a", "b"], "park": ["a", "b"]}


async def test_one_that_failed_can_be_skipped(database_url: str) -> None:
    outboxes = {f"{policy} {name}": EACH[policy] | BOTH[name] for policy in EACH for name in BOTH}
    stage = several(outboxes, "b")
    async with begun(stage, database_url, "a", "b", "c") as test:
        store = test.engine.store.outboxes
        for name in outboxes:
            row, asides = await outbox_row(test, name), await aside(test, name)
            seq = row.trouble.seq if row.trouble is not None else asides[0].change.seq
            assert not await store.skip(name, seq + 1)
            assert await store.skip(name, seq)
            assert not await store.skip(name, seq), "once"
        await drain(test, timedelta(seconds=2))
        await drain(test, TEN)
        assert await handed(stage, test) == {key: ["a", "c"] for key in outboxes}
        for name in outboxes:
            row = await outbox_row(test, name)
            assert (row.skips, row.trouble, row.delivered, await states(test, name)) == ((), None, 2, []), name


async def test_after_one_was_skipped_all_go_side_by_side_again(database_url: str) -> None:
    stage = staged("b", parallelism=4)
    async with begun(stage, database_url, "a", "b", "c") as test:
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
    async with begun(stage, database_url, *"01234567") as test:
        assert await stage.written(test) == list("01234")
        trouble = (await outbox_row(test)).trouble
        assert (trouble.attempts, trouble.error.split(":")[0]) == (1, "ConstraintViolation")


@pytest.mark.parametrize("mutation", [False, True])
async def test_a_batch_is_never_larger_than_was_asked_for(database_url: str, *, mutation: bool) -> None:
    stage = staged("2", batch=4, mutation=mutation)
    async with begun(stage, database_url, *map(str, range(40))) as test:
        assert sorted({*stage.texts(), *await stage.written(test)}) == ["0", "1"]
        stage.fails = failing(broken)
        await drain(test, TEN)
        assert max(stage.calls) == 4
        assert stage.calls[-6:-1] == [4] * 5
        assert (await outbox_row(test)).delivered == 40


async def test_one_that_takes_too_long_has_failed(database_url: str) -> None:
    outboxes = BOTH | {"batches": {"batch": 2}}
    stage = several(outboxes, timeout=timedelta(seconds=1), retry=ONCE, on_failure="park")

    async def during(_ctx: Any, message: Message[Item]) -> None:
        if message.row.note == "b":
            await asyncio.Event().wait()

    stage.during = during
    async with begun(stage, database_url, "a", "b", "c") as test:
        for name in outboxes:
            (parked,) = await aside(test, name)
            assert (parked.trouble.attempts, parked.trouble.error.split(":")[0]) == (1, "CallTimeout"), name
        got = await handed(stage, test)
        assert {name: sorted(set(texts)) for name, texts in got.items()} == {key: ["a", "c"] for key in outboxes}
