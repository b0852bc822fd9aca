"""What pools keep: an exact limit at little cost, their speed beside a million other rows, all work after a crash.

Workers run in this process; only the one that is killed has its own. PostgreSQL, with its default settings.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg

from benchmarks import program
from benchmarks.databases import Connection
from benchmarks.harness import Bar, Bench, Benchmark, spread
from penstock import Backend, Config
from penstock.api.pools.workpool import Workpool
from penstock.jobs.job import Job
from penstock.services.service import Group
from penstock.services.worker.worker import Worker
from penstock.store.nouns.jobs import day_of

_WORKERS, _JOBS = 4, 10
_TURNS = 5
_LOOK_EVERY = 0.005
_LONGEST = 300.0
_LEASE = 5.0
_CRASH_JOBS, _CRASH_AT = 200, 20
_ROOT = Path(__file__).parent.parent

_SCHEDULED = """
insert into penstock.scheduled_job (id, pool, function, kind, args, priority, rank, run_at, attempt, enqueued_at)
select gen_random_uuid(), 'plenty', 'm:f', 'action', '{}', 0, n, now() + interval '9 days', 0, now()
from generate_series(1, $1::integer) as n
"""
_FINISHED = """
insert into penstock.finished_job (day, id, pool, function, kind, args, priority, run_at, attempt, enqueued_at,
    started_at, finished_at, expires_at, state, error)
select $2, gen_random_uuid(), 'plenty', 'm:f', 'action', '{}', 0, now(), 1, now(), now(), now(), $3,
       case n % 2 when 0 then 'success' else 'failed' end, 'an error'
