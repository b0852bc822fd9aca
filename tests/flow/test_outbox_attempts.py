# mypy: disable-error-code="union-attr"
"""Attempts at messages: what counts as one, how long the next one waits, and what ends no more than an attempt."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import pytest
from stage.outboxes import OutboxStage, aside, died, drain, failing, outbox_row, states, text_of
from stage.waits import until

from penstock import LeaseLost, Retry, Table
from penstock.outbox.message import Message
from penstock.outbox.trouble import Trouble, after_failure
from penstock.sync import ActionCtx as SyncActionCtx

if TYPE_CHECKING:
    from penstock.services.relay.relay import Relay

SOON = Retry.fixed(timedelta(seconds=10), max_attempts=3, jitter=0)
TEN = timedelta(seconds=10)


class Item(Table):
    note: str = ""


def broken() -> Exception:
    return ValueError("no")


def of(*notes: str) -> list[Item]:
    return [Item(note=note) for note in notes]


# ----- what is raised that is no Exception


class Odd(BaseException):
    """What no program should raise."""


async def cancels() -> None:
    task = asyncio.create_task(asyncio.Event().wait())
    task.cancel()
    await task


ODD: dict[str, Callable[[], BaseException | None]] = {
    "cancels": lambda: None,
    "CancelledError": asyncio.CancelledError,
    "Odd": Odd,
    "GeneratorExit": GeneratorExit,
    "SystemExit": lambda: SystemExit(1),
    "LeaseLost": lambda: LeaseLost("Not that of the outbox."),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("two", [Odd(), ValueError()]),
}


@pytest.mark.parametrize("options", [{}, {"mutation": True}, {"parallelism": 3}, {"batch": 2}])
@pytest.mark.parametrize("odd", ODD)
async def test_what_a_handler_raises_that_is_no_exception_fails_its_message_only(
    database_url: str, odd: str, options: dict[str, Any]
) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, retry=SOON, **options)
    stage.fails = failing(lambda: ODD[odd]() or AssertionError("it was cancelled"), "a")

    async def during(_ctx: Any, message: Message[Item]) -> None:
        if odd == "cancels" and text_of(message) == "a":
            await cancels()

    stage.during = during
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of("a", "b"))
        await drain(test)
        trouble = (await outbox_row(test)).trouble
        name = "CancelledError" if odd == "cancels" else odd
        assert (trouble.attempts, name in trouble.error) == (1, True)
        stage.fails, stage.during = failing(broken), None
        await drain(test, TEN)
        got = await stage.written(test) if options.get("mutation") else stage.texts()
        assert (sorted(got) if options.get("parallelism") else got) == ["a", "b"]


@pytest.mark.parametrize("error", [SystemExit(1), Odd(), GeneratorExit(), asyncio.CancelledError()])
async def test_what_a_handler_in_a_thread_raises_that_is_no_exception_fails_its_message_only(
    database_url: str, error: BaseException
) -> None:
    stage, got, errors = OutboxStage(Item), list[str](), [error]

    def send(ctx: SyncActionCtx, item: Item) -> None:
        if errors:
            raise errors.pop()
        got.append(item.note)

    stage.app.outbox(Item, name="send", retry=SOON)(send)
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of("a"))
        await drain(test)
        assert f"raised {type(error).__name__}" in (await outbox_row(test)).trouble.error
        await drain(test, TEN)
        assert got == ["a"]


async def test_what_a_canceled_future_of_a_thread_raises_is_told_as_that(database_url: str) -> None:
    stage, future = OutboxStage(Item), Future[None]()
    stage.outbox(Item, retry=SOON)
    stage.fails = lambda _message: future.exception()
    future.cancel()
    async with stage.open(database_url) as test:
        await stage.insert(test, *of("a"))
        await drain(test)
        assert "a task that it awaited was" in (await outbox_row(test)).trouble.error


# ----- handlers that cancel the task they run in

HANDLERS: list[dict[str, Any]] = [
    {},
    {"mutation": True},
    {"parallelism": 3},
    {"batch": 5},
    {"mutation": True, "batch": 5},
]


def cancelling_at(note: str, *, late: bool = False) -> Callable[[Any, Message[Any]], Awaitable[None]]:
    """Cancels its own task at a message, and waits until that comes through or returns first."""

    async def during(_ctx: Any, message: Message[Any]) -> None:
        if text_of(message) == note:
            asyncio.current_task().cancel()
            if not late:
                await asyncio.Event().wait()

    return during


@pytest.mark.parametrize("options", HANDLERS)
async def test_a_handler_that_cancels_its_own_task_fails_its_message_only(
    database_url: str, options: dict[str, Any]
) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, retry=SOON, **options)
    stage.during = cancelling_at("b")
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of("a", "b", "c"))
        await drain(test)
        trouble = (await outbox_row(test)).trouble
        assert (trouble.attempts, "cancelled the task that it runs in" in trouble.error) == (1, True)
        stage.during = None
        await drain(test, TEN)
        got = await stage.written(test) if options.get("mutation") else sorted(set(stage.texts()))
        assert got == ["a", "b", "c"]


@pytest.mark.parametrize("options", HANDLERS)
async def test_a_handler_that_cancels_its_own_task_and_returns_keeps_no_message_waiting(
    database_url: str, options: dict[str, Any]
) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, retry=SOON, **options)
    stage.during = cancelling_at("b", late=True)
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of("a", "b", "c"))
        await drain(test)
        stage.during = None
        await drain(test, TEN)
        got = await stage.written(test) if options.get("mutation") else sorted(set(stage.texts()))
        assert got == ["a", "b", "c"]


async def test_a_relay_goes_on_though_a_handler_always_cancels_its_own_task(database_url: str) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, retry=SOON, on_failure="park")
    stage.during = cancelling_at("a")
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of("a", "b"))
        test.relay.start()

        async def is_sent() -> bool:
            test.clock.advance(TEN)
            return [text_of(message) for message in stage.got] == ["b"]

        await until(is_sent)
        await test.relay.stop()
        assert await states(test) == ["parked"]


# ----- attempts


@pytest.mark.parametrize("policy", ["halt", "halt_key"])
async def test_an_outbox_counts_as_halted_while_the_attempts_at_a_message_are_used_up(
    database_url: str, policy: str
) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, retry=SOON, on_failure=policy)
    stage.fails = failing(broken, "a")
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of("a", "b"))
        for attempt in range(1, 5):
            await drain(test, TEN)
            (status,) = await stage.app.outboxes.list(test)
            assert status.halted == (attempt >= 3)
        await stage.app.outboxes.retry(test, "send")
        (status,) = await stage.app.outboxes.list(test)
        assert not status.halted, "its attempts begin anew"


@pytest.mark.parametrize("policy", ["halt_key", "park"])
async def test_keys_of_any_length_are_put_aside(database_url: str, policy: str) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, retry=Retry(max_attempts=1), on_failure=policy, partition_by="note")
    far = "".join(chr(0x4E00 + number % 20_000) for number in range(7, 140_007, 7))  # does not shrink much
    stage.fails = lambda message: broken() if text_of(message).startswith(far) else None
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of(far + "a", far + "b", "c", far + "a"))
        await drain(test)
        assert stage.texts() == ["c"]
        state = "parked" if policy == "park" else "halted"
        assert await states(test) == [state, state, "parked" if policy == "park" else "waiting"]
        stage.fails = failing(broken)
        await stage.app.outboxes.retry(test, "send")
        await drain(test, TEN)
        assert Counter(stage.texts()) == {far + "a": 2, far + "b": 1}


@pytest.mark.parametrize("policy", ["halt", "halt_key"])
async def test_processes_that_die_while_a_receiver_is_away_do_not_halt_a_message_for_good(
    database_url: str, policy: str
) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, retry=SOON, on_failure=policy)
    stage.fails = failing(broken, "a")
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of("a", "b"))
        for _ in range(4):
            await drain(test, TEN)

        dies = asyncio.Event()

        async def die(_ctx: Any, _message: Message[Item]) -> None:
            dies.set()
            await asyncio.Event().wait()

        stage.during = die
        for _ in range(2):
            assert await died(drain(test, TEN), dies)
            test.relay = cast("Relay", test.make_service("relay"))
            test.clock.advance(timedelta(minutes=1))
        stage.during, stage.fails = None, failing(broken)
        await drain(test, timedelta(minutes=1))
        await drain(test, timedelta(minutes=1))
        assert sorted(stage.texts()) == ["a", "b"]
        assert (await outbox_row(test)).trouble is None
        assert await states(test) == []


async def test_after_a_death_each_message_is_tried_as_soon_as_it_is_written_that_its_attempt_begins(
    database_url: str,
) -> None:
    """Whatever else is due: one that has failed, or one that flows."""
    stage = OutboxStage(Item)
    stage.outbox(Item, retry=SOON, on_failure="halt_key")
    async with stage.open(database_url) as test:
        await drain(test)
        stage.fails = failing(broken, "a", "b")
        await stage.insert(test, *of("a"))
        await drain(test)
        await stage.insert(test, *of("b"))
        await drain(test, timedelta(seconds=1))
        stage.tried.clear()
        await stage.insert(test, *of("c"))
        test.relay = cast("Relay", test.make_service("relay"))  # the one before never says that it has ended
        test.clock.advance(timedelta(minutes=1))
        stage.fails = failing(broken)
        await test.relay.tick()
        (line,) = test.relay.outboxes
        for tried in range(3):
            assert await line.tick() == 0
            assert len(stage.tried) == tried, "it is written that it begins"
            assert await line.tick() == 0
            assert len(stage.tried) == tried + 1
        assert stage.texts() == ["a", "c", "b"]


async def test_what_is_retried_leaves_the_attempts_of_the_next_message_alone(database_url: str) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, retry=SOON, on_failure="park")
    stage.fails = failing(broken, "a", "b")
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of("a"))
        for _ in range(3):
            await drain(test, TEN)
        await stage.insert(test, *of("b", "c"))
        for _ in range(2):
            await drain(test, TEN)
        assert (await outbox_row(test)).trouble.attempts == 2
        stage.fails = failing(broken, "b")
        (parked,) = await aside(test)
        await stage.app.outboxes.retry(test, "send", [parked.change.seq])
        test.clock.advance(TEN)
        await test.relay.outboxes[0].tick()
        assert (stage.texts(), (await outbox_row(test)).trouble.attempts) == (["a"], 2)
        await drain(test)
        assert (await aside(test))[0].trouble.attempts == 3
        assert stage.texts() == ["c"]


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


@pytest.mark.parametrize("policy", ["halt", "halt_key"])
async def test_a_retry_tries_at_once_what_is_halted_for_long_and_its_waits_begin_anew(
    database_url: str, policy: str
) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item, retry=SOON, on_failure=policy)
    stage.fails = failing(broken, "a")
    async with stage.open(database_url) as test:
        await drain(test)
        await stage.insert(test, *of("a"))
        for _ in range(10):
            await drain(test, timedelta(minutes=5))
        (status,) = await stage.app.outboxes.list(test)
        assert status.halted
        assert status.retry_at is not None
        assert status.retry_at - test.clock.now() >= timedelta(minutes=2)
        tried = len(stage.tried)
        await drain(test, TEN)
        assert len(stage.tried) == tried
        await stage.app.outboxes.retry(test, "send")
        await drain(test, timedelta(seconds=1))
        assert len(stage.tried) == tried + 1
        (status,) = await stage.app.outboxes.list(test)
        assert not status.halted
        assert status.retry_at == test.clock.now() + TEN
