"""Runs whose workers die are parked, and the body of a run logs each line once, however often it is replayed."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from stage.databases import run_sql
from stage.faults import run_with_crashes
from stage.stories import status_of

from penstock import ActionCtx, App
from penstock.calls.workflows.context import WorkflowCtx
from penstock.calls.workflows.manage import end_now
from penstock.sync import WorkflowCtx as SyncWorkflowCtx
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

NOW, HOUR = timedelta(0), timedelta(hours=1)
log = logging.getLogger("flows of others")
bad_app, good_app, app = App(), App(), App()
began: list[str] = []


def deploy(release: App) -> Any:
    @release.internal_action(name="poison:act")
    async def act(ctx: ActionCtx) -> None:
        began.append(ctx.work.key)

    @release.workflow(name="poison:flow")
    async def flow(ctx: WorkflowCtx, *, slept: bool) -> str:
        if slept:
            await ctx.sleep(HOUR)
        await ctx.run_action(act)
        return "well"

    release.registry.fingerprint = str(id(release))
    return flow


bad, good = deploy(bad_app), deploy(good_app)


NOVEL = {  # what a newer release stores, and what both know
    "fact": ("outcome = '{\"novel\": 1, ' || substr(outcome, 2)", "outcome = replace(outcome, '\"novel\": 1, ', '')"),
    "kind": ("kind = 'novel'", "kind = 'begin'"),
}


@pytest.mark.parametrize("what", NOVEL)
async def test_a_run_of_a_newer_penstock_is_left_to_its_workers(database_url: str, what: str) -> None:
    """(WF131)"""
    async with TestApp(good_app, database_url) as old, TestApp(bad_app, database_url, clock=old.clock) as new:
        table = old.engine.store.dialect.translate("update penstock.workflow_record set")
        run = await old.scheduler.run_after(NOW, good, slept=True)
        await old.run_until_idle(advance=False)
        await run_sql(database_url, f"{table} {NOVEL[what][0]}")
        await old.run_until_idle()
        status = await status_of(old, run)
        assert (status.state.value, "newer release of penstock" in (status.error or "")) == ("pending", True), status
        await run_sql(database_url, f"{table} {NOVEL[what][1]}")
        await new.run_until_idle()
        assert (await status_of(new, run)).result == "well"


@pytest.mark.parametrize("then", ["deploy", "cancel", "end now"])
@pytest.mark.parametrize("slept", [True, False])
async def test_a_run_that_kills_five_workers_is_parked(database_url: str, then: str, *, slept: bool) -> None:
    """(WF121, WF156)"""
    async with TestApp(bad_app, database_url) as backend:
        run = await backend.scheduler.run_after(NOW, bad, slept=slept)
        if slept:
            await backend.run_until_idle(advance=False)
            backend.clock.advance(HOUR)
        began.clear()
        assert await run_with_crashes(backend, [1] * 9) == ["workflow.recorded", *["workflow.step_ran"] * 4]
        status = await status_of(backend, run)
        assert (status.state.value, status.attempt, began) == ("pending", 0, [f"{run}/1"] * 4)
        assert status.error == "WorkflowParked: 5 workers died in a row as they ran it"
        assert [one.where for one in await backend.health() if one.code == "run-parked"] == ["workflow poison:flow"]
        if then == "deploy":
            async with TestApp(good_app, database_url, clock=backend.clock) as fixed:
                await fixed.run_until_idle()
                assert (await status_of(fixed, run)).result == "well"
            return
        began.clear()
        if then == "cancel":
            await backend.scheduler.cancel(run)
        else:
            await end_now(backend.job_calls, run)
        await backend.run_until_idle()
        assert ((await status_of(backend, run)).state.value, began) == ("canceled", [])


@app.internal_action
async def act(ctx: ActionCtx) -> None:
    log.info("act")


@app.workflow
async def talk(ctx: WorkflowCtx) -> None:
    try:
        for number in range(3):
            log.info("before %s", number)
            await ctx.sleep(HOUR)
            log.warning("between %s", number)
            await ctx.run_action(act)
    finally:
        log.info("end")


@app.workflow
def talk_in_a_thread(ctx: SyncWorkflowCtx) -> None:
    try:
        for number in range(3):
            log.info("before %s", number)
            ctx.sleep(HOUR)
            log.warning("between %s", number)
            ctx.run_action(act)
    finally:
        log.info("end")


@pytest.mark.parametrize("flow", [talk, talk_in_a_thread])
async def test_a_body_logs_each_line_once(database_url: str, caplog: pytest.LogCaptureFixture, flow: Any) -> None:
    """(WF45)"""
    caplog.set_level(logging.INFO)
    async with TestApp(app, database_url) as backend:
        run = await backend.scheduler.run_after(NOW, flow)
        await backend.run_until_idle()
        assert (await status_of(backend, run)).state.value == "success"
        lines = [one.getMessage() for one in caplog.records if one.name == log.name]
        one = "before {}, between {}, act, "
        assert ", ".join(lines) == "".join(one.format(number, number) for number in range(3)) + "end"


async def test_a_crash_repeats_only_what_was_logged_since_the_last_record(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """(WF45)"""
    caplog.set_level(logging.INFO)
    async with TestApp(app, database_url) as backend:
        await backend.scheduler.run_after(NOW, talk)
        await run_with_crashes(backend, [3, 4])
        lines = [one.getMessage() for one in caplog.records if one.name == log.name]
        assert [one for one in lines if one.startswith("before")] == [f"before {number}" for number in range(3)]
        assert "end" in lines
