"""Runs of workflows as people look after them: lists, steps, events, exports and patches; and replayed histories."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from penstock import (
    ActionCtx,
    App,
    DataError,
    JobId,
    MutationCtx,
    Retry,
    Table,
    UnawaitedCall,
    ValueInvalid,
    WorkflowCtx,
    sync,
)
from penstock.errors import IdInvalid
from penstock.operations import workflows
from penstock.operations.operation import Operation
from penstock.operations.workflows import EventUnknown, Run, RunUnknown
from penstock.schema.encoder import MASKED
from penstock.testing import ReplayFailed, TestApp, replay

pytestmark = pytest.mark.both_stores
NOW = timedelta(0)
app = App()


class Note(Table):
    text: str


class Card(BaseModel):
    name: str
    number: SecretStr


card_added = app.event("card_added", Card)
failing: list[str] = []
pool = app.workpool("orders")


@app.internal_mutation
async def note(ctx: MutationCtx, text: str) -> str:
    await ctx.db.insert(Note(text=text))
    return text.upper()


@app.internal_action
async def call(ctx: ActionCtx, what: str) -> str:
    await asyncio.sleep(0)  # it lets others run, as a real call does
    if what in failing:
        failing.remove(what)
        raise ConnectionError(f"no way for {what}")
    return what


@app.internal_action
async def charge(ctx: ActionCtx, card: Card) -> SecretStr:
    return SecretStr(f"receipt {card.number.get_secret_value()}")


@app.workflow
async def order(ctx: WorkflowCtx, name: str) -> str:
    await ctx.run_mutation(note, name)
    patient = ctx.with_options(retry=Retry(max_attempts=3, initial_backoff=600, base=1))
    await asyncio.gather(patient.run_action(call, "a"), ctx.run_action(call, "b"))
    await ctx.sleep(timedelta(days=1))
    card = await ctx.wait_for(card_added, timeout=timedelta(days=2))
    await ctx.run_action(charge, card)
    return name


async def see(backend: TestApp, operation: Operation, **given: Any) -> Any:
    defaults = {one.name: one.default for one in operation.takes}
    return await operation.run(backend, {**defaults, **given})


async def test_a_run_is_seen_with_its_steps(database_url: str) -> None:
    """(WF153, WF154)"""
    async with TestApp(app, database_url) as backend:
        failing[:] = ["a", "a"]
        began = backend.clock.now()
        job = await backend.scheduler.run_after(NOW, order, "ada")
        await backend.run_until_idle(advance=False)
        run: Run = await see(backend, workflows.show, run=job)
        assert run.doing == "waiting"
        told = [(one.number, one.kind, one.what.partition(":")[2], one.state, one.attempts) for one in run.steps]
        assert told == [
            (1, "mutation", "note", "done", 0),
            (2, "action", "call", "retries", 1),
            (3, "action", "call", "done", 0),
        ]
        assert run.steps[1].due_at is not None
        for _ in range(2):
            backend.clock.advance(timedelta(hours=1))
            await backend.run_until_idle(advance=False)
        backend.clock.advance(timedelta(days=1))
        await backend.run_until_idle(advance=False)
        run = await see(backend, workflows.show, run=job)
        retried, sleep = run.steps[1], run.steps[-1]
        assert (retried.state, retried.attempts, retried.began_at) == ("done", 2, began)
        assert (sleep.kind, sleep.what, sleep.ended_at) == ("timer", "sleep", retried.ended_at + timedelta(days=1))  # type: ignore[operator]
        assert sleep.began_at == retried.ended_at
        ((found, doing),) = await see(backend, workflows.every, state="waiting", function="order")
        assert (found.id, doing) == (job, "waiting")
        assert await see(backend, workflows.every, state="parked") == []
        with pytest.raises(RunUnknown):
            await see(backend, workflows.show, run=await backend.scheduler.run_after(timedelta(1), call, "c"))


async def test_an_event_is_sent_by_name_and_a_run_is_canceled(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        job, other = [await backend.scheduler.run_after(NOW, order, name) for name in ("ada", "bob")]
        await backend.run_until_idle(advance=False)
        with pytest.raises(EventUnknown, match="card_added"):
            await see(backend, workflows.send, run=job, event="card", payload="1")
        for wrong in ("1", "{", None):
            with pytest.raises(ValueInvalid):
                await see(backend, workflows.send, run=job, event="card_added", payload=wrong)
        card = json.dumps({"name": "Ada", "number": "4242"})
        await see(backend, workflows.send, run=job, event="card_added", payload=card)
        run: Run = await see(backend, workflows.show, run=job)
        assert run.events == ["card_added"]
        await see(backend, workflows.cancel, run=other)
        await backend.run_until_idle(raise_errors=False)
        runs = [await see(backend, workflows.show, run=one) for one in (job, other)]
        assert [one.doing for one in runs] == ["success", "canceled"]
        event = next(one for one in runs[0].steps if one.kind == "event")
        assert event.result["payload"] == {"name": "Ada", "number": MASKED}
        assert "4242" not in repr(runs)


@app.internal_mutation
def send_in_a_thread(ctx: sync.MutationCtx, runs: list[JobId], number: str) -> int:
    card_added.send(ctx, runs[0], Card(name="Ada", number=SecretStr(number)))
    return len(card_added.broadcast(ctx, runs[1:], Card(name="Bob", number=SecretStr(number))))


@app.internal_mutation
async def forget_await(ctx: MutationCtx, run: JobId) -> None:
    card_added.send(ctx, run, Card(name="Ada", number=SecretStr("4242")))  # type: ignore[unused-coroutine]


async def test_events_are_sent_without_await_where_nobody_awaits_and_else_with_it(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        failing.clear()
        runs = [await backend.scheduler.run_after(NOW, order, name) for name in ("ada", "bob", "eve")]
        assert await backend.run_mutation(send_in_a_thread, [*runs[:2]], "4242") == 1
        with pytest.raises(UnawaitedCall):
            await backend.run_mutation(forget_await, runs[2])
        await backend.run_until_idle(raise_errors=False)
        ended = [await see(backend, workflows.show, run=run) for run in runs]
        assert [one.doing for one in ended] == ["success", "success", "failed"]


async def export_of(backend: TestApp, job: JobId) -> dict[str, Any]:
    found = await see(backend, workflows.export, run=job)
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


async def test_a_history_is_replayed_without_a_database(database_url: str, tmp_path: Path) -> None:
    async with TestApp(app, database_url) as backend:
        failing[:] = ["a"]
        job = await backend.scheduler.run_after(NOW, order, "ada")
        await backend.run_until_idle(advance=False)
        early = await export_of(backend, job)
        await card_added.send(backend, job, Card(name="Ada", number=SecretStr("4242")))
        await backend.run_until_idle()
        late = await export_of(backend, job)
    (tmp_path / "late.json").write_text(json.dumps(late), "utf-8")
    assert "4242" not in json.dumps(late)
    replay(app, early)
    replay(app, tmp_path / "late.json")
    replay(app, str(tmp_path / "late.json"))
    with pytest.raises(ValueInvalid, match="no history"):
        replay(app, {"run": job})
    with pytest.raises(ReplayFailed, match="declares no workflow"):
        replay(App(), late)


def changed(body: Any) -> App:
    """The program after a change of the workflow's code."""
    other = App()
    for function in (note, call, charge):
        other.registry.add(function)
    other.workflow(name=order.name)(body)
    return other


