"""Bodies of workflows repeat themselves: whatever runs side by side, a replay makes the same calls in that order."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.calls.workflows.body import Body, OpenCall
from penstock.calls.workflows.context import WorkflowCtx
from penstock.clock import random_of
from penstock.errors import ContextError, PenstockError, StepFailed, UnawaitedCall, UsageError
from penstock.functions.function import ActionFunction, MutationFunction, WorkflowFunction
from penstock.functions.registry import Registry
from penstock.jobs.job import job_id
from penstock.workflows.exported import read_records, write_history
from penstock.workflows.history import History, Mismatch
from penstock.workflows.outcome import error_outcome, read_outcome, result_outcome
from penstock.workflows.record import BEGINNING, Beginning, Record, RecordKind, digest_of

START = datetime(2030, 1, 1, tzinfo=UTC)
REGISTRY = Registry()
RUN = job_id(UUID(int=7))


async def act(ctx: Any, what: str) -> str:
    raise AssertionError("no step runs here")


async def write(ctx: Any, what: str) -> str:
    raise AssertionError("no step runs here")


ACT: Any = ActionFunction(act, public=False)
WRITE: Any = MutationFunction(write, public=False)
for one in (ACT, WRITE):
    REGISTRY.add(one)

# A program is a tree: ("step", name) | ("fail", name) | ("sleep", seconds) | (word, part, part, …)
LEAVES = st.one_of(
    st.tuples(st.sampled_from(["step", "step", "fail", "write", "undone"]), st.sampled_from("abcdefgh")),
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
    if word in {"write", "undone"}:
        found = await ctx.run_mutation(WRITE, parts[0])
        if word == "undone":
            ctx.compensate(WRITE, f"undo {parts[0]}")
        return found
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


def outcome_for(call: OpenCall) -> str:
    name = call.args.rpartition(':"')[2].rstrip('"}')
    return error_outcome(StepFailed(name)) if name.startswith("fail") else result_outcome(f'"{name}"')


@dataclass
class World:
    """What decides in which order a body learns things: the outside world, drawn from a seed."""

    seed: int

    def start(self, program: Any, records: list[Record]) -> Body:
        """Begin a body and let it learn what is recorded."""
        history = History(records)
        function: Any = WorkflowFunction(play, public=False)
        body = Body(function, history, 7, Beginning(), lambda text: text)
        ctx = WorkflowCtx(body, REGISTRY, RUN)
        first, *others = history.deliveries
        body.begin(first.at, ctx, {"program": program})
        for record in others:
            body.deliver(record)
        return body

    def go_on(self, body: Body, records: list[Record], most: int) -> None:
        """Let the body learn up to `most` new things."""
        chance = random_of(self.seed + len(records))
        for _ in range(most):
            if body.has_ended:
                return
            calls = [call for call in body.open.values() if not call.is_abandoned]
            timer, now = body.next_timer, body.now + timedelta(seconds=chance.randrange(8))
            place = body.history.next_place()
            if timer is not None and (timer <= now or not calls):
                record = Record(-place, RecordKind.TIMER, place, timer)
            elif chance.random() < 0.03 and body.history.cancel is None:
                record = Record(-place, RecordKind.CANCEL, place, now)
            elif not calls:
                raise body.tell_stuck()
            else:
                call = chance.choice(calls)
                record = call.make_record(place, now, outcome_for(call))
            committing = [call for call in calls if call.kind is RecordKind.MUTATION and call.number != record.number]
            body.history.note(record)
            records.append(record)
            if committing and record.kind is not RecordKind.CANCEL and chance.random() < 0.5:
                self.deliver_meanwhile(body, records, record, committing[: chance.randrange(3)], chance)
            else:
                body.deliver(record)

    def deliver_meanwhile(
        self, body: Body, records: list[Record], record: Record, committing: list[OpenCall], chance: Any
    ) -> None:
        """Let the body learn something while mutations are about to commit, which it may cancel by that."""
        left = {call.number: call for call in committing}
        body.is_committing = left.__contains__
        body.deliver(record)
        made = []
        for number, call in chance.sample(sorted(left.items()), len(left)):
            if chance.random() < 0.7:
                made.append(call.make_record(body.history.next_place(), record.at, outcome_for(call)))
                body.history.note(made[-1])
                records.append(made[-1])
            del left[number]
            body.go_on()
        assert not body.is_held
        for one in made:
            if not body.has_ended:
                body.deliver(one)


def outcome_of(body: Body) -> str:
    try:
        return repr(body.result())
    except BaseException as error:
        return f"{type(error).__name__} {error}"


def open_calls(body: Body) -> list[tuple[int, str, bool]]:
    return [(call.number, call.args, call.is_abandoned) for call in body.open.values()]


@given(PROGRAMS, st.integers(0, 10**6), st.lists(st.integers(0, 6), max_size=6))
def test_a_replay_makes_the_same_calls_and_has_the_same_end(program: Any, seed: int, lives: list[int]) -> None:
    """(WF79, WF80, WF81, WF82, WF85, WF87, WF91, WF105)"""
    world = World(seed)
    records = [Record(BEGINNING, RecordKind.BEGIN, 0, START)]
    for most in (*lives, 10_000):
        body = world.start(program, records)
        world.go_on(body, records, most)
        again = world.start(program, records)
        assert open_calls(again) == open_calls(body)
        assert (again.has_ended, again.now, again.next_timer) == (body.has_ended, body.now, body.next_timer)
        if body.has_ended:
            assert outcome_of(again) == outcome_of(body)
        assert body.has_ended or most < 10_000
        body.drop()
        again.drop()


def begin(handler: Callable[..., Awaitable[Any]], records: Sequence[Record] = ()) -> Body:
    function: Any = WorkflowFunction(handler, public=False)
    body = Body(function, History(records), 7, Beginning(), lambda text: text)
    body.begin(START, WorkflowCtx(body, REGISTRY, RUN), {})
    for record in body.history.deliveries:
        if record.number != BEGINNING:
            body.deliver(record)
    return body


def learn(body: Body, number: int, result: str = "null") -> None:
    place = body.history.next_place()
    record = body.open[number].make_record(place, START, result_outcome(result))
    body.history.note(record)
    body.deliver(record)


def recorded(number: int, what: str, place: int | None = None, kind: RecordKind = RecordKind.ACTION) -> Record:
    text, name = f'{{"what":"{what}"}}', ACT.name
    return Record(number, kind, number if place is None else place, START, name, digest_of(text), text, '{"result":""}')


def test_a_run_that_lets_go_of_its_body_begins_no_step() -> None:
    seen = []

    async def stubborn(ctx: WorkflowCtx) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.run_action(ACT, "beside"))
                try:
                    await ctx.run_action(ACT, "first")
                except Exception:
                    seen.append("caught")
                finally:
                    seen.append("plain code runs")
                    await ctx.run_action(ACT, "refund")
                    seen.append("refunded")
        except BaseException as error:
            seen.append(type(error).__name__)
            try:
                await asyncio.sleep(5)
                seen.append("slept")
            finally:
                try:
                    ctx.now()
                    await ctx.wait_for()  # type: ignore[call-overload]
                except Exception:
                    seen.append("caught")
                finally:
                    ctx.patched("never")

    body = begin(stubborn)
    before = list(body.open)
    body.drop()
    assert seen == ["plain code runs", "WorkflowSuspended"]
    assert list(body.open) == before
    assert not body.patches


async def use_a_thread(ctx: WorkflowCtx) -> None:
    await asyncio.to_thread(print)


async def open_a_connection(ctx: WorkflowCtx) -> None:
    await asyncio.open_connection("127.0.0.1", 1)


async def complete_in_no_order(ctx: WorkflowCtx) -> None:
    sleeps = [asyncio.sleep(1), asyncio.sleep(2)]
    try:
        for one in asyncio.as_completed(sleeps):
            await one
    finally:
        for sleep in sleeps:
            sleep.close()


async def spin(ctx: WorkflowCtx) -> None:
    while True:  # noqa: ASYNC110 - that is the fault
        await asyncio.sleep(0)


LEFT: list[asyncio.Task[str]] = []


async def leave_a_task(ctx: WorkflowCtx) -> None:
    LEFT.append(asyncio.create_task(ctx.run_action(ACT, "left")))


async def leave_a_call(ctx: WorkflowCtx) -> None:
    ctx.run_action(ACT, "left")  # type: ignore[unused-coroutine]


async def wait_for_nothing(ctx: WorkflowCtx) -> None:
    await asyncio.Event().wait()


def end_of(handler: Any) -> None:
    body = begin(handler)
    if body.has_ended:
        body.result()
    assert body.is_stuck
    raise body.tell_stuck()


@pytest.mark.parametrize(
    ("handler", "kind", "said"),
    [
        (use_a_thread, ContextError, "used run_in_executor of the event loop"),
        (open_a_connection, ContextError, "used create_connection of the event loop"),
        (complete_in_no_order, ContextError, "as_completed, which begins them in no fixed order"),
        (spin, ContextError, "goes on without waiting"),
        (leave_a_task, UnawaitedCall, "these tasks of it did not: branch-"),
        (leave_a_call, UnawaitedCall, "ctx.run_action"),
        (wait_for_nothing, ContextError, "in line .* of wait_for_nothing for something that is not recorded"),
    ],
)
def test_what_no_replay_can_repeat_is_refused_by_name(handler: Any, kind: Any, said: str) -> None:
    """(WF43, WF89)"""
    with pytest.raises(kind, match=said):
        end_of(handler)


async def test_an_await_of_another_loop_is_an_error_at_once_and_steps_cannot_use_the_ctx() -> None:
    other, found = asyncio.get_running_loop().create_future(), list[WorkflowCtx]()

    async def wait_elsewhere(ctx: WorkflowCtx) -> None:
        found.append(ctx)
        await other

    body = begin(wait_elsewhere)
    with pytest.raises(RuntimeError, match="attached to a different loop"):
        body.result()
    with pytest.raises(ContextError, match=r"outside of its body|has ended"):
        await found[0].run_action(ACT, "from a step")


async def ab(ctx: WorkflowCtx) -> None:
    await ctx.run_action(ACT, "a")
    await ctx.run_action(ACT, "b")


async def ac(ctx: WorkflowCtx) -> None:
    await ctx.run_action(ACT, "a")
    if ctx.patched("c"):
        await ctx.run_action(ACT, "c")
    await ctx.run_action(ACT, "b")


async def a(ctx: WorkflowCtx) -> None:
    await ctx.run_action(ACT, "a")


def test_code_that_does_not_fit_is_shown_with_both_sides() -> None:
    """(WF32, WF33, WF36, WF46)"""
    history = [recorded(1, "a"), recorded(2, "c")]
    with pytest.raises(Mismatch, match=r'call 2 was action .*act\("what":"c"\), and the code now makes .*"what":"b"'):
        begin(ab, history)
    with pytest.raises(Mismatch, match=r"the code ends where call 2 was "):
        begin(a, history)
    with pytest.raises(Mismatch, match="call 1 was mutation"):
        begin(ab, [recorded(1, "a", kind=RecordKind.MUTATION)])
    with pytest.raises(Mismatch, match="a timer was due"):
        begin(ab, [Record(-1, RecordKind.TIMER, 1, START)])
    unreadable = replace(recorded(1, "a"), outcome='{"result":7}')
    with pytest.raises(Mismatch, match=r"the outcome of call 1, .*, cannot be read"):
        begin(ab, [unreadable])


def test_a_patch_holds_for_each_run_at_each_place_as_it_was_when_it_passed() -> None:
    """(WF130)"""
    new = begin(ac)
    learn(new, 1, '""')
    assert [(one.number, one.function) for one in new.patches] == [(2, "c")]
    assert [call.args for call in new.open.values()] == ['{"what":"c"}']
    again = begin(ac, [recorded(1, "a"), *new.patches])
    assert [(call.number, call.args) for call in again.open.values()] == [(3, '{"what":"c"}')]
    old = begin(ac, [recorded(1, "a"), recorded(2, "b")])
    assert old.has_ended
    waiting = begin(ac, [recorded(1, "a")])
    assert [call.args for call in waiting.open.values()] == ['{"what":"c"}']
    slept = begin(ac, [Record(BEGINNING, RecordKind.BEGIN, 0, START, learned=1), recorded(1, "a")])
    assert [call.args for call in slept.open.values()] == ['{"what":"b"}']
    woken = begin(ac, [Record(BEGINNING, RecordKind.BEGIN, 0, START, digest="0"), recorded(1, "a")])
    assert [call.args for call in woken.open.values()] == ['{"what":"c"}']


class OldError(PenstockError):
    pass


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (KeyError("k"), KeyError, "'k'"),
        (OldError("what", fix="Do.", part=1), OldError, "what Do."),
        (UnicodeDecodeError("utf8", b"x", 0, 1, "bad"), StepFailed, "UnicodeDecodeError"),
        (ExceptionGroup("many", [ValueError()]), StepFailed, "ExceptionGroup"),
        (Unprintable(), Unprintable, ""),
        (StopIteration(), StepFailed, "StopIteration"),
        (ValueError("x" * 100_000), ValueError, "x" * 10_000),
        (TypeError({1: object()}), TypeError, "object"),
    ],
)
def test_errors_come_back_as_what_they_were(error: Exception, kind: Any, said: str) -> None:
    """(WF47)"""
    text = error_outcome(error)
    assert len(text) < 50_000
    result, found = read_outcome(text, lambda _: None)
    assert result is None
    assert type(found) is kind
    if kind is not Unprintable:
        assert said in str(found)


CODE = """
class Hostile:
    def __getattribute__(self, name):
        raise RuntimeError(name)

