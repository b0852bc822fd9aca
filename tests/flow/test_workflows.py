"""Workflows: steps that take effect once, waits without a slot, events, children, cancels; and what crashes leave."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from cryptography.fernet import Fernet
from pydantic import BaseModel
from stage.faults import run_with_crashes
from stage.stories import rows_of
from stage.waits import until

from penstock import (
    ActionCtx,
    App,
    ApplicationError,
    Backend,
    CallTimeout,
    Conflict,
    DataError,
    FernetCodec,
    JobId,
    MutationCtx,
    PenstockError,
    QueryCtx,
    Retry,
    Success,
    Table,
    ValueInvalid,
    WorkResult,
)
from penstock.calls.workflows.context import WorkflowCtx
from penstock.errors import DatabaseUnavailable, EventTimeout, StepLost
from penstock.jobs.job import job_uuid
from penstock.testing import TestApp, gate, raising

pytestmark = pytest.mark.both_stores

NOW = timedelta(0)
app = OPENED = App()


class Effect(Table):
    what: str


@app.internal_mutation
async def do(ctx: MutationCtx, what: str) -> str:
    await ctx.db.insert(Effect(what=what))
    return what.upper()


@app.internal_action
async def act(ctx: ActionCtx, what: str) -> str:
    await ctx.run_mutation(do, what)
    return what.upper()


@app.internal_query
async def count(ctx: QueryCtx) -> int:
    return len(await ctx.db.query(Effect).collect())


@app.internal_query
async def effects(ctx: QueryCtx) -> list[str]:
    return [one.what for one in await ctx.db.query(Effect).collect()]


@app.workflow
async def three_steps(ctx: WorkflowCtx, name: str) -> list[Any]:
    first = await ctx.run_mutation(do, f"{name} 1")
    seen = await ctx.run_query(count)
    second = await ctx.run_action(act, f"{name} 2")
    third = await ctx.run_mutation(do, f"{name} 3")
    return [first, seen, second, third]


async def run(backend: TestApp, workflow: Any, *args: Any) -> Any:
    job = await backend.scheduler.run_after(NOW, workflow, *args)
    await backend.run_until_idle()
    status = await backend.job(job)
    assert status is not None
    return status


async def test_steps_take_effect_in_order(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        status = await run(backend, three_steps, "a")
        assert status.result == ["A 1", 1, "A 2", "A 3"], status
        assert await backend.run_query(effects) == ["a 1", "a 2", "a 3"]


async def test_a_crash_at_each_moment_changes_nothing(database_url: str) -> None:
    """Each moment of a step, one after another; the fourth argument is an action, which may run twice."""
    async with TestApp(app, database_url) as backend:
        seen, moments = set(), [""]
        for at in range(1, 40):
            name = f"n{at}"
            job = await backend.scheduler.run_after(NOW, three_steps, name)
            moments = await run_with_crashes(backend, [at])
            status = await backend.job(job)
            assert status is not None
            assert status.state.value == "success", (at, moments, status)
            assert status.result[0::2][0] == f"{name} 1".upper(), (at, moments)
            assert status.result[2:] == [f"{name} 2".upper(), f"{name} 3".upper()], (at, moments)
            done = [one for one in await backend.run_query(effects) if one.startswith(f"{name} ")]
            assert done.count(f"{name} 1") == done.count(f"{name} 3") == 1, (at, moments, done)
            assert 1 <= done.count(f"{name} 2") <= 2, (at, moments, done)
            seen.update(moments)
            if not moments:
                break
        assert seen == {"commit.before", "commit.after", "workflow.step_ran", "workflow.recorded"}
        assert not moments, "there are more moments"


UNKNOWN = "test_workflows:refuse.<locals>.Unknown"


class CardDeclined(Exception):
    pass


class Refused(ApplicationError):
    pass


@app.internal_mutation
async def refuse(ctx: MutationCtx, how: str) -> None:
    await ctx.db.insert(Effect(what="never"))
    if how == "own":
        raise CardDeclined("no", 7)
    if how == "application":
        raise Refused({"card": 7})
    if how == "stop":
        raise StopIteration
    if how == "local":

        class Local(KeyError):
            pass

        raise Local("key")
    if how == "unknown":

        class Unknown(Exception):
            pass

        raise Unknown("what")
    raise Conflict("mine")


@app.internal_action
async def give_too_much(ctx: ActionCtx) -> str:
    return "x" * 2_000_000


@app.internal_action
async def give_a_set(ctx: ActionCtx) -> Any:
    return {1, 2}


@app.workflow
async def catch(ctx: WorkflowCtx) -> list[str]:
    said = []
    for how in ("own", "application", "stop", "local", "unknown", "conflict"):
        try:
            await ctx.run_mutation(refuse, how)
        except Exception as error:
            data = getattr(error, "data", None) or getattr(error, "facts", None)
            said.append(f"{type(error).__name__} {error.args} {data}")
    for much in (give_too_much, give_a_set):
        try:
            await ctx.run_action(much)
        except PenstockError as error:
            said.append(type(error).__name__)
    await ctx.sleep(timedelta(days=1))  # all of it is replayed
    return said


async def test_errors_of_steps_are_caught_as_what_they_were(database_url: str) -> None:
    """(WF19, WF20, WF23, WF100)"""
    async with TestApp(app, database_url) as backend:
        status = await run(backend, catch)
        assert status.result == [
            "CardDeclined ('no', 7) None",
            "Refused (\"{'card': 7}\",) {'card': 7}",
            "RuntimeError ('coroutine raised StopIteration',) None",
            "KeyError ('key',) None",
            f"StepFailed ('A step raised {UNKNOWN}: what',) {{'type': '{UNKNOWN}', 'text': 'what'}}",
            "Conflict ('mine',) {}",
            "LimitExceeded",
            "ResultInvalid",
        ], status
        assert await backend.run_query(effects) == []


@app.workflow
async def fail(ctx: WorkflowCtx) -> None:
    await ctx.run_mutation(do, "before")
    raise CardDeclined("after all")


@app.workflow
async def repeat_chance(ctx: WorkflowCtx) -> list[Any]:
    began = ctx.now()
    told = [str(ctx.uuid()), ctx.random.random()]
    await ctx.run_mutation(do, json.dumps(told))
    await ctx.sleep(timedelta(days=1))
    woken = ctx.now()
    return [told, str(ctx.uuid()), (woken - began).total_seconds()]


ended: list[Any] = []


@app.internal_mutation
async def note_end(ctx: MutationCtx, work_id: JobId, result: WorkResult[Any], context: str) -> None:
    await ctx.db.insert(Effect(what=f"{context}: {result.kind}"))


pool = app.workpool("flows", max_parallelism=1)
steps_pool = app.workpool("steps", max_parallelism=1, default_retry=Retry(max_attempts=3, initial_backoff=1, base=1))


async def test_a_run_is_a_job(database_url: str) -> None:
    """It ends as jobs do: with a result, an error with the body's traceback, and an on_complete, in its pool."""
    async with TestApp(app, database_url) as backend:
        enqueue = pool.with_options(on_complete=note_end, context="end").enqueue
        good, bad = await enqueue(backend, repeat_chance), await enqueue(backend, fail)
        await backend.run_until_idle(raise_errors=False, advance=False)
        status = await backend.job(bad)
        await backend.run_until_idle()
        found = await pool.result(backend, good)
        assert isinstance(found, Success)
        (first, chance), then, seconds = found.value
        assert first != then
        assert 86400 <= seconds < 86410
        assert status is not None
        assert status.error == "CardDeclined: after all"
        assert "in fail" in (status.traceback or "")
        said = await backend.run_query(effects)
        assert sorted(said) == sorted([json.dumps([first, chance]), "before", "end: failed", "end: success"])
        assert status.attempts[0].number == status.attempt == 1


