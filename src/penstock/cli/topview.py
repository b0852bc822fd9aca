"""What ``penstock top`` shows: the numbers of a moment, and how they look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from penstock.jobs.job import DEFAULT_POOL
from penstock.store.contract.overview import Activity, LeaseRow
from penstock.store.contract.pools import PoolRow

_ENDS = ("success", "failed", "canceled", "skipped")
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at one moment.

    Attributes:
        now: When.
        window: Over how many seconds ends are counted.
    """

    now: datetime
    window: float
    pools: Sequence[PoolRow]
    activity: Sequence[Activity]
    workers: Sequence[LeaseRow]


@dataclass(frozen=True, slots=True)
class PoolNow:
    """A pool at one moment.

    Attributes:
        limit: How many of its jobs run at once; None for no limit.
        ended: Jobs that ended, each second.
        failed: Jobs that failed, in the time that is looked at.
        waits: Seconds since the oldest ready job could have started.
    """

    name: str
    limit: int | None
    paused: bool
    running: int
    ready: int
    scheduled: int
    ended: float
    failed: int
    waits: float | None


def pools_of(seen: Look) -> list[PoolNow]:
    """The pools at that moment, by name; jobs without a pool come first."""
    found = {(one.pool, one.place): one for one in seen.activity}
    limits = {pool.name: pool for pool in seen.pools}
    names = sorted(limits.keys() | {one.pool for one in seen.activity} | {DEFAULT_POOL})
    names.sort(key=lambda name: name != DEFAULT_POOL)

    def count(pool: str, *places: str) -> int:
        return sum(found[pool, place].count for place in places if (pool, place) in found)

    def of(name: str) -> PoolNow:
        ready, limit = found.get((name, "ready")), limits.get(name)
        return PoolNow(
            name=name,
            limit=None if limit is None else limit.max_parallelism,
            paused=limit is not None and limit.paused,
            running=count(name, "running"),
            ready=count(name, "ready", "completing"),
            scheduled=count(name, "scheduled"),
            ended=count(name, *_ENDS) / seen.window,
            failed=count(name, "failed"),
            waits=None if ready is None else max(0.0, (seen.now - ready.first).total_seconds()),
        )

    return [of(name) for name in names]


def as_data(seen: Look) -> dict[str, Any]:
    """A moment, for programs."""
    return {"now": seen.now, "window": seen.window, "pools": pools_of(seen), "workers": seen.workers}


def draw(seen: Look) -> Group:
    """What is shown of a moment."""
    pools = pools_of(seen)
    running, ready = sum(pool.running for pool in pools), sum(pool.ready for pool in pools)
    rate = sum(pool.ended for pool in pools)
    workers = f"{len(seen.workers)} worker{'' if len(seen.workers) == 1 else 's'}"
    jobs = f"{running:,} running  {ready:,} ready  {rate:,.1f} ended/s in {seen.window:g} s"
    head = f"{seen.now:%Y-%m-%d %H:%M:%SZ}  {workers}  {jobs}"
    return Group(Text(head, style="bold"), Text(), _pools(pools), Text(), _workers(seen), Text(), _oldest(seen))


def _pools(pools: Sequence[PoolNow]) -> Table:
    table = _table("pool", "limit", "running", "ready", "scheduled", "ended/s", "failed", "waits")
    for pool in pools:
        limit = "paused" if pool.paused else "-" if pool.limit is None else f"{pool.limit:,}"
        counts = (f"{number:,}" for number in (pool.running, pool.ready, pool.scheduled))
        failed = Text(f"{pool.failed:,}", style="red" if pool.failed else "")
        table.add_row(Text(pool.name), limit, *counts, f"{pool.ended:,.1f}", failed, _span(pool.waits))
    return table


def _workers(seen: Look) -> Table:
    table = _table("worker", "lease", "jobs", "up", "lease ends in")
    for worker in seen.workers:
        left = (worker.expires_at - seen.now).total_seconds()
        ends = Text("over", style="red") if left <= 0 else Text(_span(left))
        up = _span((seen.now - worker.started_at).total_seconds())
        table.add_row(Text(worker.worker), str(worker.lease), f"{worker.running:,}", up, ends)
    if not seen.workers:
        table.add_row(Text("no worker runs", style="red"), *[""] * 4)
    return table


def _oldest(seen: Look) -> Text:
    """The job that has run for longest, and the one that has waited for longest."""
    parts = []
    for place, begin in (("running", "runs longest, for"), ("ready", "waits longest, for")):
        if ones := [one for one in seen.activity if one.place == place]:
            oldest = min(ones, key=lambda one: one.first)
            seconds = max(0.0, (seen.now - oldest.first).total_seconds())
            parts.append(f"oldest {place} job: {begin} {_span(seconds)}, in pool {oldest.pool}")
    return Text("\n".join(parts) or "nothing runs, nothing is ready", style="dim")


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style="bold")
    table.add_column(first, overflow="fold", min_width=8)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    unit, size = next(((unit, size) for unit, size in _UNITS if seconds >= 2 * size), _UNITS[-1])
    return f"{seconds / size:.{int(size == 1)}f} {unit}"
