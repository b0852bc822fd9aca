"""Random programs as workflows: crashes and lost leases at any moment change neither their ends nor their effects.

Programs whose end depends on which of two steps is faster are left out: they may end otherwise each time. A crash takes
half a minute, so timeouts are far from it. For the order in which a body learns things see
`tests/rules/test_workflow_bodies.py`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage.faults import EXPIRED, run_with_crashes, run_with_thaw
from stage.needs import examples
from stage.stories import one_backend

from penstock import ActionCtx, App, Id, JobId, MutationCtx, QueryCtx, Retry, Table
from penstock.calls.workflows.context import WorkflowCtx
from penstock.errors import EventTimeout
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

app = App()
pool = app.workpool("few", max_parallelism=2)
said = app.event("said", str)
told = app.event("told", int)
never = app.event("never", str)


class Done(Table):
    what: str
    program: str


class Failing(Exception):
    pass


@app.internal_mutation
async def write(ctx: MutationCtx, program: str, what: str) -> str:
    await ctx.db.insert(Done(what=f"write {what}", program=program))
    return what


@app.internal_mutation
async def refuse(ctx: MutationCtx, program: str, what: str) -> None:
    await ctx.db.insert(Done(what=f"never {what}", program=program))
    raise Failing(what)


@app.internal_action
async def act(ctx: ActionCtx, program: str, what: str) -> str:
    await ctx.run_mutation(note, program, f"act {what}")
    return what


@app.internal_mutation
async def note(ctx: MutationCtx, program: str, what: str) -> None:
    await ctx.db.insert(Done(what=what, program=program))


@app.internal_mutation
async def say(ctx: MutationCtx, run: JobId, what: str) -> Id[Done]:
    await said.send(ctx, run, what)
    return await ctx.db.insert(Done(what=f"say {what}", program="said"))


@app.internal_mutation
async def tell(ctx: MutationCtx, run: JobId, many: int) -> None:
    for number in range(many):
        await told.send(ctx, run, number, key=f"{number}")


@app.internal_mutation
async def stop(ctx: MutationCtx, run: JobId) -> None:
    await ctx.scheduler.cancel(run)


@app.internal_query
async def look(ctx: QueryCtx, program: str) -> list[str]:
    rows = await ctx.db.query(Done).collect()
    return sorted(row.what for row in rows if row.program == program)


@app.workflow
async def part(ctx: WorkflowCtx, name: str, program: Any, path: str) -> Any:
    return await Player(ctx, name, in_child=True).play(program, path)


@app.workflow
async def whole(ctx: WorkflowCtx, name: str, program: Any) -> Any:
    return await Player(ctx, name).play(program, "")


STEPS = ("write", "act", "retried", "pooled", "refuse", "look", "event", "hear", "late event", "undone", "patch")
WORDS = ("seq", "loop", "branch", "gather", "all", "group", "late", "limit", "race", "first", "completed", "lock")
CARE = ("finally", "catch", "swallow", "stop", "child", "set")
PROGRAMS = st.recursive(
    st.one_of(
        st.tuples(st.sampled_from(STEPS)),
        st.tuples(st.just("sleep"), st.sampled_from([0, 2, 30, 3600])),
    ),
    lambda parts: st.tuples(st.sampled_from(WORDS + CARE), st.lists(parts, min_size=1, max_size=3)).map(
        lambda found: (found[0], *found[1])
    ),
    max_leaves=8,
)
LATE, SOONER = 20_000, 30  # seconds: more than all sleeps of a quick program with all crashes; the longest one of such


def heard_in(program: Any) -> int:
    """How many events a program hears, at most; those in children hear none."""
    word, *parts = program
    if word in {"hear", "child"}:
        return int(word == "hear")
    found = sum(heard_in(one) for one in parts if not isinstance(one, int))
    return 2 * found if word == "loop" else found


@dataclass
class Player:
    """Plays a program. `quick` makes its sleeps short; `alone` says that no other branch runs."""

    ctx: WorkflowCtx
    name: str
    in_child: bool = False
    quick: bool = False
    alone: bool = True

    async def play(self, program: Any, path: str) -> Any:
        word, *parts = program
        before = self.ctx.now()
        try:
            return await getattr(self, f"play_{word.replace(' ', '_')}")(path, *parts)
        finally:
            assert self.ctx.now() >= before

    async def safely(self, program: Any, path: str) -> Any:
        try:
            return await self.play(program, path)
        except (Failing, EventTimeout) as error:
            return f"{type(error).__name__} {error.args[0][:20]}"

    def branches(self, path: str, parts: Sequence[Any]) -> list[Coroutine[Any, Any, Any]]:
        others = replace(self, alone=False)
        return [others.safely(one, f"{path}{number}") for number, one in enumerate(parts)]

    # ----- steps

    async def play_write(self, path: str) -> str:
        return await self.ctx.run_mutation(write, self.name, path)

    async def play_act(self, path: str) -> str:
        return await self.ctx.run_action(act, self.name, path)

    async def play_retried(self, path: str) -> str:
        retry = Retry(max_attempts=2, initial_backoff=1)
        return await self.ctx.with_options(retry=retry).run_action(act, self.name, path)

    async def play_pooled(self, path: str) -> str:
        return await self.ctx.with_options(pool=pool).run_mutation(write, self.name, path)

    async def play_refuse(self, path: str) -> None:
        await self.ctx.run_mutation(refuse, self.name, path)

    async def play_look(self, _: str) -> str:
        return type(await self.ctx.run_query(look, self.name)).__name__

    async def play_undone(self, path: str) -> None:
        await self.ctx.run_mutation(write, self.name, path)
        self.ctx.compensate(note, self.name, f"undo {path}")

    async def play_patch(self, path: str) -> bool:
        return self.ctx.patched(f"patch{path}")

    async def play_event(self, _: str) -> str:
        await self.ctx.run_mutation(say, self.ctx.id, "word")
        return await self.ctx.wait_for(said)

    async def play_hear(self, path: str) -> None:
        """Receive one of the events that were sent at the beginning; which one depends on the other branches."""
        if not self.in_child:
            number = await self.ctx.wait_for(told, timeout=timedelta(days=300))
            await self.ctx.run_mutation(note, self.name, f"heard {number}")

    async def play_late_event(self, _: str) -> None:
        await self.ctx.wait_for(never, timeout=timedelta(minutes=5))

    async def play_sleep(self, _: str, seconds: int) -> str:
        await asyncio.sleep(min(seconds, SOONER) if self.quick else seconds)
        return "slept"

    # ----- one after the other

    async def play_seq(self, path: str, *parts: Any) -> list[Any]:
        return [await self.play(one, f"{path}{number}") for number, one in enumerate(parts)]

    async def play_loop(self, path: str, *parts: Any) -> list[Any]:
        return [await self.play_seq(f"{path}{turn}", *parts) for turn in "xy"]

    async def play_branch(self, path: str, *parts: Any) -> Any:
        seen = await self.ctx.run_mutation(write, self.name, path)
        return await self.play(parts[len(seen) % len(parts)], f"{path}b")

    async def play_catch(self, path: str, *parts: Any) -> list[Any]:
        return [await self.safely(one, f"{path}{number}") for number, one in enumerate(parts)]

    async def play_finally(self, path: str, *parts: Any) -> Any:
        try:
            return await self.play_seq(path, *parts)
        finally:
            await self.ctx.run_mutation(write, self.name, f"{path} finally")
            await asyncio.sleep(2)
            await self.ctx.run_action(act, self.name, f"{path} finally")

    async def play_swallow(self, path: str, *parts: Any) -> Any:
        try:
            return await self.play_seq(path, *parts)
        except asyncio.CancelledError:
            if not self.alone:
                raise
            return "went on"

    async def play_stop(self, path: str, *parts: Any) -> Any:
        """Be canceled; a second time it is of no effect."""
        found = await self.play_seq(path, *parts)
        if self.alone:
            await self.ctx.run_mutation(stop, self.ctx.id)
            await self.ctx.wait_for(never, timeout=timedelta(days=1))
        return found

    async def play_child(self, path: str, *parts: Any) -> Any:
        return await self.ctx.run_workflow(part, self.name, parts[0], f"{path}c")

    # ----- side by side

    async def play_gather(self, path: str, *parts: Any) -> list[Any]:
        return [*await asyncio.gather(*self.branches(path, parts))]

    async def play_all(self, path: str, *parts: Any) -> list[str]:
        others = replace(self, alone=False)
        plays = (others.play(one, f"{path}{number}") for number, one in enumerate(parts))
        return [type(one).__name__ for one in await asyncio.gather(*plays, return_exceptions=True)]

    async def play_group(self, path: str, *parts: Any) -> list[Any]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in self.branches(path, parts)]
        return [task.result() for task in tasks]

    async def play_set(self, path: str, *parts: Any) -> list[str]:
        return sorted([str(await one) for one in {asyncio.create_task(one) for one in self.branches(path, parts)}])

    async def play_late(self, path: str, *parts: Any) -> list[Any]:
        try:
            async with asyncio.timeout(100):
                await asyncio.sleep(200)
        except TimeoutError:
            return ["late", await self.play(parts[0], path)]
        raise AssertionError

    async def play_limit(self, path: str, *parts: Any) -> list[Any]:
        """Be cut off long after the program has ended, while another branch waits for ever."""
        done: list[Any] = []

        async def play_all() -> None:
            done.extend(await replace(self, quick=True).play_gather(path, *parts))

        try:
            async with asyncio.timeout(LATE * 2), asyncio.TaskGroup() as group:
                group.create_task(play_all())
                group.create_task(self.ctx.wait_for(never))
        except TimeoutError:
            return [*done, "cut off"]
        raise AssertionError

    async def play_race(self, path: str, *parts: Any) -> list[Any]:
        pending = {asyncio.create_task(asyncio.sleep(seconds, seconds)) for seconds in (50, 10, 7000)}
        done, left = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for one in left:
            one.cancel()
        return [one.result() for one in done] + [await self.play(parts[0], path)]

    async def play_first(self, path: str, *parts: Any) -> list[Any]:
        """Go on with the first of a program and of a long sleep."""
        quick = replace(self, quick=True)
        tasks = [asyncio.create_task(quick.play_gather(path, *parts)), asyncio.create_task(asyncio.sleep(LATE * 2))]
        done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for one in left:
            one.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return [one.result() for one in done]

    async def play_completed(self, path: str, *parts: Any) -> list[Any]:
        tasks = [asyncio.create_task(asyncio.sleep(seconds, seconds)) for seconds in (90, 40, 600)]
        return [[await one for one in asyncio.as_completed(tasks)], *await self.play_gather(path, *parts)]

    async def play_lock(self, path: str, *parts: Any) -> list[Any]:
        """Play one branch at a time, each as it gets the lock, and pass the results through a queue."""
        lock, queue = asyncio.Lock(), asyncio.Queue[Any](1)

        async def put(branch: Coroutine[Any, Any, Any]) -> None:
            async with lock:
                await queue.put(await branch)

        tasks = [asyncio.create_task(put(one)) for one in self.branches(path, parts)]
        found = [await queue.get() for _ in tasks]
        await asyncio.gather(*tasks)
        return found


numbers = iter(range(10**6))


Interruption = tuple[str, int]  # how the worker is interrupted, and at which of its moments


async def run(backend: TestApp, other: TestApp, program: Any, interruptions: Sequence[Interruption]) -> Any:
    """The state and the result of a program, its effects, and the moments; those of actions, which may repeat, once."""
    name, moments = f"p{next(numbers)}", []
    backend.clock.advance(EXPIRED)  # the other worker may have the slots of the pool
    job = await pool.enqueue(backend, whole, name, json.loads(json.dumps(program)))
    await backend.run_mutation(tell, job, heard_in(program))
    for how, at in interruptions:
        if how == "thaw":
            moments.append(await run_with_thaw(backend, other, at))
        else:
            moments += await run_with_crashes(backend, [at])
    await backend.run_until_idle(raise_errors=False)
    status = await backend.job(job)
    assert status is not None
    assert status.finished_at is not None, (program, interruptions, status)
    found = await backend.run_query(look, name)
    once = sorted({one for one in found if one.startswith("act ")})
    effects = [*once, *(one for one in found if one[:4] != "act ")]
    return (status.state.value, status.result or status.error, effects), [one for one in moments if one]


@settings(max_examples=examples(150))
@given(
    program=PROGRAMS,
    interruptions=st.lists(
        st.tuples(st.sampled_from(["crash", "crash", "thaw"]), st.integers(1, 12)), min_size=1, max_size=4
    ),
)
def check(tell: Any, program: Any, interruptions: list[Interruption]) -> None:
    async def story(backend: TestApp) -> None:
        async with TestApp(app, backend.engine.config.database, clock=backend.clock) as other:
            expected, _ = await run(backend, other, program, [])
            found, _ = await run(backend, other, program, interruptions)
            assert found == expected

    tell(story)


def test_interruptions_change_neither_the_end_nor_the_effects_of_a_program(database_url: str) -> None:
    """(WF31, WF79, WF80, WF81, WF82, WF84, WF85, WF87, WF90, WF91, WF104, WF105, WF127)"""
    with one_backend(app, database_url) as tell:
        check(tell)


ALL_OF_IT = {
    "gather": ("gather", ("seq", ("write",), ("act",)), ("seq", ("act",), ("write",))),
    "group": ("group", ("seq", ("write",), ("act",)), ("seq", ("sleep", 2), ("write",)), ("refuse",)),
    "failing group": ("catch", ("seq", ("undone",), ("all", ("write",), ("refuse",), ("act",)), ("refuse",))),
    "first": ("first", ("seq", ("act",), ("sleep", 2), ("write",))),
    "completed": ("completed", ("write",), ("act",)),
    "limit": ("limit", ("limit", ("act",)), ("late", ("write",))),
    "events": ("gather", ("seq", ("hear",), ("hear",)), ("event",), ("late event",)),
    "child": ("seq", ("pooled",), ("child", ("seq", ("write",), ("act",))), ("write",)),
    "cancel": ("stop", ("finally", ("seq", ("undone",), ("stop", ("undone",)), ("write",)))),
    "failure": ("finally", ("seq", ("undone",), ("undone",), ("refuse",))),
    "lock": ("lock", ("write",), ("act",), ("sleep", 2)),
    "patches": ("gather", ("seq", ("look",), ("patch",), ("act",)), ("write",), ("seq", ("act",), ("patch",))),
}
_MOST = 60


@pytest.mark.parametrize("how", ["crash", "thaw"])
@pytest.mark.parametrize("name", ALL_OF_IT)
async def test_an_interruption_at_each_moment_changes_nothing(database_url: str, name: str, how: str) -> None:
    """(WF11, WF12, WF13, WF31, WF79, WF94, WF104, WF116, WF127)"""
    async with TestApp(app, database_url) as backend, TestApp(app, database_url, clock=backend.clock) as other:
        expected, _ = await run(backend, other, ALL_OF_IT[name], [])
        for at in range(1, _MOST):
            found, moments = await run(backend, other, ALL_OF_IT[name], [(how, at)])
            assert found == expected, (at, moments)
            if not moments:
                return
    raise AssertionError(f"there are more than {_MOST} moments")
