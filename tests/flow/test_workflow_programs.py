"""Random programs as workflows: crashes and lost leases at any moment change neither their ends nor their effects.

Programs whose end depends on which of two steps is faster are left out: they may end otherwise each time. A crash takes
half a minute, so timeouts are far from it. For the order in which a body learns things see
`tests/rules/test_workflow_bodies.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from textwrap import indent
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage.flows import EXPIRED, run_with_crashes, run_with_thaw
from stage.needs import examples
from stage.stories import one_backend

from penstock import ActionCtx, App, JobId, MutationCtx, QueryCtx, Table, sync
from penstock.calls.workflows.context import WorkflowCtx
from penstock.errors import EventTimeout, StepFailed
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


@app.internal_action
async def note_once(ctx: ActionCtx, program: str, what: str) -> None:
    await ctx.run_mutation(note, program, f"once {what} {ctx.work.key}")


@app.internal_mutation
async def say(ctx: MutationCtx, run: JobId, words: list[str]) -> None:
    for word in words:
        await said.send(ctx, run, word)


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
async def whole(ctx: WorkflowCtx, name: str, source: str, life: int = 0, found: list[Any] | None = None) -> Any:
    """Run the source of a body."""
    scope = {**globals()}
    exec(compile(source, "<body>", "exec"), scope)
    return await scope["body"](ctx, name, source, life, found or [])


@app.workflow
def plain(ctx: sync.WorkflowCtx, name: str, what: str) -> str:
    ctx.run_mutation(write, name, what)
    ctx.sleep(timedelta(seconds=20))
    return ctx.run_action(act, name, what)


# A program is a tree: (word,) | ("sleep", seconds) | (word, part, part, …). Below is the code of each word: {path} is a
# name of its own, {parts} are the parts one after another, and {calls} calls of them as branches.

STEPS = {
    "write": 'found.append(await ctx.run_mutation(write, name, "{path}"))',
    "act": 'found.append(await ctx.run_action(act, name, "{path}"))',
    "retried": "patient = ctx.with_options(retry=Retry(max_attempts=2, initial_backoff=1))\n"
    'found.append(await patient.run_action(act, name, "{path}"))',
    "once": "try:\n"
    '    await ctx.with_options(retry=False).run_action(note_once, name, "{path}")\n'
    "except StepLost:\n"
    '    await ctx.run_mutation(note, name, "lost {path}")',
    "pooled": 'found.append(await ctx.with_options(pool=pool).run_mutation(write, name, "{path}"))',
    "refuse": 'await ctx.run_mutation(refuse, name, "{path}")',
    "look": "found.append(type(await ctx.run_query(look, name)).__name__)",
    "event": 'await ctx.run_mutation(say, ctx.id, ["word"])\nfound.append((await ctx.wait_for(never, said))[1])',
    "hear": "if IS_WHOLE:\n"
    '    await ctx.run_mutation(note, name, f"heard {{await ctx.wait_for(told, timeout=300 * DAY)}}")',
    "late event": "await ctx.wait_for(never, timeout=timedelta(minutes=5))",
    "undone": 'await ctx.run_mutation(write, name, "{path}")\nctx.compensate(note, name, "undo {path}")',
    "patch": 'found.append(ctx.patched("{path}"))',
    "until": "await ctx.sleep_until(ctx.now() + timedelta(seconds=25))",
    "publish": "ctx.publish(len(found))",
    "plain": 'found.append(await ctx.run_workflow(plain, name, "{path}"))',
}
WORDS = {
    "seq": "{parts}",
    "loop": "for turn in range(2):\n    {parts}",
    "branch": "if len(found) % 2:\n    {first}\nelse:\n    {parts}",
    "gather": "found += await asyncio.gather({calls})",
    "group": "async with asyncio.TaskGroup() as group:\n"
    "    tasks = [group.create_task(one) for one in [{calls}]]\n"
    "found += [task.result() for task in tasks]",
    "set": "found.append(sorted([str(await one) for one in {{asyncio.create_task(one) for one in [{calls}]}}]))",
    "lock": "lock, queue = asyncio.Lock(), asyncio.Queue(1)\n"
    "async def put(branch):\n"
    "    async with lock:\n"
    "        await queue.put(await branch)\n"
    "tasks = [asyncio.create_task(put(one)) for one in [{calls}]]\n"
    "found += [await queue.get() for _ in tasks]\n"
    "await asyncio.gather(*tasks)",
    "completed": "tasks = [asyncio.create_task(asyncio.sleep(seconds, seconds)) for seconds in (90, 40, 600)]\n"
    "found += [await one for one in asyncio.as_completed(tasks)] + await asyncio.gather({calls})",
    "late": "try:\n"
    "    async with asyncio.timeout(100):\n"
    "        await asyncio.sleep(200)\n"
    "except TimeoutError:\n"
    "    {parts}",
    "cut": "async def wait():\n"
    "    try:\n"
    "        await ctx.wait_for(never)\n"
    "    finally:\n"
    '        await ctx.run_mutation(write, name, "{path} cut")\n'
    "waiting = asyncio.create_task(wait())\n"
    "await ctx.sleep(timedelta(seconds=100))\n"
    "waiting.cancel()\n"
    "await asyncio.wait([waiting])\n"
    "{parts}",
    "race": "pending = {{asyncio.create_task(asyncio.sleep(seconds, seconds)) for seconds in (50, 10, 7000)}}\n"
    "done, left = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)\n"
    "for one in left:\n"
    "    one.cancel()\n"
    "found += [one.result() for one in done]\n"
    "{parts}",
    "first": "tasks = [asyncio.gather({calls}), asyncio.create_task(asyncio.sleep(2 * LATE))]\n"
    "done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)\n"
    "for one in left:\n"
    "    one.cancel()\n"
    "await asyncio.gather(*left, return_exceptions=True)\n"
    "found += [one.result() for one in done]",
    "limit": "async def play():\n"
    "    found.extend(await asyncio.gather({calls}))\n"
    "try:\n"
    "    async with asyncio.timeout(2 * LATE), asyncio.TaskGroup() as group:\n"
    "        group.create_task(play())\n"
    "        group.create_task(ctx.wait_for(never))\n"
    "except TimeoutError:\n"
    '    found.append("cut off")',
    "catch": "try:\n    {parts}\nexcept EXPECTED as error:\n    found.append(type(error).__name__)",
    "finally": "try:\n"
    "    {parts}\n"
    "finally:\n"
    '    await ctx.run_mutation(write, name, "{path} finally")\n'
    "    await asyncio.sleep(2)\n"
    '    await ctx.run_action(act, name, "{path} finally")',
    "child": "found.append(await ctx.run_workflow(whole, name, {source}))",
}
ALONE = {  # where no other branch runs
    "swallow": 'try:\n    {parts}\nexcept asyncio.CancelledError:\n    found.append("went on")',
    "stop": "{parts}\nawait ctx.run_mutation(stop, ctx.id)\nawait ctx.wait_for(never, timeout=DAY)",
    "burst": 'await ctx.run_mutation(say, ctx.id, ["a", "b", "c"])\n'
    "{parts}\n"
    "found += [await ctx.wait_for(said) for _ in range(3)]",
}
QUICK = {"first", "limit"}  # their branches end long before LATE
LEAVES = st.one_of(st.tuples(st.sampled_from([*STEPS])), st.tuples(st.just("sleep"), st.sampled_from([0, 2, 30, 3600])))
BODIES = st.recursive(
    LEAVES,
    lambda parts: st.tuples(st.sampled_from([*WORDS, *ALONE]), st.lists(parts, min_size=1, max_size=3)).map(
        lambda found: (found[0], *found[1])
    ),
    max_leaves=8,
)
PROGRAMS = st.one_of(BODIES, st.tuples(st.just("again"), BODIES, BODIES))
LATE, SOONER, DAY = 20_000, 30, timedelta(days=1)  # seconds: more than all sleeps of a quick program with all crashes
EXPECTED = (Failing, EventTimeout, StepFailed)


def heard_in(program: Any) -> int:
    """How many events a program hears, at most; those in children hear none."""
    word, *parts = program
    if word in {"hear", "child"}:
        return int(word == "hear")
    found = sum(heard_in(one) for one in parts if not isinstance(one, int))
    return 2 * found if word == "loop" else found


@dataclass(frozen=True)
class Writer:
    """Writes programs as code. `is_whole` says that it is for no child; `quick` makes sleeps short."""

    is_whole: bool = True
    quick: bool = False
    alone: bool = True

    def write(self, program: Any) -> str:
        """Write a body."""
        begun, others = "", program
        if program[0] == "again":
            _, first, others = program
            begun = f"if not life:\n{self.lines_of(first, 'a', 1)}\n    return ctx.restart(name, source, 1, found)\n"
        text = f"{begun}{self.lines_of(others, 'b', 0)}\nreturn found".replace("IS_WHOLE", str(self.is_whole))
        head = "from penstock import Retry, StepLost\n\nasync def body(ctx, name, source, life, found):"
        return f"{head}\n{indent(text, '    ')}\n"

    def lines_of(self, program: Any, path: str, depth: int) -> str:
        """Write a part of a program."""
        word, *parts = program
        if word == "sleep":
            lines = f"await asyncio.sleep({min(parts[0], SOONER) if self.quick else parts[0]})"
        elif word in STEPS:
            lines = STEPS[word].format(path=path)
        else:
            lines = self._lines_of_word(word if self.alone or word not in ALONE else "seq", parts, path)
        return indent(lines, "    " * depth)

    def _lines_of_word(self, word: str, parts: Sequence[Any], path: str) -> str:
        text = (WORDS | ALONE)[word]
        if "{calls}" in text:
            within = replace(self, alone=False, quick=self.quick or word in QUICK)
            names = [f"part_{path}{number}" for number in range(len(parts))]
            branches = [within.branch_of(one, name) for one, name in zip(parts, names, strict=True)]
            calls = ", ".join(f"{name}([])" for name in names)
            return "\n".join([*branches, text.format(path=path, calls=calls)])
        if "{source}" in text:
            return text.format(source=repr(Writer(is_whole=False, quick=self.quick).write(("seq", *parts))))
        lines = text.partition("{parts}")[0].rpartition("\n")[2]  # what stands before the parts: their indentation
        each = [self.lines_of(one, f"{path}{number}", 0) for number, one in enumerate(parts)]
        first, every = (indent(one, lines).lstrip() for one in (each[0], "\n".join(each)))
        return text.format(path=path, parts=every, first=first)

    def branch_of(self, program: Any, name: str) -> str:
        """Write a branch, whose expected errors are a part of its result."""
        tried = f"try:\n{self.lines_of(program, name.removeprefix('part_'), 1)}\n"
        caught = "except EXPECTED as error:\n    found.append(type(error).__name__)\nreturn found"
        return f"async def {name}(found):\n{indent(tried + caught, '    ')}"


numbers = iter(range(10**6))


Interruption = tuple[str, int]  # how the worker is interrupted, and at which of its moments


async def run(backend: TestApp, other: TestApp, program: Any, interruptions: Sequence[Interruption]) -> Any:
    """The state and the result of a program, its effects, and the moments; those of actions, which may repeat, once."""
    name, moments = f"p{next(numbers)}", []
    backend.clock.advance(EXPIRED)  # the other worker may have the slots of the pool
    job = await pool.enqueue(backend, whole, name, Writer().write(program))
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
    at_most = [one for one in found if one.startswith("once ")]
    assert len(at_most) == len({*at_most}), (program, interruptions)
    once = sorted({one for one in found if one.startswith("act ")})
    effects = [*once, *(one for one in found if not one.startswith(("act ", "once ", "lost ")))]
    end = (status.state.value, status.result or status.error, status.published, effects)
    return end, [one for one in moments if one]


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
    "failing group": ("catch", ("seq", ("undone",), ("group", ("write",), ("refuse",), ("act",)), ("refuse",))),
    "first": ("first", ("seq", ("act",), ("sleep", 2), ("write",))),
    "completed": ("completed", ("write",), ("act",)),
    "limit": ("limit", ("limit", ("act",)), ("late", ("write",))),
    "events": ("gather", ("seq", ("hear",), ("hear",)), ("event",), ("late event",)),
    "child": ("seq", ("pooled",), ("child", ("seq", ("write",), ("act",))), ("write",)),
    "cancel": ("stop", ("finally", ("seq", ("undone",), ("stop", ("undone",)), ("write",)))),
    "failure": ("finally", ("seq", ("undone",), ("undone",), ("refuse",))),
    "lock": ("lock", ("write",), ("act",), ("sleep", 2)),
    "again": ("again", ("seq", ("burst", ("publish",)), ("cut", ("until",))), ("gather", ("once",), ("plain",))),
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