hostile = Hostile()
NAMES = frozenset({"a", "b", "c"})

class Helper:
    def help(self):
        return {part} in {"a", "b"}

async def flow(ctx):
    return [helper for helper in (1, 2, {whole})]
"""


def fingerprint_of(part: str, whole: str, monkeypatch: pytest.MonkeyPatch) -> str:
    module: Any = ModuleType("fingerprinted")
    exec(CODE.replace("{part}", part).replace("{whole}", whole), vars(module))
    monkeypatch.setitem(sys.modules, "fingerprinted", module)
    registry = Registry()
    registry.add(WorkflowFunction(module.flow, public=False))
    return registry.fingerprint


def test_the_fingerprint_of_a_program_is_that_of_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [fingerprint_of(*each, monkeypatch) for each in (("1", "2"), ("1", "2"), ("3", "2"), ("1", "3"))]
    assert found[0] == found[1]
    assert len(set(found)) == 3


async def test_time_counts_from_what_the_body_learned_last() -> None:
    """Also behind a timer that was due by then, as when all workers were down: that fires next, at its own time."""
    rang = []

    async def ring(seconds: int) -> None:
        await asyncio.sleep(seconds)
        rang.append(seconds)

    async def waiting(ctx: WorkflowCtx) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ring(1))
            await ctx.run_action(ACT, "late")
            group.create_task(ring(3))

    body = begin(waiting)
    late = body.open[1].make_record(body.history.next_place(), START + timedelta(seconds=10), result_outcome('""'))
    body.deliver(late)
    due = []
    while not body.has_ended:
        assert body.next_timer is not None
        due.append((body.next_timer - START).total_seconds())
        place = body.history.next_place()
        body.deliver(Record(-place, RecordKind.TIMER, place, body.next_timer))
    assert (due, rang) == ([1, 13], [1, 3])


@pytest.mark.parametrize(("was", "now", "fits"), [(0, 0, False), (0, 1, True), (1, 0, True), (1, 1, True)])
async def test_unstable_arguments_are_not_compared(was: int, now: int, *, fits: bool) -> None:
    """(WF34)"""

    def calling(what: str, unstable: int) -> Callable[[WorkflowCtx], Awaitable[None]]:
        async def call(ctx: WorkflowCtx) -> None:
            await ctx.with_options(unstable_args=bool(unstable)).run_action(ACT, what)

        return call

    record = begin(calling("old", was)).open[1].make_record(1, START, result_outcome('""'))
    history = [Record(BEGINNING, RecordKind.BEGIN, 0, START), record]
    with nullcontext() if fits else pytest.raises(Mismatch, match="old"):
        assert begin(calling("new", now), history).has_ended
    with pytest.raises(UsageError, match="unstable_args"):
        WorkflowCtx(begin(calling("any", 0)), REGISTRY, RUN).with_options(unstable_args="yes")  # type: ignore[arg-type]


def test_an_exported_history_says_how_far_the_body_had_come() -> None:
    """Records of steps that ended together were stored before it had learned of any of them."""
    together = [replace(recorded(number, "part"), learned=0) for number in (1, 2)]
    records = [Record(BEGINNING, RecordKind.BEGIN, 0, START, learned=-1), *together]
    exported = json.loads(json.dumps(write_history(records, lambda one: json.loads(one.outcome or "null"))))
    assert [(one.number, one.place, one.learned) for one in read_records(exported)] == [
        (0, 0, -1),
        (1, 1, 0),
        (2, 2, 0),
    ]


def test_a_new_parameter_with_a_default_changes_no_call() -> None:
    """(WF35)"""

    async def grown(ctx: Any, what: str, more: int = 7) -> str:
        raise AssertionError("no step runs here")

    function: Any = ActionFunction(grown, public=False, name=ACT.name)
    registry = Registry()
    registry.add(function)

    async def call(ctx: WorkflowCtx) -> None:
        await ctx.run_action(function, "part")

    records = [Record(BEGINNING, RecordKind.BEGIN, 0, START), recorded(1, "part")]
    workflow: Any = WorkflowFunction(call, public=False)
    body = Body(workflow, History(records), 7, Beginning(), lambda text: text)
    body.begin(START, WorkflowCtx(body, registry, RUN), {})
    body.deliver(records[1])
    assert body.has_ended