@app.workflow
async def sleep_long(ctx: WorkflowCtx) -> str:
    await asyncio.sleep(3600)
    try:
        async with asyncio.timeout(60):
            await asyncio.sleep(3600)
    except TimeoutError:
        await ctx.run_mutation(do, "late")
    until = ctx.now() + timedelta(days=300)
    await ctx.sleep_until(until)
    await ctx.sleep(timedelta(seconds=-1))
    await ctx.sleep_until(until)
    assert ctx.now() >= until
    return "rested"


@app.internal_mutation
async def tick(ctx: MutationCtx) -> None:
    await ctx.db.insert(Effect(what="tick"))


async def test_a_sleeping_run_holds_no_slot_and_wakes_before_newer_jobs(database_url: str) -> None:
    """(WF49, WF53, WF56, WF57, WF58)"""
    async with TestApp(app, database_url) as backend:
        job = await pool.enqueue(backend, sleep_long)
        await backend.run_until_idle(advance=False)
        status = await backend.job(job)
        assert status is not None
        assert (status.state.value, status.attempt) == ("pending", 0)
        assert status.error == "Waits until 2030-01-01T01:00:00+00:00", status.error
        assert not backend.worker.running
        backend.clock.advance(timedelta(hours=1))
        for _ in range(6):
            await pool.enqueue(backend, tick)
        started = list[str]()
        claimed = backend.worker.on_claimed

        def note(jobs: Any) -> None:
            started.extend(one.function.partition(":")[2] for one in jobs)
            claimed(jobs)

        backend.worker.on_claimed = note
        await backend.run_until_idle(advance=False)
        assert started.index("sleep_long") <= 1  # a place that is free goes to what is ready at once
        await backend.run_until_idle()
        found = await pool.result(backend, job)
        assert found == Success("rested")
        assert sorted(await backend.run_query(effects)) == ["late", *["tick"] * 6]