async def more(ctx: WorkflowCtx, name: str) -> str:
    found = await order.declared(ctx, name)
    await ctx.run_mutation(note, "more")
    return str(found)


async def fewer(ctx: WorkflowCtx, name: str) -> str:
    return await ctx.run_mutation(note, name)


async def other_call(ctx: WorkflowCtx, name: str) -> str:
    return await ctx.run_action(call, name)


async def raising(ctx: WorkflowCtx, name: str) -> str:
    await order.declared(ctx, name)
    raise ValueError("after all")


@pytest.mark.parametrize(
    ("body", "said"),
    [(more, "goes on"), (fewer, "ends where"), (other_call, "now makes action"), (raising, "raises ValueError")],
)
async def test_changed_code_does_not_fit(database_url: str, body: Any, said: str) -> None:
    async with TestApp(app, database_url) as backend:
        failing.clear()
        job = await backend.scheduler.run_after(NOW, order, "ada")
        await card_added.send(backend, job, Card(name="Ada", number=SecretStr("4242")))
        await backend.run_until_idle()
        history = await export_of(backend, job)
    replay(changed(order.declared), history)
    with pytest.raises(ReplayFailed, match=said):
        replay(changed(body), history)


def release(*, patched: bool, activate: bool = True) -> App:
    """A release of a program: with a change of a workflow, or before it."""
    made = App()

    @made.internal_mutation(name="release:write")
    async def write(ctx: MutationCtx, text: str) -> None:
        await ctx.db.insert(Note(text=text))

    @made.workflow(name="release:flow")
    async def flow(ctx: WorkflowCtx) -> None:
        await ctx.run_mutation(write, "first")
        if patched and ctx.patched("second", activate=activate):
            await ctx.run_mutation(write, "second")
        await ctx.run_mutation(write, "middle")
        await ctx.sleep(timedelta(days=1))
        await ctx.run_mutation(write, "third")

    return made


