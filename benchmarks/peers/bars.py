"""penstock beside its peers, in the same run: what is compared with what, and the bars.

Every side is tuned as its own documentation advises. Peers on Redis run without persistence, which only helps them;
all on PostgreSQL share one server with its default settings; SQLite syncs every commit.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

from benchmarks.harness import Bar, Bench, Benchmark
from benchmarks.peers.protocol import COUNTERS, Outcome
from benchmarks.peers.sides import (
    ABSURD,
    BARE,
    BARE_COPY,
    CELERY,
    DBOS,
    GRAPHILE_WORKER,
    HUEY,
    PENSTOCK,
    PENSTOCK_SQLITE,
    PG_BOSS,
    PGQUEUER,
    PROCRASTINATE,
    SAQ,
    Side,
)
from benchmarks.peers.turns import take_turns

_TURNS = 5
_LONG_TURNS = 3
_SLOW_TURNS = 2
_RATE = 40
_P99 = 99

# Sides that are near each other are measured apart from the slow ones, so that their turns lie close together.
_DRAINS = {PGQUEUER: 2.0, GRAPHILE_WORKER: 1.0, BARE: 0.6}
_SLOW_DRAINS = {DBOS: 10.0, PROCRASTINATE: 10.0, ABSURD: 10.0, SAQ: 10.0, CELERY: 10.0}
_TRANSACTIONS = {PGQUEUER: 3.0, GRAPHILE_WORKER: 1.0, PG_BOSS: 1.0}
_SLOW_TRANSACTIONS = {DBOS: 10.0}
_BATCHES = {BARE_COPY: 0.5, GRAPHILE_WORKER: 1.0}
_BATCHES_REPORTED = (PGQUEUER, PG_BOSS, PROCRASTINATE)
_SINGLES = (PGQUEUER, GRAPHILE_WORKER, PG_BOSS, PROCRASTINATE, ABSURD, DBOS)
_LATENCIES = (SAQ, PGQUEUER, GRAPHILE_WORKER, CELERY, PG_BOSS, PROCRASTINATE, HUEY, ABSURD, DBOS)


async def work(bench: Bench, ours: Side, measure: str, others: dict[Side, float], most: int = _TURNS) -> None:
    """How many jobs one worker process gets done in a second, as multiples of what others do.

    The time that counts is from the first job's start until the queue has settled the last. Until the last one's end is
    reported too: it leaves out the settling of a whole batch, which flatters whoever has large ones.
    """
    count = bench.sizes.actions
    if measure == "transactions":
        count = max(COUNTERS, bench.sizes.mutations // COUNTERS * COUNTERS)
    elif measure in {"flows", "action_flows"}:
        count = bench.sizes.flows
    turns = await take_turns(bench, most, [ours, *others], measure, count)
    turns.report("run_per_second", _per_second(count), "/s")
    turns.report("settled_per_second", _settled_per_second(count), "/s")
    for whose in ("cpu", "server_cpu"):
        turns.report(f"{whose}_us", _each_us(f"{whose}_seconds", count), " us")
    for other, least in others.items():
        turns.hold_ratio(ours, other, _settled_per_second(count), Bar(at_least=least))


async def first_steps(bench: Bench) -> None:
    """How long workflows wait for their first step: started in the worker's process, or enqueued by another one."""
    started = await take_turns(bench, _LONG_TURNS, [PENSTOCK, DBOS], "start", bench.sizes.pickups)
    started.report("start_p50_ms", _p50, " ms")
    started.hold_ratio(PENSTOCK, DBOS, _p50, Bar(at_most=1.0), "start_of_dbos")
    queued = await take_turns(bench, _LONG_TURNS, [PENSTOCK, DBOS], "flow_latency", bench.sizes.pickups, _RATE)
    queued.report("enqueue_p50_ms", _p50, " ms")
    queued.hold_ratio(PENSTOCK, DBOS, _p50, Bar(at_most=1.0), "enqueue_of_dbos")


async def singles(bench: Bench, ours: Side, others: tuple[Side, ...]) -> None:
    """How many jobs one caller stores in a second, each in a commit of its own, against the fastest of the others."""
    count = bench.sizes.singles
    turns = await take_turns(bench, _TURNS, [ours, *others], "enqueue", count)
    turns.report("per_second", _per_second(count), "/s")
    fastest = turns.best(others, _per_second(count), greatest=True) or others[0]
    turns.hold_ratio(ours, fastest, _per_second(count), Bar(at_least=1.0), "fastest")