class Card(BaseModel):
    number: int


card_added = app.event("card_added", Card)
called_off = app.event("called_off", str)


@app.internal_mutation
async def add_card(ctx: MutationCtx, run: JobId, number: int, key: str | None = None, fails: bool = False) -> None:
    await card_added.send(ctx, run, Card(number=number), key=key)
    if fails:
        raise ValueError("rolled back")


@app.internal_mutation
async def call_off(ctx: MutationCtx, run: JobId, why: str) -> None:
    await called_off.send(ctx, run, why)


@app.workflow
async def receive(ctx: WorkflowCtx, many: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(many):
        try:
            found.append((await ctx.wait_for(card_added, timeout=timedelta(days=2))).number)
        except EventTimeout:
            found.append("late")
    event, payload = await ctx.wait_for(card_added, called_off)
    return [*found, event.name, payload if isinstance(payload, str) else payload.number]


async def test_events_are_kept_received_once_and_in_order(database_url: str) -> None:
    """(WF59, WF60, WF62, WF63, WF64, WF65, WF67, WF70, WF71)"""
    async with TestApp(app, database_url) as backend:
        job = await backend.scheduler.run_after(NOW, receive, 4)
        await backend.run_mutation(add_card, job, 1)  # before it has begun
        await backend.run_mutation(add_card, job, 2, "k")
        await backend.run_mutation(add_card, job, 2, "k")
        with pytest.raises(ValueError, match="rolled back"):
            await backend.run_mutation(add_card, job, 3, fails=True)
        await backend.run_until_idle(advance=False)
        await backend.run_mutation(add_card, job, 2, "k")
        backend.clock.advance(timedelta(days=3))  # no worker looks meanwhile
        await backend.run_until_idle(advance=False)
        await backend.run_mutation(add_card, job, 4)
        await backend.run_mutation(call_off, job, "rain")
        await backend.run_until_idle(advance=False)
        status = await backend.job(job)
        assert status is not None
        assert status.result == [1, 2, "late", 4, "called_off", "rain"], status
        with pytest.raises(DataError, match="has ended"):
            await backend.run_mutation(add_card, job, 5)
        with pytest.raises(ValueInvalid):
            await card_added.send(backend, job, "no card")  # type: ignore[call-overload]


async def test_an_event_by_the_deadline_wins_though_nobody_looked(database_url: str) -> None:
    """(WF65, WF66)"""
    async with TestApp(app, database_url) as backend:
        job = await backend.scheduler.run_after(NOW, receive, 2)
        await backend.run_until_idle(advance=False)
        backend.clock.advance(timedelta(days=2))
        await backend.run_mutation(add_card, job, 1)
        backend.clock.advance(timedelta(days=2, seconds=1))
        await backend.run_mutation(add_card, job, 2)  # after the second deadline, which begins with the first event
        await backend.run_until_idle(advance=False)
        status = await backend.job(job)
        assert status is not None
        assert status.result == [1, "late", "card_added", 2], status


@app.workflow
async def child(ctx: WorkflowCtx, what: str) -> str:
    if what == "fails":
        raise CardDeclined("child")
    if what == "sleeps":
        try:
            await ctx.sleep(timedelta(days=1000))
        finally:
            await ctx.run_mutation(do, "child ended")
    return await ctx.with_options(pool=steps_pool).run_mutation(do, what)


@app.workflow
async def parent(ctx: WorkflowCtx) -> list[Any]:
    found: list[Any] = await asyncio.gather(*(ctx.run_workflow(child, f"c{number}") for number in range(5)))
    try:
        await ctx.run_workflow(child, "fails")
    except CardDeclined as error:
        found.append(str(error))
    try:
        async with asyncio.timeout(3600):
            await ctx.run_workflow(child, "sleeps")
    except TimeoutError:
        found.append("late")
    found.append(await ctx.with_options(retry=True).with_options(pool=steps_pool).run_action(fail_twice, "pooled"))
    return found


failures: list[str] = []


@app.internal_action
async def fail_twice(ctx: ActionCtx, what: str) -> str:
    failures.append(ctx.work.key)
    if len(failures) % 3:
        raise ConnectionError("not yet")
    return what


async def test_children_and_steps_in_pools(database_url: str) -> None:
    """All in pools of one: nobody holds a slot while it waits."""
    async with TestApp(app, database_url) as backend:
        failures.clear()
        job = await pool.enqueue(backend, parent)
        await backend.run_until_idle(advance=False, raise_errors=False)
        backend.clock.advance(timedelta(hours=2))
        await backend.run_until_idle(advance=False, raise_errors=False)
        backend.clock.advance(timedelta(minutes=1))
        await backend.run_until_idle(advance=False, raise_errors=False)
        backend.clock.advance(timedelta(minutes=1))
        await backend.run_until_idle(advance=False, raise_errors=False)
        found = await pool.result(backend, job)
        assert found == Success(["C0", "C1", "C2", "C3", "C4", "child", "late", "pooled"])
        assert sorted(await backend.run_query(effects)) == ["c0", "c1", "c2", "c3", "c4", "child ended"]
        counts = await backend.job_counts()
        assert counts.get("running", 0) == counts.get("ready", 0) == counts.get("scheduled", 0) == 0, counts


@app.workflow
async def clean_up(ctx: WorkflowCtx, how: str) -> str:
    await ctx.run_mutation(do, "booked")
    ctx.compensate(do, "unbook")
    await ctx.run_action(act, "paid")
    ctx.compensate(refund, "refund")
    ctx.compensate(fail_once_more)
    try:
        if how == "fails":
            await ctx.run_mutation(refuse, "own")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ctx.sleep(timedelta(days=1)))
            tasks.create_task(ctx.wait_for(card_added))
    except Exception:
        assert how == "fails"
        raise
    except asyncio.CancelledError:
        if how == "swallows":
            return "went on"
        raise
    finally:
        await ctx.run_mutation(do, "finally")
        await ctx.sleep(timedelta(hours=1))
        await ctx.run_mutation(do, "rested")
    return "unreachable"


