"""Bodies of workflows repeat themselves: whatever they do side by side, a replay makes the same calls in the same order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.calls.workflows.body import Body
from penstock.calls.workflows.context import WorkflowCtx
from penstock.calls.workflows.loop import WorkflowSuspended
from penstock.clock import random_of
from penstock.errors import ContextError, PenstockError, StepFailed, UnawaitedCall
from penstock.functions.function import ActionFunction, WorkflowFunction
from penstock.functions.registry import Registry
from penstock.jobs.job import job_id
from penstock.workflows.history import History, Mismatch
from penstock.workflows.outcome import error_outcome, read_outcome, result_outcome
from penstock.workflows.record import BEGINNING, Record, RecordKind

START = datetime(2030, 1, 1, tzinfo=UTC)
REGISTRY = Registry()
RUN = job_id(UUID(int=7))


async def act(ctx: Any, what: str) -> str:
    raise AssertionError("no step runs here")


ACT: Any = ActionFunction(act, public=False)
REGISTRY.add(ACT)

# A program is a tree: ("step", name) | ("fail", name) | ("sleep", seconds) | (word, part, part, …)
LEAVES = st.one_of(
    st.tuples(st.sampled_from(["step", "step", "fail"]), st.sampled_from("abcdefgh")),
    st.tuples(st.just("sleep"), st.integers(0, 40)),
)
WORDS = ("seq", "gather", "group", "first", "completed", "limit", "finally", "catch", "lock", "set")
PROGRAMS = st.recursive(
    LEAVES,
    lambda parts: st.tuples(st.sampled_from(WORDS), st.lists(parts, min_size=1, max_size=4)).map(
        lambda found: (found[0], *found[1])
    ),
    max_leaves=14,
)


async def play(ctx: WorkflowCtx, program: Any) -> Any:  # noqa: C901, PLR0911, PLR0912 - an interpreter
    word, *parts = program
    if word == "step":
        return await ctx.run_action(ACT, parts[0])
    if word == "fail":
        return await ctx.run_action(ACT, f"fail {parts[0]}")
    if word == "sleep":
        await asyncio.sleep(parts[0])
        return str(ctx.random.randrange(100))
    if word == "seq":
        return [await play(ctx, part) for part in parts]
    if word == "gather":
        return await asyncio.gather(*(play(ctx, part) for part in parts), return_exceptions=len(parts) % 2 == 0)
    if word == "group":
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(play(ctx, part)) for part in parts]
        return [task.result() for task in tasks]
    if word == "first":
        pending = {asyncio.ensure_future(play(ctx, part)) for part in parts}
        done, left = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        found = [await play(ctx, ("step", f"then{len(done)}")) for _ in left]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return [*found, *(task.exception() is None and task.result() for task in done)]
    if word == "completed":
        return [await each for each in asyncio.as_completed([asyncio.ensure_future(play(ctx, part)) for part in parts])]
    if word == "limit":
        try:
            async with asyncio.timeout(15):
                return [await play(ctx, part) for part in parts]
        except TimeoutError:
            return await ctx.run_action(ACT, "late")
    if word == "finally":
        try:
            return [await play(ctx, part) for part in parts]
        finally:
            await ctx.run_action(ACT, "cleanup")
    if word == "catch":
        try:
            return await play(ctx, ("gather", *parts))
        except (PenstockError, ExceptionGroup) as error:
            return await ctx.run_action(ACT, f"caught {type(error).__name__}")
    if word == "set":
        return [await task for task in {asyncio.create_task(play(ctx, part)) for part in parts}]
    lock, queue = asyncio.Lock(), asyncio.Queue[Any](1)

    async def put(part: Any) -> None:
        async with lock:
            try:
                await queue.put(await play(ctx, part))
            except (PenstockError, ExceptionGroup):
                await queue.put(None)

    tasks = [asyncio.create_task(put(part)) for part in parts]
    try:
        return [await queue.get() for _ in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class World:
    """What decides in which order a body learns things: the outside world, drawn from a seed."""

    seed: int
    seen: list[list[tuple[int, str]]] = field(default_factory=list)  # after each delivery, the calls that are open

    def start(self, program: Any, records: list[Record]) -> Body:
        """Begin a body and let it learn what is recorded."""
        history = History(records)
        function: Any = WorkflowFunction(play, public=False)
        body = Body(function, history, 7, lambda text: text)
        ctx = WorkflowCtx(body, REGISTRY, RUN)
        first, *others = history.deliveries
        body.begin(first.at, ctx, {"program": program})
        for record in others:
            body.deliver(record)
        body.replaying = False
        return body

    def go_on(self, body: Body, records: list[Record], most: int) -> None:
        """Let the body learn up to `most` new things."""
        chance = random_of(self.seed + len(records))
        for _ in range(most):
            if body.done:
                return
            calls = [call for call in body.open.values() if not call.abandoned]
            timer, now = body.next_timer, body.now + timedelta(seconds=chance.randrange(8))
            place = body.history.next_place()
            if timer is not None and (timer <= now or not calls):
                record = Record(-place, RecordKind.TIMER, place, timer)
            elif chance.random() < 0.03 and not body.history.cancelled:
                record = Record(-place, RecordKind.CANCEL, place, now)
            elif not calls:
                raise body.tell_stuck()
            else:
                call = chance.choice(calls)
                name = call.args.rpartition(':"')[2].rstrip('"}')
                outcome = error_outcome(StepFailed(name)) if name.startswith("fail") else result_outcome(f'"{name}"')
                record = call.recorded(place, now, outcome)
            body.history.note(record)
            records.append(record)
            body.deliver(record)


def outcome_of(body: Body) -> str:
    try:
        return repr(body.result())
    except BaseException as error:
        return f"{type(error).__name__} {error}"


def open_calls(body: Body) -> list[tuple[int, str, bool]]:
    return [(call.number, call.args, call.abandoned) for call in body.open.values()]


@given(PROGRAMS, st.integers(0, 10**6), st.lists(st.integers(0, 6), max_size=6))
def test_a_replay_makes_the_same_calls_and_has_the_same_end(program: Any, seed: int, lives: list[int]) -> None:
    world = World(seed)
    records = [Record(BEGINNING, RecordKind.BEGIN, 0, START)]
    for most in [*lives, 10_000]:
        body = world.start(program, records)
        world.go_on(body, records, most)
        again = world.start(program, records)
        assert open_calls(again) == open_calls(body)
        assert (again.done, again.now, again.next_timer) == (body.done, body.now, body.next_timer)
        if body.done:
            assert outcome_of(again) == outcome_of(body)
        body.drop()
        again.drop()
    assert body.done


async def _run_alone(handler: Callable[..., Awaitable[Any]]) -> Body:
    function: Any = WorkflowFunction(handler, public=False)
    body = Body(function, History([]), 7, lambda text: text)
    body.begin(START, WorkflowCtx(body, REGISTRY, RUN), {})
    return body
