"""What a store promises of crons: decided once, with the job that comes of it, and held while somebody decides."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from conformance.bench import AGAIN, KEEP, NOW, Bench, Suite, after, ended, new_job, patiently, story
from penstock.crons.cron import Cron
from penstock.crons.plan import CronPlan, KeptCron, begin, plan_of, replan, set_paused
from penstock.crons.schedule import Interval
from penstock.jobs.job import NewJob
from penstock.jobs.settle import complete
from penstock.jobs.states import JobEvent
from penstock.store.nouns import crons as store
from penstock.store.nouns.crons import CronLook, CronMove, CronScope, job_text
from penstock.store.session import Session

MINUTE = timedelta(minutes=1)
SCOPE = CronScope(["a", "b", "c"], ["conformance:function"])


class Crons(Suite):
    # ----- plans

    @story
    async def test_a_declared_cron_is_kept_until_another_plan_is_declared(self, bench: Bench) -> None:
        crons, one, two, job = bench.store.crons, plan("b", 1), plan("a", 5, takes_planned_at=True), new_job()
        await crons.declare([], NOW)
        await crons.declare([one, two], NOW)
        assert await _rows(bench) == [begin(two, NOW), begin(one, NOW)]
        await crons.declare([one], after(600))
        assert await _rows(bench) == [begin(two, NOW), begin(one, NOW)], "nothing has changed"
        await _decide(bench, "a", job)
        before, _ = await _rows(bench)
        assert before.job_id == job.id
        other = plan("a", 2, catch_up="skip")
        await crons.declare([other], after(10))
        assert await _rows(bench) == [replan(before, other, after(10)), begin(one, NOW)]

    @story
    async def test_crons_come_and_go_with_a_transaction(self, bench: Bench) -> None:
        crons, one = bench.store.crons, plan("a", 1, declared=False)

        async def create_and_fail(session: Session) -> None:
            assert await crons.create(session, one, NOW)
            raise RuntimeError

        with pytest.raises(RuntimeError):
            await bench.writing(create_and_fail)
        assert await _rows(bench) == []
        assert await bench.writing(lambda session: crons.create(session, one, NOW))
        assert not await bench.writing(lambda session: crons.create(session, plan("a", 7), NOW))
        assert await _rows(bench) == [begin(one, NOW)]
        assert await bench.writing(lambda session: crons.remove(session, "a"))
        assert not await bench.writing(lambda session: crons.remove(session, "a"))
        assert await _rows(bench) == []
        assert await bench.writing(lambda session: crons.create(session, one, NOW))
        await crons.declare([plan("a", 5)], after(10))
        assert [kept.plan for kept in await _rows(bench)] == [plan("a", 5)], "what was created can be declared"

    @story
    async def test_a_cron_is_paused_and_resumed(self, bench: Bench) -> None:
        crons = bench.store.crons
        await crons.declare([plan("a", 1)], NOW)
        (kept,) = await _rows(bench)
        assert not await bench.writing(lambda session: crons.pause(session, "b", NOW, pause=True))
        assert await bench.writing(lambda session: crons.pause(session, "a", NOW, pause=True))
        assert await crons.look(SCOPE, after(90)) == CronLook(due=False, waiting=False, next_at=None)
        assert await crons.decide(SCOPE, after(90), 9, refuse) == 0
        assert await bench.writing(lambda session: crons.pause(session, "a", after(90), pause=False))
        assert await _rows(bench) == [set_paused(replace(kept, paused=True), after(90), pause=False)]
        assert (await crons.look(SCOPE, after(90))).next_at == after(120)

    # ----- look

    @story
    async def test_a_program_looks_at_its_own_crons(self, bench: Bench) -> None:
        crons = bench.store.crons
        await crons.declare([plan("a", 1), plan("theirs", 1), plan("b", 5)], NOW)
        for name, function in (("made", "conformance:function"), ("made by others", "other:function")):
            created = replace(plan(name, 3, declared=False), function=function)
            await bench.writing(partial(_create, crons, created))
        assert await crons.look(SCOPE, NOW) == CronLook(due=False, waiting=False, next_at=after(60))
        assert await crons.look(SCOPE, after(60)) == CronLook(due=True, waiting=False, next_at=after(180))
        assert await _due(bench, 600) == ["a", "made", "b"], "the earliest first"
        assert await _due(bench, 600, limit=2) == ["a", "made"]
        nothing = CronScope([], [])
        assert await crons.look(nothing, after(600)) == CronLook(due=False, waiting=False, next_at=None)

    @story
    async def test_a_cron_that_waits_is_not_due_until_its_run_has_ended(self, bench: Bench) -> None:
        job = new_job("action", retry=AGAIN)
        await bench.store.crons.declare([plan("a", 1, overlap="wait")], NOW)
        await _decide(bench, "a", job)
        waits = CronLook(due=False, waiting=True, next_at=None)
        assert await bench.store.crons.look(SCOPE, after(300)) == waits, "it is ready"
        lease = await bench.lease()
        running = await bench.claim_one(lease)
        assert await bench.store.crons.look(SCOPE, after(300)) == waits, "it runs"
        assert await _due(bench, 300) == []
        await bench.settle(lease, ended(running, JobEvent.RAISED, error="No", now=after(1)))
        assert await bench.store.crons.look(SCOPE, after(300)) == waits, "it waits for its next attempt"
        running = await bench.claim_one(lease, after(90))
        await bench.settle(lease, ended(running, now=after(91)))
        assert (await bench.store.crons.look(SCOPE, after(300))).due
        assert await _due(bench, 300) == ["a"]

    @story
    async def test_who_decides_is_told_whether_a_run_is_under_way(self, bench: Bench) -> None:
        await bench.store.crons.declare([plan("a", 1), plan("b", 1)], NOW)
        job = new_job("action", on_complete="conformance:told")
        await _decide(bench, "a", job)
        assert await _under_way(bench) == {"a": True, "b": False}
        assert not await bench.store.crons.start("c", NOW, refuse)
        assert await _states(bench) == [("a", "pending"), ("b", None)]
        lease = await bench.lease()
        running = await bench.claim_one(lease)
        assert await _states(bench) == [("a", "running"), ("b", None)]
        await bench.settle(lease, ended(running, now=after(1)))
        assert await _under_way(bench) == {"a": True, "b": False}, "its on_complete is still to run"
        running = await bench.claim_one(lease, after(2))
        assert running.ending is not None
        await bench.settle(lease, complete(running, running.ending, after(2), KEEP))
        assert await _under_way(bench) == {"a": False, "b": False}
        assert await _states(bench) == [("a", "success"), ("b", None)]

    # ----- decide

    @story
    async def test_a_decision_and_its_job_are_written_together_or_not_at_all(self, bench: Bench) -> None:
        crons, job = bench.store.crons, new_job(now=after(70))
        await crons.declare([plan("a", 1), plan("b", 1)], NOW)
        with pytest.raises(AssertionError, match="asked"):
            await crons.decide(SCOPE, after(60), 9, refuse)
        assert await _rows(bench) == [begin(plan(name, 1), NOW) for name in "ab"]
        assert await _due(bench, 60) == ["a", "b"]

        async def decide(found: list[tuple[KeptCron, bool]]) -> list[CronMove]:
            (first, _), _ = found
            decided = replace(first, last_at=after(60), next_at=after(120), job_id=job.id, planned_at=after(60))
            return [CronMove(decided, job)]

        assert await crons.decide(SCOPE, after(70), 9, decide) == 2
        first, second = await _rows(bench)
        assert (first.last_at, first.next_at) == (after(60), after(120))
        assert (first.job_id, first.planned_at) == (job.id, after(60))
        assert second == begin(plan("b", 1), NOW), "who is not decided on stays as it is"
        assert await bench.state(job.id) == "pending"

    @story
    async def test_of_many_who_decide_at_once_one_does(self, bench: Bench) -> None:
        await bench.store.crons.declare([plan("a", 1)], NOW)
        stores = [bench.store, await bench.another(), await bench.another()]
        decided: list[Any] = []

        async def decide(crons: list[tuple[KeptCron, bool]]) -> list[CronMove]:
            ((kept, under_way),) = crons
            assert not under_way
            decided.append(kept.next_at)
            return [CronMove(replace(kept, last_at=kept.next_at, next_at=kept.next_at + MINUTE))]

        for minute in range(1, 11):
            now = NOW + minute * MINUTE
            work = [partial(one.crons.decide, SCOPE, now, 9, decide) for one in stores]
            await asyncio.gather(*map(patiently, work))
        assert decided == [NOW + minute * MINUTE for minute in range(1, 11)]


def plan(name: str, minutes: int, **options: Any) -> CronPlan:
    """A cron of every so many minutes, from noon on."""
    policies = {key: options.pop(key) for key in ("catch_up", "overlap") if key in options}
    cron = Cron(name, Interval(minutes * MINUTE), **policies)
    job = job_text(replace(TEMPLATE, pool="p", priority=3))
    return plan_of(cron, function="conformance:function", job=job, **{"declared": True, **options})


TEMPLATE = new_job(retry=AGAIN, args='{"n": 1}', on_complete="conformance:told")


async def refuse(_crons: list[tuple[KeptCron, bool]]) -> list[CronMove]:
    raise AssertionError("it was asked")


async def _create(crons: store.Crons, created: CronPlan, session: Session) -> bool:
    return await crons.create(session, created, NOW)


async def _decide(bench: Bench, name: str, job: NewJob) -> None:
    async def decide(crons: list[tuple[KeptCron, bool]]) -> list[CronMove]:
        ((kept, _),) = crons
        return [CronMove(replace(kept, job_id=job.id, planned_at=NOW), job)]

    assert await bench.store.crons.start(name, NOW, decide)


async def _due(bench: Bench, seconds: float, limit: int = 9) -> list[str]:
    """Which are due, in the order in which they are decided on."""
    names: list[str] = []

    async def decide(crons: list[tuple[KeptCron, bool]]) -> list[CronMove]:
        names.extend(kept.plan.name for kept, _ in crons)
        return []

    await bench.store.crons.decide(SCOPE, after(seconds), limit, decide)
    return names


async def _under_way(bench: Bench) -> dict[str, bool]:
    found: dict[str, bool] = {}

    async def decide(crons: list[tuple[KeptCron, bool]]) -> list[CronMove]:
        found.update({kept.plan.name: under_way for kept, under_way in crons})
        return []

    await bench.store.crons.decide(SCOPE, after(600), 9, decide)
    return found


async def _rows(bench: Bench) -> list[KeptCron]:
    return [kept for kept, _ in await bench.reading(lambda session: bench.store.crons.list(session, NOW))]


async def _states(bench: Bench) -> list[tuple[str, str | None]]:
    rows = await bench.reading(lambda session: bench.store.crons.list(session, NOW))
    return [(kept.plan.name, state) for kept, state in rows]