@app.internal_action
async def refund(ctx: ActionCtx, what: str) -> None:
    await ctx.run_mutation(do, what)


@app.internal_action
async def fail_once_more(ctx: ActionCtx) -> None:
    raise ConnectionError("no bank")


@pytest.mark.parametrize("how", ["fails", "cancels", "swallows"])
async def test_clean_up_and_compensations_run_as_steps(database_url: str, how: str) -> None:
    """(WF102, WF104, WF106, WF107, WF108, WF109, WF114, WF117, WF118)"""
    async with TestApp(app, database_url) as backend:
        job = await backend.scheduler.run_after(NOW, clean_up, how)
        await backend.run_until_idle(advance=False, raise_errors=False)
        if how != "fails":
            await backend.scheduler.cancel(job)
            await backend.scheduler.cancel(job)
        await backend.run_until_idle(advance=False, raise_errors=False)
        if how != "fails":
            await backend.scheduler.cancel(job)  # it is on its way already
        backend.clock.advance(timedelta(hours=2))
        await backend.run_until_idle(advance=False, raise_errors=False)
        status = await backend.job(job)
        assert status is not None
        expected = {"fails": "failed", "cancels": "canceled", "swallows": "success"}
        assert status.state.value == expected[how], status
        undone = [] if how == "swallows" else ["refund", "unbook"]
        assert await backend.run_query(effects) == ["booked", "paid", "finally", "rested", *undone]
        if how == "fails":
            assert "A compensation failed: ConnectionError: no bank" in (status.traceback or "")