async def test_patches_tell_when_an_old_branch_may_go(database_url: str) -> None:
    before, after = release(patched=False), release(patched=True)

    async def seen(backend: TestApp) -> list[tuple[str, str, int, int]]:
        found = (await see(backend, workflows.patches))["patches"]
        return [(one.name, one.workflow, one.with_it, one.without) for one in found]

    async with TestApp(before, database_url) as old:
        (flow,) = [one for one in before.registry if one.name == "release:flow"]
        await old.scheduler.run_after(NOW, flow)  # type: ignore[arg-type]
        await old.run_until_idle(advance=False)
        assert await seen(old) == []
        old.clock.advance(timedelta(hours=1))
        async with TestApp(after, database_url, clock=old.clock) as new:
            (flow,) = [one for one in after.registry if one.name == "release:flow"]
            await new.scheduler.run_after(NOW, flow)  # type: ignore[arg-type]
            await new.run_until_idle(advance=False)
            assert await seen(new) == [("second", "release:flow", 1, 1)]
            new.clock.advance(timedelta(hours=23, minutes=30))
            await new.run_until_idle(advance=False)
            assert await seen(new) == [("second", "release:flow", 1, 0)]
            await new.run_until_idle()
            assert await seen(new) == [("second", "release:flow", 0, 0)]


async def test_workers_that_know_a_change_go_on_with_marked_runs_before_they_mark_any(database_url: str) -> None:
    """(WF133)"""
    known, active = release(patched=True, activate=False), release(patched=True)

    async def begin(backend: TestApp) -> JobId:
        flow: Any = backend.app.registry.find("release:flow")
        run = await backend.scheduler.run_after(NOW, flow)
        await backend.run_until_idle(advance=False)
        return run

    async def notes(backend: TestApp, run: JobId) -> list[str]:
        found: Run = await see(backend, workflows.show, run=run)
        assert found.doing == "success"
        return [one.args["text"] for one in found.steps if one.kind == "mutation" and isinstance(one.args, dict)]

    async with TestApp(known, database_url) as first:
        unmarked = await begin(first)
        async with TestApp(active, database_url, clock=first.clock) as second:
            marked = await begin(second)
            first.clock.advance(timedelta(days=1))
            await first.run_until_idle(advance=False)  # goes on with both
            assert await notes(first, unmarked) == ["first", "middle", "third"]
            assert await notes(first, marked) == ["first", "second", "middle", "third"]
            again = await begin(first)
            first.clock.advance(timedelta(days=1))
            await second.run_until_idle(advance=False)
            assert await notes(second, again) == ["first", "middle", "third"], "it had passed the place without"


