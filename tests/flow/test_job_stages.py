"""Pending jobs are ready, scheduled or retrying: in their status, in filters, in counts, and in what is canceled."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock import ActionCtx, App, MutationCtx, Retry
from penstock.errors import ValueInvalid
from penstock.store.session import reading
from penstock.testing import TestApp

app = App()
HOUR = timedelta(hours=1)
often = app.workpool("often", max_parallelism=2, default_retry=Retry.fixed(3600, max_attempts=3))
one_by_one = app.workpool("one_by_one", max_parallelism=1, key_parallelism=1)


@app.internal_action
async def send(ctx: ActionCtx, how: str) -> None:
    if how == "fail":
        raise ConnectionError("away")


@app.mutation
async def see_own(ctx: MutationCtx) -> dict[str, str]:
    """Enqueue jobs, and see them before they are stored."""
    await often.enqueue(ctx, send, how="now")
    await often.with_options(run_after=HOUR).enqueue(ctx, send, how="later")
    found = {stage: await ctx.jobs.list(state=stage) for stage in ("ready", "scheduled", "pending")}
    return {stage: " ".join(sorted(job.args["how"] for job in jobs)) for stage, jobs in found.items()}


@pytest.mark.both_stores
async def test_a_pending_job_says_what_it_waits_for(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        failed = await often.with_options(retry=True).enqueue(backend, send, how="fail")
        await backend.run_until_idle(advance=False)
        later = await often.with_options(run_after=HOUR).enqueue(backend, send, how="later")
        now = await often.enqueue(backend, send, how="now")
        gated = await one_by_one.with_options(concurrency_key="a").enqueue(backend, send, how="at the gate")
        stages = {job: (await backend.job(job)) for job in (failed, later, now, gated)}
        found = {job: None if one is None else (one.state.value, one.stage) for job, one in stages.items()}
        assert found == {
            failed: ("pending", "retrying"),
            later: ("pending", "scheduled"),
            now: ("pending", "ready"),
            gated: ("pending", "ready"),
        }
        for stage, jobs in {"ready": {now, gated}, "scheduled": {later}, "retrying": {failed}}.items():
            assert {job.id for job in await backend.jobs(stage)} == jobs
        assert {job.id for job in await backend.jobs("pending")} == {*stages}
        counts = await backend.job_counts()
        assert [counts[stage] for stage in ("ready", "scheduled", "retrying", "running")] == [2, 1, 1, 0]
        async with reading(backend.engine.store.begin_read) as session:
            few = await backend.engine.store.jobs.count_some(session, backend.clock.now(), 1)
        assert (few["ready"], few["running"], few["failed"]) == (2, 0, 0), "one in the queue, and one at the gate"
        with pytest.raises(ValueInvalid, match="no state 'waiting'"):
            await backend.jobs("waiting")

        assert await often.cancel_all(backend, state="retrying") == 1
        await backend.run_until_idle(advance=False)
        left = [await backend.job(job) for job in (failed, later, now)]
        assert [one and one.stage for one in left] == ["canceled", "scheduled", "success"]


@pytest.mark.both_stores
async def test_a_transaction_sees_the_stages_of_its_own_jobs(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        found = await backend.run_mutation(see_own)
        assert found == {"ready": "now", "scheduled": "later", "pending": "later now"}