async def test_a_cancel_before_the_start_runs_no_code(database_url: str) -> None:
    """(WF111)"""
    async with TestApp(app, database_url) as backend:
        job = await backend.scheduler.run_after(timedelta(hours=1), clean_up, "cancels")
        await backend.scheduler.cancel(job)
        await backend.run_until_idle()
        status = await backend.job(job)
        assert status is not None
        assert status.state.value == "canceled"
        assert await backend.run_query(effects) == []


# ----- code that changes

old_app, new_app, fixed_app = App(), App(), App()
DO: dict[App, Any] = {}


def deploy(release: App) -> None:
    async def do(ctx: MutationCtx, what: str) -> None:
        await ctx.db.insert(Effect(what=what))

    DO[release] = release.internal_mutation(name="release:do")(do)


for release in (old_app, new_app, fixed_app):
    deploy(release)
    release.registry.fingerprint = f"code {len(DO)}"  # they are of one module here


@old_app.workflow(name="release:flow")
async def old_flow(ctx: WorkflowCtx) -> str:
    await ctx.run_mutation(DO[old_app], "a")
    await ctx.sleep(timedelta(hours=1))
    await ctx.run_mutation(DO[old_app], "b")
    await ctx.sleep(timedelta(hours=1))
    return "old"


@new_app.workflow(name="release:flow")
async def new_flow(ctx: WorkflowCtx) -> str:
    await ctx.run_mutation(DO[new_app], "new a")
    await ctx.sleep(timedelta(hours=1))
    return "new"


@fixed_app.workflow(name="release:flow")
async def fixed_flow(ctx: WorkflowCtx) -> str:
    await ctx.run_mutation(DO[fixed_app], "a")
    await ctx.sleep(timedelta(hours=1))
    if ctx.patched("check"):
        await ctx.run_mutation(DO[fixed_app], "checked")
    await ctx.run_mutation(DO[fixed_app], "b")
    await ctx.sleep(timedelta(hours=1))
    return "fixed"


