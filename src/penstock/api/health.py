"""Looks for what an operator has to act on: workers, jobs, the change feed, outboxes, the schema, the database itself.

`look` reads, and `findings` decides; each rule is a function. A finding names what is wrong, where, and the next step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from penstock.api.outbox.views import OutboxStatus, look_at
from penstock.calls.run.engine import Engine
from penstock.changes.lag import FULL, lag_alert
from penstock.clock import SystemClock
from penstock.errors import SchemaMismatch
from penstock.live.capture import live_interest
from penstock.outbox.outbox import outbox_read, reader_name
from penstock.reactive.task import interest_name
from penstock.schema.table import TableDefinition
from penstock.store.contract.changes import InterestRow
from penstock.store.contract.feed import FeedSeen, see_feed
from penstock.store.contract.jobs import LeaseRow
from penstock.store.contract.pools import Activity, PoolRow
from penstock.store.contract.records import TaskBacklog
from penstock.store.contract.session import reading
from penstock.store.contract.statistics import Statistics
from penstock.store.push.migrate import Plan, push

Severity = Literal["critical", "warning", "notice"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "notice")

_MOST = 10_000  # of anything that is counted
_MIB = 2**20
_SERVICES = 6  # connections of a process beside its `max_connections`
_RESCUED_WITHIN = timedelta(minutes=1)
_PRUNED_WITHIN = timedelta(hours=1)
_WAITS_LONG = timedelta(minutes=10)
_OPEN_LONG = timedelta(minutes=15)
_SPAN = timedelta(minutes=10)  # in which failures are compared with those of the span before
_SKEW = timedelta(seconds=1)
_FEW_FAILURES, _FEW_CONFLICTS, _CONFLICTING = 10, 100, 0.2
_LONG_SCAN, _SCANS, _UNUSED_SIZE = 10_000, 100, 10 * _MIB
_DEAD, _DEAD_SHARE = 10_000, 0.5
_LOG_SIZE, _REPLICA_BEHIND = 128 * _MIB, 16 * _MIB
_CONNECTED, _NEARLY_ALL = 0.8, 0.95


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """Something that is wrong, or will be.

    Attributes:
        code: The kind of finding, such as ``lease-expired``.
        severity: ``critical``: work stands still or is lost; ``warning``: it soon may; ``notice``: it costs something.
        where: The thing it is about: a pool, a table, a lease.
        what: What is wrong.
        fix: The next step.
        command: The command of that step, if there is one.
    """

    code: str
    severity: Severity
    where: str
    what: str
    fix: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """All that the rules look at."""

    now: datetime
    max_connections: int
    offset: timedelta  # the difference of the database's clock from this machine's
    leases: Sequence[LeaseRow]
    expired: Collection[int]  # leases that ran out a while ago
    pools: Sequence[PoolRow]
    activity: Sequence[Activity]  # with the jobs that ended in the last span
    failed_before: Mapping[str, int]  # by pool: jobs that failed in the span before
    tasks: Sequence[TaskBacklog]
    feed: FeedSeen
    interests: Sequence[InterestRow]
    declared: Collection[str]  # the names of this program's interests
    outboxes: Sequence[OutboxStatus]
    plan: Plan | SchemaMismatch
    statistics: Statistics
    replica: int | Literal["away"] | None  # bytes that it is behind; None without a replica
    calls: Mapping[str, tuple[int, int]]  # by function: its conflicts and its runs


async def look(
    engine: Engine,
    definitions: Sequence[TableDefinition],
    tasks: Collection[str],
    outboxes: Collection[str],
    calls: Mapping[str, tuple[int, int]] | None = None,
) -> Health:
    """Read all that the rules look at.

    Args:
        engine: The store and the clock.
        definitions: The tables that the program declares.
        tasks: The names of its reactive tasks.
        outboxes: The names of its outboxes.
        calls: By function, how often it conflicted and ran; what the meters of this process say by default.
    """
    store, clock, now = engine.store, engine.clock, engine.clock.now()
    async with reading(store.begin_read) as session:
        leases, pools = await store.leases.list(session), await store.pools.list(session)
        activity, longer = [await store.pools.activity(session, now - _SPAN * spans) for spans in (1, 2)]
    failed = {one.pool: one.count for one in activity if one.place == "failed"}
    rows, replica = await store.outboxes.list(), store.replica
    behind = None if replica is None else await replica.behind()
    try:
        plan: Plan | SchemaMismatch = await push(store, definitions, apply=False)
    except SchemaMismatch as error:
        plan = error
    return Health(
        now=now,
        max_connections=engine.config.max_connections,
        offset=clock.offset if isinstance(clock, SystemClock) else timedelta(0),
        leases=leases,
        expired=await store.leases.expired(now - _RESCUED_WITHIN),
        pools=pools,
        activity=activity,
        failed_before={one.pool: one.count - failed.get(one.pool, 0) for one in longer if one.place == "failed"},
        tasks=await store.records.backlog(_MOST),
        feed=await see_feed(store.changes, _MOST),
        interests=await store.interests.list(),
        declared={*map(interest_name, tasks), *map(reader_name, outboxes), *map(_live_name, definitions)},
        outboxes=await look_at(store, rows, now, outboxes.__contains__, _MOST) if rows else [],
        plan=plan,
        statistics=await store.statistics.look([one.name for one in definitions], now - _PRUNED_WITHIN, _MOST),
        replica="away" if replica is not None and behind is None else behind,
        calls=_counted(engine) if calls is None else calls,
    )


def _live_name(definition: TableDefinition) -> str:
    return live_interest(definition).name if definition.live else ""


def findings(seen: Health) -> list[HealthFinding]:
    """What the rules find, the worst first."""
    found = [one for rule in _RULES for one in rule(seen)]
    return sorted(found, key=lambda one: SEVERITIES.index(one.severity))


def _counted(engine: Engine) -> Mapping[str, tuple[int, int]]:
    meters = engine.journal.meters
    if meters is None:
        return {}
    conflicts, calls = meters.counters["penstock_conflicts"], meters.counters["penstock_calls"]
    return {
        name: (number, sum(runs for (function, _), runs in calls.items() if function == name))
        for (name,), number in conflicts.items()
    }


# ----- workers and jobs


def _leases(seen: Health) -> Iterator[HealthFinding]:
    known = {one.lease: one for one in seen.leases}
    for number in seen.expired:
        lease = known.get(number)
        whose = f"of {lease.holder} ran out {_span(seen.now - lease.expires_at)} ago" if lease else "is gone"
        running = f"{lease.running:,} of its jobs wait" if lease else "its jobs wait"
        yield HealthFinding(
            "lease-expired", "critical", f"lease {number}",
            f"The lease {whose}, and {running} for another worker to rescue them.",
            "Start a worker.", "penstock worker",
        )  # fmt: skip


def _workers(seen: Health) -> Iterator[HealthFinding]:
    ready = {one.pool: one for one in seen.activity if one.place == "ready"}
    if ready and not any(one.is_worker and one.expires_at > seen.now for one in seen.leases):
        yield HealthFinding(
            "worker-missing", "critical", "workers",
            f"{sum(one.count for one in ready.values()):,} jobs are ready, and no worker runs.",
            "Start a worker.", "penstock worker",
        )  # fmt: skip
        return
    limits = {one.name: one for one in seen.pools}
    for pool, one in ready.items():
        if seen.now - one.first >= _WAITS_LONG:
            is_paused = pool in limits and limits[pool].paused
            yield HealthFinding(
                "pool-backlog", "warning", f"pool {pool}",
                f"{one.count:,} jobs are ready; the oldest has waited for {_span(seen.now - one.first)}."
                + " The pool is paused." * is_paused,
                "Resume it." if is_paused else "Look at its limit and its running jobs, or start more workers.",
                f"penstock resume {pool}" if is_paused else "penstock top --once",
            )  # fmt: skip


def _failures(seen: Health) -> Iterator[HealthFinding]:
    for one in seen.activity:
        before = seen.failed_before.get(one.pool, 0)
        if one.place == "failed" and one.count >= _FEW_FAILURES and one.count > 2 * before:
            yield HealthFinding(
                "failures-rising", "warning", f"pool {one.pool}",
                f"{one.count:,} jobs failed in the last {_span(_SPAN)}, after {before:,} in as long before.",
                "Read their errors.", f"penstock jobs --state failed --pool {one.pool}",
            )  # fmt: skip
    for task in seen.tasks:
        if task.failed:
            yield HealthFinding(
                "task-failed", "warning", f"task {task.name}",
                f"The last run of {task.failed:,} of its rows failed.",
                "Read the errors; retry once their cause is gone.", f"penstock tasks {task.name} --state failed",
            )  # fmt: skip


def _conflicts(seen: Health) -> Iterator[HealthFinding]:
    for name, (conflicts, runs) in seen.calls.items():
        if conflicts >= _FEW_CONFLICTS and conflicts >= _CONFLICTING * runs:
            yield HealthFinding(
                "row-contended", "warning", f"function {name}",
                f"It conflicted {conflicts:,} times in {runs:,} runs: many calls write one row.",
                "Run it in a pool with max_parallelism=1, or give each call a row of its own.",
            )  # fmt: skip


def _retention(seen: Health) -> Iterator[HealthFinding]:
    if overdue := seen.statistics.overdue:
        yield HealthFinding(
            "pruner-missing", "warning", "finished jobs",
            f"{_most(overdue)} expired job statuses are still stored: no pruner runs.",
            "Start a worker; it runs the pruner.", "penstock worker",
        )  # fmt: skip


# ----- the change feed and its readers


def _feed(seen: Health) -> Iterator[HealthFinding]:
    for _row, reader in seen.feed.readers:
        alert = lag_alert(reader, seen.feed.size, seen.now)
        if alert is not None:
            outbox = outbox_read(reader.name)
            yield HealthFinding(
                "reader-stopped" if alert.stopped else "reader-behind",
                "critical" if alert.stopped or alert.full else "warning", f"reader {reader.name}",
                f"{_most(reader.rows)} changes are unread, for {_span(reader.age(seen.now))}. The feed keeps them.",
                "Start its reader with a worker. If nobody needs it, drop it:",
                f"penstock changes drop {reader.name}" if outbox is None else f"penstock outbox drop {outbox}",
            )  # fmt: skip
    if seen.feed.size >= FULL:
        yield HealthFinding(
            "feed-large", "warning", "change feed", f"It takes {_size(seen.feed.size)}, as it is not emptied.",
            "Find the reader, the outbox's keep_for or the transaction that keeps it.", "penstock changes",
        )  # fmt: skip
    oldest = seen.feed.oldest_transaction
    if oldest is not None and oldest >= _OPEN_LONG:
        yield HealthFinding(
            "transaction-old", "warning", "database",
            f"A transaction has been open for {_span(oldest)}. It delays readers of the feed, and vacuum.",
            "Find its program, then end it:",
            "select pid, application_name, query from pg_stat_activity order by xact_start",
        )  # fmt: skip


def _interests(seen: Health) -> Iterator[HealthFinding]:
    for row in seen.interests:
        name = row.interest.name
        if row.state != "ok":
            yield HealthFinding(
                "interest-broken", "critical", f"interest {name}",
                f"Changes of table {row.interest.table} are not captured: its triggers are {row.state}.",
                "Find out who changed them, then make them anew:", "penstock migrate",
            )  # fmt: skip
        elif name not in seen.declared:
            yield HealthFinding(
                "interest-undeclared", "notice", f"interest {name}",
                f"Changes of table {row.interest.table} are captured, and this program does not declare it.",
                "If no other program does either, drop its reader.", "penstock changes",
            )  # fmt: skip


def _outboxes(seen: Health) -> Iterator[HealthFinding]:
    for one in seen.outboxes:
        if one.halted:
            yield HealthFinding(
                "outbox-halted", "critical", f"outbox {one.name}",
                f"It waits for a message that failed; {_most(one.messages)} wait behind it. {one.error or ''}".strip(),
                "Mend the cause and retry, or skip the message.", f"penstock outbox show {one.name}",
            )  # fmt: skip
        if one.parked:
            yield HealthFinding(
                "outbox-parked", "warning", f"outbox {one.name}", f"{_most(one.parked)} failed messages are parked.",
                "Mend the cause, then retry them.", f"penstock outbox retry {one.name}",
            )  # fmt: skip


# ----- tables and the database


def _schema(seen: Health) -> Iterator[HealthFinding]:
    if isinstance(seen.plan, SchemaMismatch):
        fix = "Mend the declarations or the rows."
        yield HealthFinding("schema-mismatch", "critical", "schema", seen.plan.what, fix)
        return
    if not seen.plan.empty:
        missing = ", ".join(sorted(seen.plan.tables)) or "penstock's own tables"
        yield HealthFinding(
            "schema-behind", "warning", "schema", f"The database lacks what the program declares in {missing}.",
            "Look at the plan, then migrate.", "penstock migrate --plan",
        )  # fmt: skip
    for table, index, other in seen.plan.redundant:
        yield HealthFinding(
            "index-redundant", "notice", f"table {table}",
            f"The columns of index {index.name} are the first ones of {other.name}, so each write pays twice.",
            "Leave it out, unless queries through it read rows in order of creation.",
        )  # fmt: skip


def _tables(seen: Health) -> Iterator[HealthFinding]:
    for one in seen.statistics.tables:
        is_own = one.name.startswith("penstock.")
        if not is_own and one.scans >= _SCANS and one.scanned >= _LONG_SCAN * one.scans:
            yield HealthFinding(
                "index-missing", "warning", f"table {one.name}",
                f"{one.scans:,} statements read the whole table, {one.scanned // one.scans:,} rows each.",
                "Find the queries without with_index, and declare an Index.", "penstock check",
            )  # fmt: skip
        if one.dead >= _DEAD and one.dead >= _DEAD_SHARE * one.live:
            yield HealthFinding(
                "vacuum-needed", "warning", f"table {one.name}",
                f"{one.dead:,} dead rows lie among {one.live:,} live ones.",
                "Look for old transactions and at autovacuum's settings, then run:", f"vacuum (analyze) {one.name}",
            )  # fmt: skip
    for index in seen.statistics.unused:
        if index.size >= _UNUSED_SIZE:
            yield HealthFinding(
                "index-unused", "notice", f"table {index.table}",
                f"No query has used index {index.name} of {_size(index.size)} since the server began to count.",
                "If replicas do not use it either, leave it out.",
            )  # fmt: skip


def _database(seen: Health) -> Iterator[HealthFinding]:
    used, most, wanted = seen.statistics.connections, seen.statistics.max_connections, seen.max_connections + _SERVICES
    if most is not None and used >= _CONNECTED * most:
        yield HealthFinding(
            "connections-few", "critical" if used >= _NEARLY_ALL * most else "warning", "database",
            f"{used:,} of {most:,} connections are open.",
            "Lower max_connections of the processes, use a pooler, or let the server permit more.", "penstock config",
        )  # fmt: skip
    elif most is not None and wanted > most:
        yield HealthFinding(
            "connections-few", "warning", "max_connections",
            f"One process may open {wanted:,} connections, and the server permits {most:,}.",
            "Lower max_connections, or let the server permit more.", "penstock config",
        )  # fmt: skip
    if (seen.statistics.log_size or 0) >= _LOG_SIZE:
        yield HealthFinding(
            "log-long", "warning", "write-ahead log",
            f"It has grown to {_size(seen.statistics.log_size or 0)}: a program keeps a snapshot open.",
            "Find the program that reads the file, and let its transaction end.",
        )  # fmt: skip
    if seen.replica == "away" or (seen.replica or 0) >= _REPLICA_BEHIND:
        state = "does not answer" if seen.replica == "away" else f"is {_size(int(seen.replica or 0))} behind"
        yield HealthFinding(
            "replica-behind", "warning", "replica", f"It {state}, so live queries run on the primary.",
            "Look at its log, its disk and the network.", "select * from pg_stat_replication",
        )  # fmt: skip


def _clocks(seen: Health) -> Iterator[HealthFinding]:
    if abs(seen.offset) > _SKEW:
        way = "behind" if seen.offset > timedelta(0) else "ahead of"
        yield HealthFinding(
            "clock-skew", "warning", "this machine",
            f"Its clock is {_span(abs(seen.offset))} {way} the database's. Your own code and the logs show it.",
            "Set the clocks by NTP.", "timedatectl status",
        )  # fmt: skip
    moved = [(f"lease of {one.holder}", one.started_at) for one in seen.leases]
    moved += [(f"reader {row.name}", row.moved_at) for row, _lag in seen.feed.readers]
    for where, at in moved:
        if at - seen.now > _SKEW:
            yield HealthFinding(
                "clock-skew", "warning", where,
                f"Its process wrote a time {_span(at - seen.now)} in the future: its clock is ahead of this one.",
                "Set the clocks of the machines by NTP.", "timedatectl status",
            )  # fmt: skip


_RULES = (
    _leases, _workers, _failures, _conflicts, _retention, _feed, _interests, _outboxes, _schema, _tables, _database,
    _clocks,
)  # fmt: skip


# ----- words


def _most(number: int) -> str:
    return f"{'at least ' * (number >= _MOST)}{number:,}"


def _span(length: timedelta) -> str:
    seconds = length.total_seconds()
    units = (("d", 86400), ("h", 3600), ("min", 60))
    return next((f"{seconds / size:.0f} {unit}" for unit, size in units if seconds >= size), f"{seconds:.1f} s")


def _size(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / _MIB:,.0f} MiB"
