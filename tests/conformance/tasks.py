"""What a store promises of reactive tasks: their records, the jobs made of these, and that no change is lost."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta

from conformance.bench import NOW, Bench, Suite, after, killed_before, story
from conformance.interests import note, run
from conformance.taskbench import HISTORY, POOL, SPEC, a_move, claim, end, find, found, plan, row, task_of, task_plan
from penstock.jobs.states import JobEvent
from penstock.pools.pool import PoolDefinition
from penstock.pools.rates import FixedWindow
from penstock.reactive.reconciling import Reconciling
from penstock.store.nouns.tasks import Progress, TaskPlan, from_the_beginning

ODD_KEYS = (
    '["a"]',
    '["it\'s \\"quoted\\""]',
    '["\\u00e4\\u20ac\\ud83d\\ude00"]',
    '["äé€😀"]',
    "[1]",
    '[""]',
    '["%_{}?$1:x"]',
)


class Tasks(Suite):
    # ----- declaring

    @story
    async def test_a_new_task_is_known_and_all_its_rows_are_to_be_looked_at(self, bench: Bench) -> None:
        tasks = bench.store.tasks
        rows = await tasks.declare([task_plan("b"), task_plan("a", version=2, priority=1)], NOW)
        assert [(row.plan.name, row.declared_at, row.paused, row.held_until) for row in rows] == [
            (name, NOW, False, None) for name in "ab"
        ]
        assert [row.reconciling for row in rows] == [Reconciling()] * 2
        assert rows[1].plan == task_plan("b")
        assert await tasks.list() == rows
        assert await tasks.declare([], NOW) == []
        assert await tasks.declare([task_plan("b")], after(5)) == rows[1:], "again changes nothing"
        assert await tasks.declare([task_plan("a", signature="t")], after(5)) == rows[:1], "nor does a lower version"
        kept = await bench.reading(lambda session: tasks.signature(session, rows[0].id))
        assert kept == rows[0].plan.signature
        stores = [bench.store, *[await bench.another() for _ in range(3)]]
        found = await asyncio.gather(*(store.tasks.declare([task_plan("c"), task_plan("d")], NOW) for store in stores))
        assert all(rows == found[0] for rows in found), "many may declare the same at once"

    @story
    async def test_another_filter_or_a_higher_version_has_rows_looked_at_as_it_says(self, bench: Bench) -> None:
        await self._reconciled(bench, task_plan("a"), task_plan("b"), task_plan("c"))
        plans = [task_plan("a", signature="t"), task_plan("b", signature="t", reconciles=False)]
        first, second = await bench.store.tasks.declare(plans, after(5))
        assert (first.reconciling, second.reconciling) == (Reconciling(), None)
        assert (first.plan.signature, second.plan.signature) == ("t", "t")
        for version, asked in ((2, "reprocess_all"), (3, "reprocess_failed")):
            (row,) = await bench.store.tasks.declare([task_plan("c", version=version, on_version_change=asked)], NOW)
            expected = Reconciling(reprocess="reprocess_all", version=version)
            assert row.reconciling == expected, "what was not done yet is still to be done"

    @story
    async def test_the_numbers_of_interests_are_known_that_were_dropped(self, bench: Bench) -> None:
        numbers = list[int]()
        for column in ("title", "amount"):
            interest = note("task:task", after=["id", column])
            numbers += await bench.store.interests.declare([interest], NOW)
            declared = task_plan(spec=replace(SPEC, interest=interest.digest))
            (task,) = await bench.store.tasks.declare([declared], NOW)
            assert (task.interest, task.earlier) == (numbers[-1], tuple(numbers))
        await bench.store.interests.drop(numbers)
        (task,) = await bench.store.tasks.list()
        assert (task.interest, task.interests, task.earlier) == (None, (), tuple(numbers))
        moved = task_plan(spec=replace(SPEC, table="conformance_other"))
        (task,) = await bench.store.tasks.declare([moved], NOW)
        assert task.earlier == (), "what was told is of another table"

    @story
    async def test_who_goes_on_with_an_earlier_look_at_all_rows_loses(self, bench: Bench) -> None:
        (before,) = await bench.store.tasks.declare([task_plan("a")], NOW)
        further = Progress(before, Reconciling(after="k", looked=5))
        assert await bench.store.tasks.plan([], None, NOW, from_the_beginning([before])) == 0
        assert await bench.store.tasks.plan([], None, NOW, [further]) is None
        assert await bench.store.tasks.plan([], None, NOW, [replace(further, reconciling=None)]) is None
        (now,) = await bench.store.tasks.list()
        assert (now.reconciling, now.begun) == (Reconciling(), before.begun + 1)
        assert await bench.store.tasks.plan([], None, NOW, [replace(further, task=now)]) == 0
        (now,) = await bench.store.tasks.list()
        assert (now.reconciling, now.begun) == (further.reconciling, before.begun + 1)

    async def _reconciled(self, bench: Bench, *plans: TaskPlan) -> None:
        """Declare tasks of which all rows have been looked at."""
        await bench.store.tasks.declare(plans, NOW)
        await run(bench, bench.store.dialect.translate("update penstock.task set reconciling = null"))

    # ----- planning

    @story
    async def test_keys_and_values_are_handed_over_as_they_are(self, bench: Bench) -> None:
        task, lease = await task_of(bench, priority=2), await bench.lease()
        rows = [replace(row(task, key), before=key, after=key) for key in ODD_KEYS]
        assert await bench.store.tasks.plan(rows, None, NOW) == len(rows)
        jobs = await bench.claim(lease)
        assert sorted(json.loads(job.args)["key"] for job in jobs) == sorted(ODD_KEYS)
        for job in jobs:
            args = json.loads(job.args)
            assert args == {
                "generation": 1,
                "change": "enter",
                **dict.fromkeys(("key", "before", "after"), args["key"]),
            }
            assert (job.pool, job.priority, job.options.task) == (POOL, 2, task)
            record = await found(bench, task, args["key"])
            assert (record.job, record.changed_at, record.due_at, record.after) == (job.id, NOW, NOW, args["key"])
        await bench.settle(lease, *map(end, jobs))
        assert [(await found(bench, task, key)).live for key in ODD_KEYS] == [False] * len(ODD_KEYS)

    @story
    async def test_the_latest_time_counts_from_the_first_change_since_the_last_run_began(self, bench: Bench) -> None:
        lease = await bench.lease()
        for event in (JobEvent.RETURNED, JobEvent.RAISED, JobEvent.SNOOZED):
            for while_it_runs in (True, False):
                task = await task_of(bench, name=f"{event} {while_it_runs}")
                await plan(bench, row(task, "a", due=5, latest=10))
                job = await bench.claim_one(lease, after(5))
                settlement = end(job, event, at=8)
                if not while_it_runs:
                    await bench.settle(lease, settlement)
                for second in (8, 12, 16):
                    changed = row(task, "a", "change", due=second + 5, latest=second + 10)
                    await plan(bench, changed, at=second)
                    assert (await found(bench, task, "a")).due_at == after(min(second + 5, 18))
                if while_it_runs:
                    await bench.settle(lease, settlement)
                assert await bench.claim(lease, now=after(17)) == []
                again = await bench.claim_one(lease, after(18))
                assert json.loads(again.args)["generation"] == 4
                await bench.settle(lease, end(again, at=18))

    @story
    async def test_the_history_is_kept_within_its_limit(self, bench: Bench) -> None:
        task, lease = await task_of(bench), await bench.lease()
        events = [JobEvent.RETURNED, JobEvent.SKIPPED, JobEvent.CANCELED, JobEvent.RAISED, JobEvent.RETURNED]
        for second, event in enumerate(events):
            await plan(bench, row(task, "a", "change"), at=second)
            job = await bench.claim_one(lease, after(second))
            await bench.settle(
                lease, end(replace(job, attempt=3) if event is JobEvent.RAISED else job, event, at=second)
            )
        await plan(bench, row(task, "a", "change"), at=9)
        (status,) = await bench.list(now=after(9))
        assert [one.what for one in status.attempts] == ["canceled", "exhausted", "success"]
        assert len(status.attempts) == HISTORY

    # ----- the reader

    @story
    async def test_what_is_planned_is_written_with_the_move_of_the_reader_or_not_at_all(self, bench: Bench) -> None:
        task, move = await task_of(bench), await a_move(bench)
        assert await bench.store.tasks.plan([row(task, "a")], replace(move, lease=move.lease + 1), NOW) is None
        assert await find(bench, task, "a") is None
        assert await bench.list() == []
        assert await bench.store.tasks.plan([row(task, "a")], move, NOW) == 1
        assert await bench.store.tasks.plan([row(task, "a")], move, NOW) is None, "it has moved"
        assert (await found(bench, task, "a")).generation == 1
        (reader,) = await bench.store.changes.readers()
        assert reader.position == move.after

    # ----- cancels, retries, holds

    @story
    async def test_rows_with_a_key_take_of_its_rate_limit(self, bench: Bench) -> None:
        limit = FixedWindow(rate=2, period=timedelta(minutes=1))
        await bench.store.pools.declare([PoolDefinition("keyed", 9, key_rate_limit=limit)])
        task, lease = await task_of(bench, pool="keyed"), await bench.lease()
        await plan(bench, *(row(task, key, partition="p") for key in ("a", "b", "c", "d")))
        assert len(await claim(bench, lease, "keyed")) == 2
        assert await claim(bench, lease, "keyed", 1) == []
        assert len(await claim(bench, lease, "keyed", 61)) == 2

    @story
    async def test_a_hold_ends_at_the_latest_time_that_was_set(self, bench: Bench) -> None:
        task, other = await task_of(bench, name="one"), await task_of(bench, name="other")
        assert await bench.store.tasks.list_held(NOW) == {}
        for seconds in (5, 9, 7):
            await bench.store.tasks.hold(task, after(seconds))
        assert await bench.store.tasks.list_held(after(8)) == {task: after(9)}
        assert await bench.store.tasks.list_held(after(9)) == {}
        assert {one.id: one.held_until for one in await bench.store.tasks.list()} == {task: after(9), other: None}

    # ----- declarations that are cut off

    @story
    async def test_a_task_whose_program_was_killed_as_it_was_declared_is_whole_at_its_next_start(
        self, bench: Bench
    ) -> None:
        lease = await bench.lease()
        for query in ("add", "declare"):
            with killed_before(bench.store.tasks, query):
                await task_of(bench, name=query)
            task = await task_of(bench, name=query)
            await plan(bench, row(task, "a"))
            assert [job.options.task for job in await claim(bench, lease, POOL)] == [task]

    @story
    async def test_keys_of_another_column_hold_nothing_up_though_a_declaration_was_cut_off(self, bench: Bench) -> None:
        await bench.store.pools.declare([PoolDefinition("keyed", 9, key_parallelism=1)])
        lease = await bench.lease()
        for query in ("unkey", "declare", "redeclare"):
            keyed, other = replace(SPEC, partition="title"), replace(SPEC, partition="amount")
            task = await task_of(bench, name=query, pool="keyed", spec=keyed)
            await plan(bench, row(task, "a", partition=query), row(task, "b", partition=query))
            jobs = []
            for _ in range(2):
                (job,) = await claim(bench, lease, "keyed")
                await bench.settle(lease, end(replace(job, attempt=3), JobEvent.RAISED))
                jobs.append(job.id)
            with killed_before(bench.store.tasks, query):
                await task_of(bench, name=query, pool="keyed", spec=other)
            await task_of(bench, name=query, pool="keyed", spec=other)
            assert len(await bench.retry(*jobs, now=after(1))) == len(jobs)
            again = await claim(bench, lease, "keyed", 2)
            assert {job.id for job in again} == {*jobs}
            await bench.settle(lease, *(end(job) for job in again))

    # ----- gates

    @story
    async def test_a_row_that_has_another_key_now_waits_in_the_turn_of_that(self, bench: Bench) -> None:
        await bench.store.pools.declare([PoolDefinition("keyed", 9, key_parallelism=1)])
        task, lease = await task_of(bench, pool="keyed"), await bench.lease()
        await plan(bench, row(task, "a", partition="p"))
        (runs,) = await claim(bench, lease, "keyed")
        await plan(bench, row(task, "b", partition="p"), row(task, "c", partition="p", due=60), at=1)
        assert await claim(bench, lease, "keyed", 2) == []
        changed = [row(task, key, "change", partition="q", due=due) for key, due in (("b", 1), ("c", 60))]
        await plan(bench, *changed, at=2)
        assert [json.loads(job.args)["key"] for job in await claim(bench, lease, "keyed", 2)] == ["b"]
        assert await claim(bench, lease, "keyed", 61) == [], "c is of the same key as b now"
        await bench.settle(lease, end(runs))