@pytest.mark.parametrize("then", ["reverted", "fixed"])
async def test_a_bad_deploy_loses_nothing_and_heals_with_the_next(database_url: str, then: str) -> None:
    """(WF32, WF37, WF38, WF39, WF130, WF131)"""
    async with TestApp(old_app, database_url) as old:
        early = await old.scheduler.run_after(NOW, old_flow)
        await old.run_until_idle(advance=False)
        old.clock.advance(timedelta(minutes=90))
        await old.run_until_idle(advance=False)
        late = await old.scheduler.run_after(NOW, old_flow)
        await old.run_until_idle(advance=False)
        async with TestApp(new_app, database_url, clock=old.clock) as new:
            old.clock.advance(timedelta(minutes=90))
            assert await new.run_until_idle(advance=False) == 2
            status = await new.job(late)
            assert status is not None
            assert status.error == (
                "WorkflowParked: the code of release:flow does not fit it: call 1 was mutation "
                'release:do("what":"a"), and the code now makes mutation release:do("what":"new a")'
            )
            for _ in range(3):  # nobody tries again what this code has refused
                new.clock.advance(timedelta(minutes=1))
                assert await new.run_until_idle(advance=False) == 0
            assert (status.state.value, status.attempt) == ("pending", 0)
        async with TestApp(old_app if then == "reverted" else fixed_app, database_url, clock=old.clock) as last:
            await last.run_until_idle()
            results = [(await last.job(one)).result for one in (early, late)]  # type: ignore[union-attr]
            async with TestApp(app, database_url, clock=old.clock) as reader:
                done = await reader.run_query(effects)
        if then == "reverted":
            assert (results, done) == (["old", "old"], ["a", "b", "a", "b"])
        else:
            assert (results, done) == (["fixed", "fixed"], ["a", "b", "a", "checked", "b"])


# ----- steps that fail, and workers that die


@app.workflow
async def retry_and_lose(ctx: WorkflowCtx) -> list[Any]:
    found: list[Any] = []
    patient = ctx.with_options(retry=Retry(max_attempts=3, initial_backoff=600, base=1))
    found.append(await patient.run_action(fail_twice, "third time"))
    try:
        await ctx.with_options(timeout=timedelta(milliseconds=10)).run_action(hang)
    except CallTimeout as error:
        found.append(error.code)
    for retry in (False, None):
        try:
            found.append(await ctx.with_options(retry=retry).run_action(act, f"once {retry}"))
        except StepLost as error:
            found.append(error.code)
    return found


hanging: list[str] = []


@app.internal_action
async def hang(ctx: ActionCtx) -> None:
    hanging.append("begun")
    try:
        await ctx.wait_cancelled()
    finally:
        hanging.append("stopped" if ctx.cancelled else "cut off")


async def test_steps_are_retried_time_out_and_are_lost_as_declared(database_url: str) -> None:
    """The third action must not run twice; its worker dies each time it has run, and before it is recorded."""
    async with TestApp(app, database_url) as backend:
        failures.clear()
        job = await backend.scheduler.run_after(NOW, retry_and_lose)
        await backend.run_until_idle(advance=False)
        assert not backend.worker.running  # the wait between attempts holds no slot
        backend.clock.advance(timedelta(minutes=20))
        await run_with_crashes(backend, [1], advance=False)  # once the second attempt has failed, which is recorded
        with gate("workflow.step_ran", when=lambda number, **_: number == 3) as held:
            backend.clock.advance(timedelta(minutes=20))
            work = asyncio.ensure_future(backend.run_until_idle())
            await held.arrived()
            work.cancel()
            await asyncio.wait([work])
            await backend.worker.kill()
        backend.clock.advance(timedelta(seconds=31))
        await backend.run_until_idle()
        status = await backend.job(job)
        assert status is not None
        assert status.result == ["third time", "call_timeout", "step_lost", "ONCE NONE"], status
        assert len(set(failures)) == 1, failures
        assert failures[0] == f"{job}/1"
        assert len(failures) == 3
        assert await backend.run_query(effects) == ["once False", "once None"]


@app.workflow
async def cancel_while_acting(ctx: WorkflowCtx) -> str:
    try:
        await ctx.run_action(hang)
    except asyncio.CancelledError:
        await ctx.run_mutation(do, "cleaned")
        raise
    return "unreachable"


