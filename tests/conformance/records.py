"""What a store promises to whoever looks after tasks: records are found as they stand, and changed beside workers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from conformance.bench import NOW, Bench, Note, Suite, after, story
from conformance.taskbench import claim, end, found, plan, row, task_of
from penstock.jobs.job import Job
from penstock.jobs.states import JobEvent
from penstock.pools.pool import PoolDefinition
from penstock.reactive.tracing import trace_filter
from penstock.schema.table import definition_of
from penstock.store.nouns.records import RecordQuery, TaskBacklog
from penstock.store.nouns.tasks import RecordRow, RowKey
from penstock.store.session import Session

ALL = RecordQuery()
STANDS = ("canceled", "failed", "gone", "later", "ready", "retried", "running", "skipped", "success")


class Records(Suite):
    # ----- finding

    @story
    async def test_each_record_is_shown_as_its_job_stands(self, bench: Bench) -> None:
        task, _ = await _in_all_states(bench)
        shown = {one.key: one for one in await _list(bench)}
        assert {key: one.state for key, one in shown.items()} == {
            "canceled": "canceled", "failed": "failed", "gone": "skipped", "later": "pending", "ready": "pending",
            "retried": "pending", "running": "running", "skipped": "skipped", "success": "success",
        }  # fmt: skip
        assert {key for key, one in shown.items() if one.live} == {"later", "ready", "retried", "running"}
        failed, running, gone = shown["failed"], shown["running"], shown["gone"]
        assert (failed.attempt, failed.error, failed.finished_at) == (3, "E", NOW)
        assert (running.attempt, running.started_at, running.finished_at) == (1, NOW, None)
        assert (gone.gone, gone.generation, gone.change) == ("left", 1, "enter")
        assert (shown["later"].due_at, shown["later"].run_at) == (after(60), after(60))
        for key, one in shown.items():
            assert (one.task, one.job) == (task, (await found(bench, task, key)).job)

    @story
    async def test_records_are_listed_by_task_and_key_in_pieces(self, bench: Bench) -> None:
        tasks = [await task_of(bench, name=name) for name in ("one", "other")]
        keys = sorted(['["B"]', '["a"]', '["ä"]', '["Z"]', '["a b"]', "[10]", "[9]"])
        await plan(bench, *(row(task, key) for task in tasks for key in keys))
        wanted = [(task, key) for task in tasks for key in keys]
        assert _keys(await _list(bench)) == wanted, "in the order of code points, on whatever machine"
        place, seen = None, list[RowKey]()
        while piece := await _list(bench, limit=3, place=place):
            seen += _keys(piece)
            place = seen[-1]
        assert seen == wanted

    @story
    async def test_a_filter_means_all_that_it_says(self, bench: Bench) -> None:
        task, other = await _in_all_states(bench)
        cases: dict[RecordQuery, set[str]] = {
            ALL: {*STANDS},
            RecordQuery(tasks=(task,)): {*STANDS},
            RecordQuery(tasks=()): set(),
            RecordQuery(states=("failed",)): {"failed"},
            RecordQuery(states=("failed",), tasks=(other,)): set(),
            RecordQuery(states=("pending",)): {"later", "ready", "retried"},
            RecordQuery(states=("gone",)): {"gone"},
            RecordQuery(states=("skipped",)): {"gone", "skipped"},
            RecordQuery(has_error=True, states=("pending",)): {"retried"},
            RecordQuery(error="e", states=("failed",)): set(),
            RecordQuery(error="%", states=("failed", "pending")): set(),
            RecordQuery(error="E", states=("failed", "pending")): {"failed", "retried"},
            RecordQuery(error="E"): {"failed", "retried", "skipped"},
            RecordQuery(error="E", states=("gone", "running")): set(),
            RecordQuery(error="E", has_error=True, tasks=(task,)): {"failed", "retried", "skipped"},
            RecordQuery(error="E", has_error=False): set(),
        }
        for where, wanted in cases.items():
            found = await _list(bench, where)
            assert {one.key for one in found} == wanted, where
            pieces = [await _list(bench, where, 1, place) for place in [None, *_keys(found)]]
            assert pieces == [*([one] for one in found), []], where
            assert {one.key for one in await _due(bench, where)} == wanted, where
            tasks = [task, other] if where.tasks is None else where.tasks
            assert {one.key for one in await _among(bench, where, tasks, STANDS)} == wanted, where
            assert {one.key for one in await _among(bench, where, tasks, ["failed", "x"])} == wanted & {"failed"}, where
            assert await _among(bench, where, tasks, []) == await _among(bench, where, [], STANDS) == [], where
            counts = await bench.reading(lambda session: bench.store.records.count(session, where))  # noqa: B023
            assert sum(one.number for one in counts) == len(wanted), where

    @story
    async def test_those_that_are_due_first_come_first_and_those_that_have_ended_last(self, bench: Bench) -> None:
        task, lease = await task_of(bench), await bench.lease()
        await plan(bench, row(task, "ended"))
        await bench.settle(lease, end(await bench.claim_one(lease)))
        await plan(bench, row(task, "z", due=5), row(task, "a", due=60), row(task, "m", due=5))
        assert [one.key for one in await _due(bench)] == ["m", "z", "a", "ended"]
        pieces, place = list[str](), None
        while piece := await _due(bench, limit=1, place=place):
            pieces += [one.key for one in piece]
            last = piece[-1]
            place = (last.run_at if last.live else None, (last.task, last.key))
        assert pieces == ["m", "z", "a", "ended"]

    @story
    async def test_records_are_counted_by_task_and_state(self, bench: Bench) -> None:
        task, _ = await _in_all_states(bench)
        counts = await bench.reading(lambda session: bench.store.records.count(session, ALL))
        assert {(one.task, one.state): (one.number, one.gone) for one in counts} == {
            (task, "canceled"): (1, 0), (task, "failed"): (1, 0), (task, "pending"): (3, 0), (task, "running"): (1, 0),
            (task, "skipped"): (2, 1), (task, "success"): (1, 0),
        }  # fmt: skip
        (failed,) = await bench.reading(
            lambda session: bench.store.records.count(session, RecordQuery(None, ("failed",)))
        )
        assert (failed.task, failed.state, failed.number, failed.gone) == (task, "failed", 1, 0)

    @story
    async def test_the_backlog_is_counted_no_further_than_asked(self, bench: Bench) -> None:
        await bench.store.pools.declare([PoolDefinition("keyed", 9, key_parallelism=1)])
        assert await bench.store.records.backlog(9) == []
        task, other = await _in_all_states(bench)
        gated = await task_of(bench, name="gated", pool="keyed")
        await plan(bench, *(row(gated, key, partition="p") for key in "abc"), at=0)
        await bench.store.tasks.pause("gated", paused=True)
        assert await bench.store.records.backlog(9) == [
            TaskBacklog(gated, "gated", 3, 0, 0, 0, NOW, paused=True, due_first=NOW, reconciled_at=None),
            TaskBacklog(other, "other", 0, 0, 0, 0, None, paused=False, due_first=None, reconciled_at=None),
            TaskBacklog(task, "task", 1, 2, 1, 1, NOW, paused=False, due_first=NOW, reconciled_at=None),
        ]
        fewer = {one.name: (one.ready, one.scheduled) for one in await bench.store.records.backlog(1)}
        assert fewer == {"gated": (1, 0), "other": (0, 0), "task": (1, 1)}

    @story
    async def test_what_failed_and_waits_was_due_when_it_was_at_first(self, bench: Bench) -> None:
        task, lease = await task_of(bench), await bench.lease()
        await plan(bench, row(task, "retried", due=5), row(task, "later", due=900))
        job = await bench.claim_one(lease, now=after(5))
        again = replace(end(job, JobEvent.RAISED, at=7), run_at=after(600))
        await bench.settle(lease, again)
        (waits,) = await bench.store.records.backlog(9)
        assert (waits.ready, waits.scheduled, waits.oldest, waits.due_first) == (0, 2, None, after(5))
        assert await bench.claim(lease, 0, after(600)) == [], "it is ready now"
        (waits,) = await bench.store.records.backlog(9)
        assert (waits.ready, waits.oldest, waits.due_first) == (1, after(600), after(5))

    # ----- rows of a table

    @story
    async def test_rows_that_meet_a_condition_are_found_piece_by_piece_and_spelled_as_the_feed_does(
        self, bench: Bench
    ) -> None:
        await bench.write_notes(a=1, b=5, c=3, d=9, e=0)
        definition = definition_of(Note)
        condition = trace_filter(definition, lambda note: note.amount > 2, "test")
        place, seen, pieces = None, list[str](), 0
        while True:
            piece = await bench.reading(
                lambda session: bench.store.records.matching(session, definition, condition, 2, place)  # noqa: B023
            )
            seen, pieces = [*seen, *piece.keys], pieces + 1
            if piece.last is None:
                break
            place = json.loads(piece.last)
        assert seen == [json.dumps([title]) for title in "bcd"]
        assert pieces == 2, "those that do not meet it are not looked at one by one"
        titles = ['it\'s "quoted"', "äé€😀", "%_{}?$1:x", "\\", " "]
        await bench.write_notes(**dict.fromkeys(titles, 99))
        odd = trace_filter(definition, lambda note: note.amount == 99, "test")

        async def spell(session: Session) -> None:
            rows = (await bench.store.records.matching(session, definition, odd, 100)).keys
            spelled = [await bench.store.records.spell_key(session, definition, [title]) for title in titles]
            assert sorted(rows) == sorted(spelled)
            assert [json.loads(one) for one in spelled] == [[title] for title in titles]

        await bench.reading(spell)

    # ----- running again

    @story
    async def test_what_waits_runs_now_and_once(self, bench: Bench) -> None:
        task, lease = await task_of(bench), await bench.lease()
        await plan(bench, row(task, "ready"), row(task, "later", due=60))
        await bench.store.records.rerun([(task, "ready"), (task, "later")], after(1))
        jobs = await bench.claim(lease, now=after(1))
        assert sorted((json.loads(job.args)["key"], json.loads(job.args)["generation"]) for job in jobs) == [
            ("later", 2), ("ready", 2),
        ]  # fmt: skip
        await bench.settle(lease, *(end(job, at=1) for job in jobs))
        assert await bench.claim(lease, now=after(99)) == []

    @story
    async def test_a_row_that_has_left_runs_again_as_such(self, bench: Bench) -> None:
        task, lease = await task_of(bench), await bench.lease()
        await plan(bench, row(task, "a"))
        await bench.settle(lease, end(await bench.claim_one(lease)))
        await plan(bench, row(task, "a", "leave", gone="left"), at=1)
        await bench.settle(lease, end(await bench.claim_one(lease, after(1)), at=1))
        await bench.store.records.rerun([(task, "a")], after(2))
        assert json.loads((await bench.claim_one(lease, after(2))).args)["change"] == "leave"

    # ----- skipping and forgetting

    # ----- beside others

    @story
    async def test_many_who_look_after_the_same_rows_leave_one_job_of_each(self, bench: Bench) -> None:
        task, lease = await task_of(bench), await bench.lease()
        keys = [str(number) for number in range(12)]
        rows: list[RowKey] = [(task, key) for key in keys]
        await plan(bench, *(row(task, key) for key in keys))
        running = (await bench.claim(lease))[:6]
        stores = [bench.store, await bench.another()]
        await asyncio.gather(
            *(store.records.rerun(rows, after(1)) for store in stores),
            stores[1].records.skip(rows[::-1], after(1)),
            stores[0].records.rerun(rows[::-1], after(1)),
            stores[1].tasks.plan([row(task, key, "change") for key in keys], None, after(1)),
            *(bench.settle(lease, end(job, at=1)) for job in running),
        )
        for job in await bench.store.leases.jobs(lease):
            await bench.settle(lease, end(job, at=2))
        again = await bench.claim(await bench.lease(), now=after(2))
        seen = [json.loads(job.args)["key"] for job in again]
        assert len(seen) == len(set(seen)), "one job of each"
        for key in keys:
            assert (await found(bench, task, key)).live is (key in seen)


async def _in_all_states(bench: Bench) -> tuple[int, int]:
    """A task with a record for each way in which its job may stand, named for it; and a task without any."""
    task, lease = await task_of(bench), await bench.lease()
    other = await task_of(bench, name="other")
    await plan(
        bench, *(row(task, key) for key in ("canceled", "failed", "gone", "retried", "running", "skipped", "success"))
    )
    await bench.request_cancel((await found(bench, task, "canceled")).job)
    await bench.cancel_pending()
    await plan(bench, row(task, "gone", "leave", runs=False, drops=True, gone="left"))
    jobs = {json.loads(job.args)["key"]: job for job in await claim(bench, lease, "default")}
    ends: dict[str, tuple[JobEvent, Job]] = {
        "failed": (JobEvent.RAISED, replace(jobs["failed"], attempt=3)),
        "retried": (JobEvent.RAISED, jobs["retried"]),
        "skipped": (JobEvent.SKIPPED, jobs["skipped"]),
        "success": (JobEvent.RETURNED, jobs["success"]),
    }
    await bench.settle(lease, *(end(job, event) for event, job in ends.values()))
    await plan(bench, row(task, "ready"), row(task, "later", due=60))
    return task, other


def _keys(records: Sequence[RecordRow]) -> list[RowKey]:
    return [(one.task, one.key) for one in records]


async def _list(
    bench: Bench, where: RecordQuery = ALL, limit: int = 100, place: RowKey | None = None
) -> list[RecordRow]:
    return await bench.reading(lambda session: bench.store.records.list(session, where, limit, place))


async def _due(bench: Bench, where: RecordQuery = ALL, limit: int = 100, place: Any = None) -> list[RecordRow]:
    return await bench.reading(lambda session: bench.store.records.due(session, where, limit, place))


async def _among(bench: Bench, where: RecordQuery, tasks: Sequence[int], keys: Sequence[str]) -> list[RecordRow]:
    return await bench.reading(lambda session: bench.store.records.among(session, where, tasks, keys))
