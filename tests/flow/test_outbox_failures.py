# mypy: disable-error-code="union-attr"
"""Outboxes: what becomes of messages that fail, and of those behind them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import pytest
from flow.items import ONCE, POLICIES, SOON, TEN, Item, begun, broken, handed, of, several, staged
from programs.families import TABLES, Child
from stage.databases import run_sql
from stage.outboxes import OutboxStage, aside, drain, failing, outbox_row, states, text_of
from stage.waits import until

from penstock import NonRetryableError, Retry, Snooze
from penstock.outbox.message import Message
from penstock.outbox.trouble import Trouble, after_failure

if TYPE_CHECKING:
    from penstock.services.relay.relay import Relay


BOTH: dict[str, dict[str, Any]] = {"sends": {}, "writes": {"mutation": True}}
EACH: dict[str, dict[str, Any]] = {policy: {"on_failure": policy} for policy in POLICIES}


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
    stage = several(outboxes, timeout=timedelta(seconds=0.2), retry=ONCE, on_failure="park")

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


CANCELED: Future[None] = Future()
CANCELED.cancel()
HANDLERS: dict[str, dict[str, Any]] = {
    "calls": {},
    "writes": {"mutation": True},
    "calls beside": {"parallelism": 3},
    "calls of many": {"batch": 5},
    "writes many": {"mutation": True, "batch": 5},
}
HALTING = {policy: {"on_failure": policy} for policy in ("halt", "halt_key")}


@pytest.mark.parametrize("late", [False, True])
async def test_a_handler_that_cancels_its_own_task_fails_its_message_at_most(database_url: str, *, late: bool) -> None:
    stage = several(HANDLERS | {"parks": {"on_failure": "park"}})

    async def during(_ctx: Any, message: Message[Any]) -> None:
        if text_of(message) == "b":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            if not late:  # it waits until that comes through, and does not return first
                await asyncio.Event().wait()

    stage.during = during
    async with begun(stage, database_url, "a", "b", "c") as test:
        for outbox in HANDLERS if not late else ():
            trouble = (await outbox_row(test, outbox)).trouble
            assert (trouble.attempts, "cancelled the task that it runs in" in trouble.error) == (1, True), outbox
        if not late:
            test.relay.start()

            async def is_parked() -> bool:
                test.clock.advance(TEN)
                return await states(test, "parks") == ["parked"]

            await until(is_parked)
            await test.relay.stop()
            test.relay = cast("Relay", test.make_service("relay"))
            assert (await handed(stage, test))["parks"] == ["a", "c"], "the relay has gone on"
        stage.during = None
        await test.engine.store.outboxes.retry("parks", test.clock.now())
        await drain(test, timedelta(minutes=10))
        got = await handed(stage, test)
        assert {outbox: sorted(set(texts)) for outbox, texts in got.items()} == {
            outbox: ["a", "b", "c"] for outbox in (*HANDLERS, "parks")
        }


async def test_an_outbox_counts_as_halted_while_the_attempts_at_a_message_are_used_up(database_url: str) -> None:
    stage = several(HALTING, "a")

    async def listed() -> list[Any]:
        return list(await stage.app.outboxes.list(test))

    async with begun(stage, database_url, "a", "b") as test:
        for attempt in range(2, 5):
            await drain(test, TEN)
            assert [one.halted for one in await listed()] == [attempt >= 3] * 2
        for _ in range(10):
            await drain(test, timedelta(minutes=5))
        for one in await listed():
            assert one.halted
            assert one.retry_at is not None
            assert one.retry_at - test.clock.now() >= timedelta(minutes=2)
        tried = len(stage.tried)
        await drain(test, TEN)
        assert len(stage.tried) == tried
        for policy in HALTING:
            await stage.app.outboxes.retry(test, policy)
        assert [one.halted for one in await listed()] == [False] * 2, "its attempts begin again"
        await drain(test, timedelta(seconds=1))
        assert len(stage.tried) == tried + 2, "at once"
        assert [(one.halted, one.retry_at) for one in await listed()] == [(False, test.clock.now() + TEN)] * 2


def waits(policy: Retry, count: int, chance: float = 0.999) -> list[float]:
    """The waits after so many attempts that failed."""
    trouble: Trouble | None = None
    now, found = datetime(2030, 1, 1, tzinfo=UTC), list[float]()
    for _ in range(count):
        trouble = after_failure(policy, 1, trouble, ValueError("no"), now, chance)
        assert trouble.retry_at is not None
        found.append((trouble.retry_at - now).total_seconds())
        now = trouble.retry_at
    return found


@pytest.mark.parametrize(
    "policy",
    [
        Retry.fixed(0.4, max_attempts=3, jitter=0),
        Retry(max_attempts=None, max_duration=1, initial_backoff=0.4, base=1.0, max_backoff=0.4),
    ],
)
def test_what_is_halted_waits_ever_longer_up_to_minutes(policy: Retry) -> None:
    found = waits(policy, 14)
    first = next(number for number, wait in enumerate(found) if wait > 0.4)
    halted = found[first:]
    assert 1 <= halted[0] < 2
    assert all(1.4 * one < other < 2.5 * one for one, other in pairwise(halted[:7]))
    assert 299 < halted[-1] <= 300
    assert waits(policy, 24, 0.0)[-1] == 150, "jitter keeps those apart that were halted together"


def test_what_is_halted_is_tried_again_no_sooner_than_its_policy_says() -> None:
    policy = Retry.fixed(timedelta(hours=1), max_attempts=2, jitter=0)
    assert waits(policy, 4) == [3600] * 4


async def test_keys_of_any_length_are_put_aside(database_url: str) -> None:
    expected = {"halt_key": ["halted", "halted", "waiting"], "park": ["parked"] * 3}
    outboxes = {policy: {"on_failure": policy} for policy in expected}
    stage = several(outboxes, retry=Retry(max_attempts=1), partition_by="note")
    far = "".join(chr(0x4E00 + number % 20_000) for number in range(7, 140_007, 7))  # does not shrink much
    stage.fails = lambda message: broken() if text_of(message).startswith(far) else None
    async with begun(stage, database_url, far + "a", far + "b", "c", far + "a") as test:
        assert await handed(stage, test) == {key: ["c"] for key in outboxes}
        assert {policy: await states(test, policy) for policy in outboxes} == expected
        stage.fails = failing(broken)
        for policy in outboxes:
            await stage.app.outboxes.retry(test, policy)
        await drain(test, TEN)
        for texts in (await handed(stage, test)).values():
            assert Counter(texts) == {far + "a": 2, far + "b": 1, "c": 1}