async def test_a_cancel_stops_the_action_that_runs(database_url: str) -> None:
    """(WF103)"""
    async with TestApp(app, database_url) as backend:
        hanging.clear()
        job = await backend.scheduler.run_after(NOW, cancel_while_acting)
        work = asyncio.ensure_future(backend.run_until_idle())
        await until(lambda: bool(hanging))
        await backend.scheduler.cancel(job)
        await backend.worker.tick()
        await work
        status = await backend.job(job)
        assert status is not None
        assert status.state.value == "canceled"
        assert hanging == ["begun", "stopped"]
        assert await backend.run_query(effects) == ["cleaned"]


@app.workflow
async def many_steps(ctx: WorkflowCtx, number: int) -> int:
    for step in range(number):
        await ctx.run_mutation(do, f"{step}")
    return number


async def test_crashes_with_progress_between_them_end_nothing_and_five_without_do(database_url: str) -> None:
    """(WF121, WF122)"""
    async with TestApp(app, database_url) as backend:
        job = await backend.scheduler.run_after(NOW, many_steps, 12)
        moments = await run_with_crashes(backend, [4] * 8)
        assert len(moments) == 8
        status = await backend.job(job)
        assert status is not None
        assert status.result == 12, status
        assert await backend.run_query(effects) == [str(step) for step in range(12)]
        job = await backend.scheduler.run_after(NOW, many_steps, 3)
        assert len(await run_with_crashes(backend, [1] * 10)) == 5
        status = await backend.job(job)
        assert status is not None
        assert (status.state.value, status.attempt) == ("pending", 0)
        assert status.error == "WorkflowParked: 5 workers died in a row as they ran it"


LOST = "WorkerLost: the worker that ran this job died or lost its lease"


async def test_a_worker_that_lost_the_run_writes_nothing(database_url: str) -> None:
    """It is frozen once an action has run, and goes on when another worker has ended the run (WF112)."""
    async with TestApp(app, database_url) as first, TestApp(app, database_url, clock=first.clock) as second:
        job = await first.scheduler.run_after(NOW, three_steps, "a")
        with gate("workflow.step_ran", most=1, when=lambda number, **_: number == 3) as held:
            work = asyncio.ensure_future(first.worker.tick())
            await held.arrived()
            (running,) = first.worker.running.values()
            first.clock.advance(timedelta(seconds=31))
            await second.run_until_idle()
            held.open()
            await asyncio.wait([work, running.task])
        status = await second.job(job)
        assert status is not None
        assert status.result == ["A 1", 1, "A 2", "A 3"], status
        assert await second.run_query(effects) == ["a 1", "a 2", "a 2", "a 3"]
        records = await second.engine.store.workflows.read_history(job_uuid(job))
        assert sorted(record.number for record in records) == [0, 1, 2, 3, 4]


@app.workflow
async def let_pass(ctx: WorkflowCtx, how: str) -> None:
    if how == "timeout":
        await ctx.with_options(timeout=timedelta(milliseconds=1)).run_action(hang)
    await ctx.run_mutation(refuse, how)


@pytest.mark.parametrize("how", ["timeout", "conflict", "application"])
async def test_an_error_that_the_body_lets_pass_ends_the_run(database_url: str, how: str) -> None:
    async with TestApp(app, database_url) as backend:
        job = await backend.scheduler.run_after(NOW, let_pass, how)
        await backend.run_until_idle(raise_errors=False)
        status = await backend.job(job)
        assert status is not None
        assert status.state.value == "failed"


secret_app = App(codec=FernetCodec(Fernet.generate_key().decode()))


@secret_app.internal_action
async def keep(ctx: ActionCtx, what: str) -> str:
    return f"{what} kept"


word = secret_app.event("word", str)


@secret_app.internal_mutation
async def tell_word(ctx: MutationCtx, run: JobId, what: str) -> None:
    await word.send(ctx, run, what)


@secret_app.workflow
async def keep_secret(ctx: WorkflowCtx, what: str) -> list[str]:
    kept = await ctx.run_action(keep, what)
    return [kept, await ctx.wait_for(word), await ctx.with_options(pool=secrets).run_action(keep, what)]


secrets = secret_app.workpool("secrets")