from generate_series(1, $1::integer) as n
"""


async def limit(bench: Bench) -> None:
    """The rate of four workers with ten places each within a limit of 40, as a part of their rate without a limit."""
    rates: dict[str, list[float]] = {"limited": [], "unlimited": []}
    for turn in range(_TURNS if bench.sizes.turns > 1 else 1):
        for name in sorted(rates, reverse=bool(turn % 2)):
            pool = program.forty if name == "limited" else None
            async with bench.databases.backend("postgres", worker_jobs=_JOBS) as backend:
                rates[name].append(await _drain(backend, pool, bench.sizes.actions // 2, _WORKERS))
    _tell(bench, rates, "limited", "unlimited", Bar(at_least=0.85))


async def beside_rows(bench: Bench) -> None:
    """The rate of one worker beside a million jobs that are scheduled, finished or failed, as a part of it without."""
    rates: dict[str, list[float]] = {"beside": [], "alone": []}
    async with AsyncExitStack() as stack:
        backends = {
            name: await stack.enter_async_context(bench.databases.backend("postgres", worker_jobs=1000))
            for name in rates
        }
        await _fill(backends["beside"].config.database, bench.sizes.later)
        for turn in range(bench.sizes.turns):
            for name in sorted(rates, reverse=bool(turn % 2)):
                rates[name].append(await _drain(backends[name], program.plenty, bench.sizes.actions))
    _tell(bench, rates, "beside", "alone", Bar(at_least=0.8))


async def beside_snapshot(bench: Bench) -> None:
    """The same while a transaction holds a snapshot while much is drained."""
    rates: dict[str, list[float]] = {"beside": [], "alone": []}
    seconds = 7.0 if bench.sizes.turns > 1 else 0.5
    for name in ("alone", "beside"):
        async with bench.databases.backend("postgres", worker_jobs=1000) as backend:
            holder = await asyncpg.connect(backend.config.database)
            try:
                if name == "beside":
                    await holder.execute(
                        "begin isolation level repeatable read; select count(*) from penstock.ready_job"
                    )
                begun = time.perf_counter()
                while time.perf_counter() - begun < seconds:
                    rates[name].append(await _drain(backend, program.plenty, bench.sizes.actions))
            finally:
                await holder.close()
    last = {name: found[-5:] for name, found in rates.items()}  # at the end, when most dead rows have gathered
    _tell(bench, last, "beside", "alone", Bar(at_least=0.8))


async def crash(bench: Bench) -> None:
    """A worker is killed amid 200 jobs, another one is there: when all are done, and how many ran twice."""
    async with bench.databases.fresh("postgres") as url:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "ran"
            file.touch()
            config = Config(database=url, lease=_LEASE, worker_jobs=_JOBS)
            async with program.app.open(config=config) as backend:
                await program.plenty.with_options(retry=True).enqueue_batch(
                    backend, program.note_in, [{"file": str(file), "number": number} for number in range(_CRASH_JOBS)]
                )
                seconds = await _kill_and_wait(backend, url, file)
            ran = Counter(_ran(file))
    twice = sum(count - 1 for count in ran.values())
    bench.row(f"{len(ran)} of {_CRASH_JOBS} jobs done {seconds:.1f} s after the kill, {twice} ran twice")
    bench.report("ran_twice", twice)
    bench.hold("all_done", len(ran) / _CRASH_JOBS, Bar(at_least=1.0))
    bench.hold("leases", seconds / _LEASE, Bar(at_most=1.0))


async def _kill_and_wait(backend: Backend, url: str, file: Path) -> float:
    """Kill a worker that has done some jobs, and let another one go on; seconds until all are done."""
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.worker", url, str(_LEASE), str(_JOBS),
        cwd=_ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    if worker.stdin is None or worker.stdout is None or await worker.stdout.readline() != b"ready\n":
        raise RuntimeError("The worker process did not start.")
    worker.stdin.write(b"go\n")
    while len(_ran(file)) < _CRASH_AT:  # noqa: ASYNC110 - another process does it
        await asyncio.sleep(_LOOK_EVERY)
    worker.kill()
    begun = time.perf_counter()
    await worker.wait()
    group = Group([backend.make_service("worker")], backend.engine.store.signals)
    group.start()
    await _all_done(backend)
    seconds = time.perf_counter() - begun
    await group.stop()
    return seconds


def _ran(file: Path) -> list[str]:
    return file.read_text("utf-8").split()


async def _drain(backend: Backend, pool: Workpool | None, count: int, workers: int = 1) -> float:
    """Store jobs, and have workers do them; jobs in a second."""
    if pool is None:
        await backend.job_calls.enqueue_all(
            [backend.job_calls.new_job(program.nothing_outside, {}, datetime.now(UTC)) for _ in range(count)]
        )
    else:
        await pool.enqueue_batch(backend, program.nothing_outside, [{}] * count)
    group = Group([backend.make_service("worker") for _ in range(workers)], backend.engine.store.signals)
    all_claimed = _all_claimed(group, count)
    begun = time.perf_counter()
    group.start()
    # The database takes long to say that no row is left where many dead ones are, so the workers say it.
    await all_claimed.wait()
    while any(worker.running or worker.open_outcomes for worker in group.services if isinstance(worker, Worker)):  # noqa: ASYNC110 - likewise
        await asyncio.sleep(_LOOK_EVERY)
    seconds = time.perf_counter() - begun
    await _all_done(backend)
    await group.stop()
    return count / seconds


def _all_claimed(group: Group, count: int) -> asyncio.Event:
    """Set once the workers have claimed so many jobs."""
    reached, left = asyncio.Event(), count

    def claimed(jobs: Sequence[Job]) -> None:
        nonlocal left
        left -= len(jobs)
        if left <= 0:
            reached.set()

    for worker in group.services:
        assert isinstance(worker, Worker)
        worker.on_claimed = claimed
    return reached


async def _all_done(backend: Backend) -> None:
    connection: Connection = await asyncpg.connect(backend.config.database)
    try:
        async with asyncio.timeout(_LONGEST):
            while await connection.fetchval(  # noqa: ASYNC110 - a database has no event
                "select exists (select from penstock.ready_job) or exists (select from penstock.running_job)"
                " or exists (select from penstock.scheduled_job where run_at < now() + interval '1 hour')"
            ):
                await asyncio.sleep(_LOOK_EVERY)
    finally:
        await connection.close()


async def _fill(url: str, count: int) -> None:
    connection = await asyncpg.connect(url)
    expires_at = datetime.now(UTC) + timedelta(days=5)
    try:
        await connection.execute(_SCHEDULED, count * 2 // 5)
        await connection.execute(_FINISHED, count * 3 // 5, day_of(expires_at, datetime.now(UTC)), expires_at)
        await connection.execute("vacuum analyze penstock.scheduled_job, penstock.finished_job")
    finally:
        await connection.close()


def _tell(bench: Bench, rates: dict[str, list[float]], name: str, other: str, bar: Bar) -> None:
    for each, found in rates.items():
        bench.row(spread(each, found, "/s"))
        bench.report(f"{each}_per_second", statistics.median(found))
    bench.hold("", statistics.median(rates[name]) / statistics.median(rates[other]), bar)


BENCHMARKS = (
    Benchmark("pool_limit", limit),
    Benchmark("large_pool_beside_rows", beside_rows),
    Benchmark("large_pool_beside_snapshot", beside_snapshot),
    Benchmark("pool_crash", crash),
)