async def test_the_doctor_tells_runs_that_stand_still(database_url: str) -> None:
    """Parked runs at once; runs that wait for an event without a timeout after thirty days."""
    before, after = release(patched=False), App()

    @after.workflow(name="release:flow")
    async def flow(ctx: WorkflowCtx) -> None:
        await ctx.run_mutation(told, "other")

    @after.internal_mutation
    async def told(ctx: MutationCtx, text: str) -> None:
        await ctx.db.insert(Note(text=text))

    said = after.event("said", str)

    @after.workflow
    async def listen(ctx: WorkflowCtx) -> str:
        return await ctx.wait_for(said)

    async def seen(backend: TestApp) -> list[tuple[str, str]]:
        return [(one.code, one.where) for one in await backend.health() if one.code.startswith("run-")]

    async with TestApp(before, database_url) as old:
        (flow_before,) = [one for one in before.registry if one.name == "release:flow"]
        await old.scheduler.run_after(NOW, flow_before)  # type: ignore[arg-type]
        await old.run_until_idle(advance=False)
        assert await seen(old) == []
        old.clock.advance(timedelta(days=1))
        async with TestApp(after, database_url, clock=old.clock) as new:
            await new.scheduler.run_after(NOW, listen)
            await new.run_until_idle(advance=False)
            assert await seen(new) == [("run-parked", "workflow release:flow")]
            new.clock.advance(timedelta(days=31))
            unheard = ("run-unheard", f"workflow {listen.name}")
            assert await seen(new) == [("run-parked", "workflow release:flow"), unheard]


async def test_an_event_is_sent_by_workflow_and_key(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        run = await pool.with_options(key="ada").enqueue(backend, order, "ada")
        card = json.dumps({"name": "Ada", "number": "4242"})
        for name in ("order#ada", f"{order.name}#ada"):
            await see(backend, workflows.send, run=name, event="card_added", payload=card)
        found: Run = await see(backend, workflows.show, run=run)
        assert found.events == ["card_added", "card_added"]
        with pytest.raises(DataError, match="there is none"):
            await see(backend, workflows.send, run="order#bob", event="card_added", payload=card)
        for unknown in ("nothing#ada", "note#ada", "#ada"):
            with pytest.raises(RunUnknown):
                await see(backend, workflows.send, run=unknown, event="card_added", payload=card)


async def test_runs_are_listed_by_time_and_key_in_pages_and_named_by_workflow_and_key(database_url: str) -> None:
    """(WF72, WF138)"""
    async with TestApp(app, database_url) as backend:
        failing.clear()
        runs = list[JobId]()
        for name in ("ada", "bob", "ada", "eve", "ada"):
            if runs and name == "ada":
                await see(backend, workflows.cancel, run="order#ada", now=True)
                await backend.run_until_idle(advance=False, raise_errors=False)
            runs.append(await pool.with_options(key=name).enqueue(backend, order, name))
            await backend.run_until_idle(advance=False, raise_errors=False)
            backend.clock.advance(timedelta(hours=1))

        async def listed(**asked: Any) -> list[int]:
            found = await see(backend, workflows.every, **asked)
            return [runs.index(job.id) for job, _ in found]

        assert await listed() == [4, 3, 2, 1, 0]
        assert await listed(limit=2) == [4, 3]
        assert await listed(limit=2, after=runs[3]) == [2, 1]
        assert await listed(limit=2, after=runs[1]) == [0]
        assert await listed(key="ada") == [4, 2, 0]
        assert await listed(key="ada", state="canceled", after=runs[2]) == [0]
        moment = (backend.clock.now() - timedelta(hours=2, minutes=30)).isoformat()
        assert sorted([*await listed(since=moment), *await listed(before=moment)]) == [0, 1, 2, 3, 4]
        assert await listed(before=moment, state="waiting") == [1]
        with pytest.raises(IdInvalid):
            await listed(after="nonsense")
        for address in ("order#ada", f"{order.name}#ada"):
            assert (await see(backend, workflows.show, run=address)).job.id == runs[4]
        assert (await see(backend, workflows.export, run="order#bob"))["run"] == runs[1]
        await see(backend, workflows.cancel, run="order#bob", now=True)
        await backend.run_until_idle(advance=False, raise_errors=False)
        assert (await see(backend, workflows.show, run="order#bob")).doing == "canceled"
        assert (await see(backend, workflows.retry, run="order#bob", step=1))["run"] == runs[1]
        assert (await see(backend, workflows.fork, run="order#eve", step=1))["of"] == runs[3]
        for wrong in ("order#nobody", "nothing#ada", "order#"):
            with pytest.raises(RunUnknown):
                await see(backend, workflows.show, run=wrong)