async def test_records_and_events_are_encrypted(database_url: str) -> None:
    """(WF157)"""
    async with TestApp(secret_app, database_url) as backend:
        job = await backend.scheduler.run_after(NOW, keep_secret, "plaintext")
        await backend.run_until_idle(advance=False)
        await backend.run_mutation(tell_word, job, "plaintext")
        await backend.run_until_idle()
        status = await backend.job(job)
        assert status is not None
        assert status.result == ["plaintext kept", "plaintext", "plaintext kept"], status
        names = ("workflow_record", "workflow_event", "finished_job")
        stored = [await rows_of(backend, name) for name in names]
        assert all(len(rows) > 1 for rows in stored)
        assert "plaintext" not in repr(stored)


@app.workflow
async def real(ctx: WorkflowCtx, number: int) -> list[Any]:
    first = await ctx.run_mutation(do, f"real {number}")
    await ctx.sleep(timedelta(milliseconds=200))  # in memory
    both = [*await asyncio.gather(ctx.run_action(act, f"a {number}"), ctx.run_workflow(child, f"c {number}"))]
    await ctx.sleep(timedelta(seconds=1.2))
    try:
        await ctx.wait_for(card_added, timeout=timedelta(seconds=1.2))
    except EventTimeout:
        both.append("none")
    return [first, *both, (await ctx.wait_for(card_added)).number]


async def test_runs_on_two_workers_with_a_clock_that_goes_on_by_itself(database_url: str) -> None:
    """(WF50, WF92)"""
    async with (
        app.open(database_url, services=("worker",)) as one,
        app.open(database_url, services=("worker",)) as other,
    ):
        jobs = [await one.scheduler.run_after(NOW, real, number) for number in range(8)]
        await until(lambda: is_there(other, 16))
        for number, job in enumerate(jobs):
            await until(lambda job=job: waits_for_ever(one, job))  # type: ignore[misc]
            await other.run_mutation(add_card, job, number)
        for number, job in enumerate(jobs):
            found = await pool.result(one, job)
            assert found == Success([f"REAL {number}", f"A {number}", f"C {number}", "none", number])


async def is_there(backend: Backend, count_: int) -> bool:
    return await backend.run_query(count) >= count_


async def waits_for_ever(backend: Backend, job: JobId) -> bool:
    status = await backend.job(job)
    return status is not None and status.error == "Waits for card_added"


async def test_a_commit_whose_answer_is_lost_takes_effect_once(database_url: str) -> None:
    """(WF28)"""
    lost = DatabaseUnavailable("The connection was lost.", uncertain=True)
    async with TestApp(app, database_url) as backend:
        job = await backend.scheduler.run_after(NOW, many_steps, 3)
        with raising("commit.after", lost, times=3, when=lambda transaction: bool(transaction.wrote)):
            await backend.run_until_idle()
        status = await backend.job(job)
        assert status is not None
        assert status.result == 3, status
        assert await backend.run_query(effects) == ["0", "1", "2"]
        records = await backend.engine.store.workflows.read_history(job_uuid(job))
        assert [record.place for record in sorted(records, key=lambda one: one.number)] == [0, 1, 2, 3]


@app.workflow
async def side_by_side(ctx: WorkflowCtx, number: int) -> list[str]:
    seen = await ctx.run_query(count)
    assert seen == 0
    tasks = [asyncio.create_task(ctx.run_mutation(do, f"{one}")) for one in range(number)]
    order = [await one for one in asyncio.as_completed(tasks)]
    await ctx.sleep(timedelta(days=1))  # replayed in the same order
    return order


async def test_mutations_beside_each_other_are_replayed_in_the_order_of_their_commits(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        status = await run(backend, side_by_side, 20)
        assert status.state.value == "success", status
        assert sorted(status.result) == sorted(str(one) for one in range(20))
        records = await backend.engine.store.workflows.read_history(job_uuid(status.id))
        placed = [one.place for one in records if one.number > 0]
        assert len(set(placed)) == len(placed) == 21
