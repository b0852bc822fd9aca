"""Processes are killed, suspended and stopped while they work: nothing is lost, done twice or out of order."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from chaos import program as chaos
from chaos.flows import begin_flow, faults_of
from programs import crashing, ledger, outgoing, reacting
from stage.faults import LEASE, MACHINE, History, Program, Storm, freeze, kill, serving, stop, storm
from stage.outboxes import outbox_row
from stage.processes import processes
from stage.waits import until

from penstock import Failed, Finished, Id, Running, Success, WorkId
from penstock.app import Backend
from penstock.store.nouns.leases import OUTSIDE
from penstock.store.session import Statement, reading

JOBS, ROWS, PUT, FLOWS = 120, 8, 20, 36
LIMITS = {"a": 2, "b": 2, "lending": 4, "crew": 4}
SECOND = timedelta(seconds=1)


async def succeeded(storm: Storm) -> int:
    return (await storm.backend.job_counts()).get("success", 0)


# ----- jobs


async def schedule(storm: Storm) -> None:
    await storm.backend.run_mutation(ledger.open_account, owner="ada")
    for first in range(0, JOBS, 40):
        await storm.backend.run_mutation(ledger.schedule_entries, what="x", first=first, count=40)
        for _ in range(5):
            await storm.backend.scheduler.run_after(timedelta(0), ledger.add, owner="ada", amount=1)


async def each_took_effect_once(storm: Storm) -> None:
    assert await storm.backend.run_query(ledger.entries, what="x") == list(range(JOBS))
    assert await storm.backend.run_query(ledger.balance, owner="ada") == JOBS // 8


# ----- limits


def histories(storm: Storm) -> dict[str, History]:
    return {name: History(storm.folder / name, [(0.0, limit)], storm.deaths) for name, limit in LIMITS.items()}


def arguments(history: History, count: int) -> list[dict[str, Any]]:
    parts = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3)  # no two end together
    return [{"history": str(history.file), "seconds": 0.03 * parts[number % 7]} for number in range(count)]


async def occupy(storm: Storm) -> None:
    for name, history in histories(storm).items():
        if name in "ab":
            pools = [ledger.tenants.with_options(concurrency_key=name)]
        else:
            pools = [ledger.borrower, ledger.lender] if name == "lending" else [ledger.crew]
        for pool in pools:
            given = arguments(history, 36 // len(pools))
            await pool.with_options(retry=True).enqueue_batch(storm.backend, ledger.occupy, given)


async def each_limit_held(storm: Storm) -> None:
    assert {name: one.most() for name, one in histories(storm).items()} == LIMITS


# ----- crons


async def plan_each_second(storm: Storm) -> None:
    planned = ledger.enter_planned_second
    await ledger.app.crons.create(storm.backend, "second", SECOND, planned, catch_up="all")


async def seconds_run(storm: Storm) -> int:
    return len(await storm.backend.run_query(ledger.entries, what="planned"))


async def each_second_ran_once(storm: Storm) -> None:
    found = await storm.backend.run_query(ledger.entries, what="planned")
    assert found == list(range(found[0], found[0] + len(found)))


# ----- tasks


async def change_rows(storm: Storm) -> None:
    items = [str(await storm.backend.run_mutation(reacting.put, value=0)) for _ in range(ROWS)]
    for value in range(1, JOBS + 1):
        await storm.has_done(value - 3 * ROWS)
        await storm.backend.run_mutation(reacting.patch, item=Id(items[value % ROWS]), value=value)


async def states(storm: Storm) -> dict[str, list[int]]:
    items = await reacting.rows(storm.backend)
    return {item: await storm.backend.run_query(reacting.done, item=item) for item in items}


async def last_handled(storm: Storm) -> int:
    async with reading(storm.backend.engine.store.begin_read) as session:
        (row,) = await session.fetch(Statement("select coalesce(max(value), 0) from done"))
    return int(row[0])


async def each_last_state_was_handled_and_none_twice(storm: Storm) -> None:
    async def are_handled() -> bool:
        found = await states(storm)
        return all(found[item][-1:] == [value] for item, value in (await reacting.rows(storm.backend)).items())

    storm.start()
    await until(are_handled)
    assert all(len(found) == len(set(found)) for found in (await states(storm)).values())
    assert not await storm.backend.jobs("failed")


# ----- outboxes


async def put_on_shelves(storm: Storm) -> None:
    await storm.backend.run_mutation(outgoing.stack, shelves=list(outgoing.SHELVES))

    async def put(writer: int) -> None:
        for number in range(PUT):
            shelves = [outgoing.SHELVES[number % 3], outgoing.SHELVES[writer % 2]]
            await storm.backend.run_mutation(outgoing.stack, shelves=shelves)

    await asyncio.gather(*map(put, range(3)))


async def handed_over(storm: Storm) -> int:
    return min([(await outbox_row(storm.backend, name)).delivered for name in ("note", "report")])


async def each_change_came_in_order(storm: Storm) -> None:
    shelves = [
        outgoing.SHELVES[place] for number in range(PUT) for writer in range(3) for place in (number % 3, writer % 2)
    ]
    counts = Counter(shelves)
    changes = {name: [f"{name}.{n}" for n in range(1, counts[name] + 1)] for name in outgoing.SHELVES}
    every = Counter(one for known in changes.values() for one in known)
    assert Counter(await storm.backend.run_query(outgoing.seen)) == every, "each once, as it is a mutation"
    told = [line.split() for line in (storm.folder / "outside").read_text().splitlines()]
    assert {(change, id_) for change, id_ in told} == set(dict(told).items()), "with the same id each time"
    assert len(told) - every.total() <= 2 * 100, "no more than what was under way twice"
    for name, known in changes.items():
        assert list(dict.fromkeys(one for one, _ in told if one.startswith(f"{name}."))) == known, "in order"


# ----- workflows


async def begin_flows(storm: Storm) -> None:
    await asyncio.gather(*(storm.backend.run_mutation(begin_flow, number=number) for number in range(FLOWS)))


async def flowed(storm: Storm) -> dict[int, list[str]]:
    found = dict[int, list[str]]()
    async with reading(storm.backend.engine.store.begin_read) as session:
        for number, what in await session.fetch(Statement("select number, what from flowed order by number, place")):
            found.setdefault(number, []).append(what)
    return found


async def flows_over(storm: Storm) -> int:
    return sum(any(one.startswith("is over") for one in rows) for rows in (await flowed(storm)).values())


async def each_run_ended_once_and_did_all_of_it_once(storm: Storm) -> None:
    """(WF11, WF29, WF59, WF62, WF114, WF116, WF124, WF128)"""
    lines = [line.split(maxsplit=3)[2:] for line in (storm.folder / "flowed").read_text().splitlines()]
    for number, rows in (await flowed(storm)).items():
        ran = [what for run, what in lines if int(run) == number]
        assert not any(faults_of(number, rows, ran).values()), (number, rows, ran, faults_of(number, rows, ran))
    again = sum(what.endswith("again") for _, what in lines)
    assert again == 0 or storm.frozen, f"{again} recorded steps ran again"
    assert not await storm.backend.jobs("pending")


PROGRAMS = {
    "workflows": (
        Program(chaos.app, "chaos.program:app", "worker", begin_flows, flows_over, FLOWS, count=3),
        each_run_ended_once_and_did_all_of_it_once,
    ),
    "jobs": (
        Program(ledger.app, "programs.ledger:app", "worker", schedule, succeeded, JOBS + JOBS // 8),
        each_took_effect_once,
    ),
    "limits": (
        Program(ledger.app, "programs.ledger:app", "worker", occupy, succeeded, 4 * 36, count=3),
        each_limit_held,
    ),
    "crons": (
        Program(ledger.app, "programs.ledger:app", "worker,scheduler", plan_each_second, seconds_run, 6, count=3),
        each_second_ran_once,
    ),
    "tasks": (
        Program(reacting.booking, "programs.reacting:booking", "worker,planner", change_rows, last_handled, JOBS),
        each_last_state_was_handled_and_none_twice,
    ),
    "outboxes": (
        Program(outgoing.app, "programs.outgoing:app", "relay", put_on_shelves, handed_over, 6 * PUT),
        each_change_came_in_order,
    ),
}
FAULTS = {"kill": kill, "freeze": freeze, "stop": stop}


CASES = [
    "workflows, kill",
    "workflows, freeze",
    "jobs, freeze",
    "limits, kill",
    "tasks, kill",
    "outboxes, kill",
    "outboxes, freeze",
]
RARE = [
    "workflows, stop",
    "jobs, kill",
    "jobs, stop",
    "crons, kill",
    "crons, freeze",
    "tasks, freeze",
    "tasks, stop",
    "outboxes, stop",
]


@pytest.mark.parametrize("case", [*CASES, *(pytest.param(one, marks=pytest.mark.long) for one in RARE)])
async def test_what_is_promised_holds_while_processes_are_struck(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setenv("OUTSIDE", str(tmp_path / "outside"))
    monkeypatch.setenv("CHAOS_FOLDER", str(tmp_path))
    name, fault = case.split(", ")
    program, check = PROGRAMS[name]
    await storm(program, database_url, tmp_path, FAULTS[fault], check)


# ----- limits that change


async def test_nothing_starts_beyond_a_changed_limit_once_the_call_has_returned(
    database_url: str, tmp_path: Path
) -> None:
    deaths: dict[int, float] = {}
    history = History(tmp_path / "history", [(0.0, 4)], deaths)

    async def change(limit: int) -> None:
        """A higher limit may hold while the call is under way, a lower one holds once it has returned."""
        begun, raised = MACHINE.monotonic(), limit > history.limits[-1][1]
        if limit:
            await ledger.crew.set_max_parallelism(backend, limit)
            await ledger.crew.resume(backend)
        else:
            await ledger.crew.pause(backend)
        history.limits.append((begun if raised else MACHINE.monotonic(), limit))

    async with ledger.app.open(database_url) as backend:
        with processes(3, "work", database_url, lease=1.5, poll=0.2) as workers:
            await ledger.crew.with_options(retry=True).enqueue_batch(backend, ledger.occupy, arguments(history, 1000))
            await change(8)
            await history.more_begin(10)
            await change(2)
            workers[1].kill()
            deaths[workers[1].number] = MACHINE.monotonic()
            for limit in (8, 0):
                await history.more_begin(5)
                await change(limit)
            job = await ledger.tenants.enqueue(backend, ledger.enter, what="others go on")
            await until(lambda: is_state(backend, job, "success"))
            await change(8)
            await history.more_begin(10)
            assert {worker.stop() for worker in workers if worker.exit_status is None} == {0}
    assert 4 < history.most() <= 8


async def is_state(backend: Backend, job: Any, state: str) -> bool:
    found = await backend.job(job)
    return found is not None and found.state.value == state


# ----- work that is done outside


async def test_held_work_outlives_its_worker_and_counts_for_its_limit(database_url: str, tmp_path: Path) -> None:
    history, most = tmp_path / "history", 4
    history.touch()

    def tokens() -> list[str]:
        return [line.split()[2] for line in history.read_text().splitlines()]

    async with ledger.app.open(database_url) as backend:

        async def are_held(count: int) -> bool:
            return len(await backend.engine.store.leases.jobs(OUTSIDE)) == count

        async def is_taken_over() -> bool:
            return 1 not in await backend.engine.store.leases.find_expired(MACHINE.now() + 3600 * SECOND)

        with processes(1, "work", database_url, lease=LEASE, poll=0.2) as (worker,):
            works = [await ledger.crew.enqueue(backend, ledger.wait_outside, str(history)) for _ in range(most + 1)]
            await until(lambda: are_held(most))
            worker.kill()
        with processes(1, "work", database_url, lease=LEASE, poll=0.2) as (other,):
            await until(is_taken_over)
            statuses = await ledger.crew.status_batch(backend, works)
            assert statuses.count(Running(0)) == most == len(tokens()), "nothing is lost, nor begins beyond the limit"
            for token in tokens():
                assert (await ledger.crew.complete(backend, token, "printed")).accepted
            await until(lambda: are_held(1))
            other.kill()
        assert (await ledger.crew.complete(backend, tokens()[most], "printed")).accepted
        assert await ledger.crew.status_batch(backend, works) == [Finished(Success("printed"))] * len(works)
        (outside,) = await backend.engine.store.pools.look(OUTSIDE, ["crew"], 1)
        assert outside.held == 0


# ----- work that kills its process


@pytest.mark.parametrize("kind", ["work again", "action", "mutation", "completed"])
async def test_f14_what_kills_its_process_each_time_uses_up_its_attempts_and_ends(
    database_url: str, tmp_path: Path, kind: str
) -> None:
    times = 2 if kind in {"work again", "action", "mutation"} else 1
    works: list[WorkId] = []
    async with crashing.app.open(database_url) as backend:
        if "work" in kind:
            retry = crashing.TWICE if kind == "work again" else None
            pool = crashing.deadly.with_options(retry=retry, on_complete=crashing.tell, context="buried", priority=1)
            works.append(await pool.enqueue(backend, crashing.dies_at_work, str(tmp_path)))
            works.append(await crashing.deadly.enqueue(backend, crashing.works))
        else:
            await backend.run_mutation(crashing.add, kind, str(tmp_path))
        with ExitStack() as stack:
            for _ in range(times):
                process = serving("programs.crashing:app", "worker,planner", database_url, stack, lease=LEASE)
                assert await asyncio.to_thread(process.wait) == -9
            process = serving("programs.crashing:app", "worker,planner", database_url, stack, lease=LEASE)
            await until(lambda: are_all_ended(backend))
            assert process.exit_status is None
        assert (tmp_path / "deaths").read_text() == "x" * times
        jobs = await backend.jobs()
        job = next(one for one in jobs if one.function != crashing.works.name)
        if kind == "completed":
            assert (job.state.value, job.attempt) == ("success", 1)
            return
        assert (job.state.value, job.attempt, (job.error or "")[:10]) == ("failed", times, "WorkerLost")
        assert [one.what for one in job.attempts] == ["lost"] * (times - 1) + ["abandoned"]
        if "work" in kind:
            assert isinstance(await crashing.deadly.result(backend, works[0]), Failed)
            assert await crashing.deadly.result(backend, works[1]) == Success("done"), "the one slot came back"
            assert await backend.run_query(crashing.told) == [(works[0], "failed", "buried")]


async def are_all_ended(backend: Backend) -> bool:
    jobs = await backend.jobs()
    return bool(jobs) and all(job.state.value in {"success", "failed"} for job in jobs)