async def batch(bench: Bench) -> None:
    """How many jobs are stored in a second, all at once."""
    count = bench.sizes.batch
    turns = await take_turns(bench, _TURNS, [PENSTOCK, *_BATCHES, *_BATCHES_REPORTED], "batch", count)
    turns.report("per_second", _per_second(count), "/s")
    for other, least in _BATCHES.items():
        turns.hold_ratio(PENSTOCK, other, _per_second(count), Bar(at_least=least))


async def latency(bench: Bench) -> None:
    """How long jobs from another process wait for a worker that has nothing else to do."""
    turns = await take_turns(bench, _LONG_TURNS, [PENSTOCK, *_LATENCIES], "latency", bench.sizes.pickups, _RATE)
    for name, number, most in (("p50", _p50, 2.5), ("p99", _p99, 5.0)):
        turns.report(f"{name}_ms", number, " ms")
        bench.hold(name, turns.median(PENSTOCK, number), Bar(at_most=most))
        best = turns.best(_LATENCIES, number, greatest=False) or _LATENCIES[0]
        turns.hold_ratio(PENSTOCK, best, number, Bar(at_most=1.0), f"best_{name}")
    turns.report("p50_from_call_ms", lambda outcome: statistics.median(outcome["whole_ms"]), " ms")


async def latency_sqlite(bench: Bench) -> None:
    """The same on SQLite, reported only."""
    turns = await take_turns(bench, _LONG_TURNS, [PENSTOCK_SQLITE, HUEY], "latency", bench.sizes.pickups, _RATE)
    turns.report("p50_ms", _p50, " ms")
    turns.report("p99_ms", _p99, " ms")


def _per_second(count: int) -> Callable[[Outcome], float]:
    return lambda outcome: count / float(outcome["seconds"])


def _each_us(what: str, count: int) -> Callable[[Outcome], float]:
    return lambda outcome: float(outcome[what]) / count * 1e6


def _settled_per_second(count: int) -> Callable[[Outcome], float]:
    return lambda outcome: count / float(outcome["settled_seconds"])


def _p50(outcome: Outcome) -> float:
    return float(statistics.median(outcome["pickup_ms"]))


def _p99(outcome: Outcome) -> float:
    return float(statistics.quantiles(outcome["pickup_ms"], n=100, method="inclusive")[_P99 - 1])


_drain = partial(work, ours=PENSTOCK, measure="drain")
_batches = partial(work, ours=PENSTOCK, measure="batches")
_flows = partial(work, others={DBOS: 4.0}, most=_LONG_TURNS)
_drain_sqlite = partial(work, ours=PENSTOCK_SQLITE, measure="drain")
_transactions = partial(work, ours=PENSTOCK, measure="transactions")

BENCHMARKS = (
    Benchmark("peer_drain_postgres", partial(_drain, others=_DRAINS)),
    Benchmark("peer_drain_postgres_slow", partial(_drain, others=_SLOW_DRAINS, most=_SLOW_TURNS)),
    Benchmark("peer_batches_postgres", partial(_batches, others={PG_BOSS: 1.0})),
    Benchmark("peer_drain_sqlite", partial(_drain_sqlite, others={HUEY: 5.0})),
    Benchmark("peer_enqueue_postgres", partial(singles, ours=PENSTOCK, others=_SINGLES)),
    Benchmark("peer_enqueue_sqlite", partial(singles, ours=PENSTOCK_SQLITE, others=(HUEY,))),
    Benchmark("peer_batch_postgres", batch),
    Benchmark("peer_latency_postgres", latency),
    Benchmark("peer_latency_sqlite", latency_sqlite),
    Benchmark("peer_transactions_postgres", partial(_transactions, others=_TRANSACTIONS)),
    Benchmark("peer_flows", partial(_flows, ours=PENSTOCK, measure="flows")),
    Benchmark("peer_flows_of_actions", partial(_flows, ours=PENSTOCK, measure="action_flows")),
    Benchmark("peer_flows_first_step", first_steps),
    Benchmark("peer_transactions_postgres_slow", partial(_transactions, others=_SLOW_TRANSACTIONS, most=_SLOW_TURNS)),
)
