"""Looks for what an operator has to act on: workers, jobs, the change feed, outboxes, the schema, the database itself.

`look` reads, and `findings` decides; each rule is a function. A finding names what is wrong, where, and the next step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from shlex import quote
from typing import Literal

from penstock.api.outbox.outboxes import Outboxes
from penstock.api.outbox.views import OutboxStatus, look_at
from penstock.api.searches import count_unread
from penstock.calls.run.engine import Engine
from penstock.changes.lag import FULL, lag_alert
from penstock.changes.searches import searches_of
from penstock.clock import SystemClock
from penstock.crons.plan import KeptCron
from penstock.dataclass import dataclass
from penstock.errors import SchemaMismatch
from penstock.functions.scope import Work
from penstock.jobs.states import FINISHED, JobState
from penstock.live.capture import live_interest
from penstock.observe.logbook import Numbers
from penstock.observe.readable import cap, size_of, span
from penstock.outbox.outbox import reader_name
from penstock.reactive.task import interest_name
from penstock.schema.table import TableDefinition
from penstock.store.nouns.changes import FeedSeen, see_feed
from penstock.store.nouns.interests import InterestRow
from penstock.store.nouns.leases import LeaseRow, list_unserved
from penstock.store.nouns.logbook import KEPT
from penstock.store.nouns.pools import Backlog
from penstock.store.nouns.records import TaskBacklog
from penstock.store.nouns.statistics import Statistics
from penstock.store.nouns.workflows import Stuck
from penstock.store.push.migrate import Plan, push
from penstock.store.session import reading
from penstock.transaction.searching import MOST_UNREAD

Severity = Literal["critical", "warning", "notice"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "notice")

_MOST = 10_000  # of anything that is counted
_most = partial(cap, most=_MOST)
_MIB = 2**20
_SERVICES = 7  # connections of a process in addition to its `max_connections`
_RESCUED_WITHIN = timedelta(minutes=1)
_PRUNED_WITHIN = timedelta(hours=1)
_LATE = timedelta(minutes=1)
_WAITS_LONG = timedelta(minutes=10)
_UNHEARD = timedelta(days=30)
_OPEN_LONG = timedelta(minutes=15)
_SPAN = timedelta(minutes=10)  # in which failures are compared with those of the span before
_SPANS = (_SPAN, timedelta(hours=1), timedelta(days=1), KEPT)  # the first with enough attempts gives the share
_SKEW = timedelta(seconds=1)
_FEW_FAILURES, _FEW_CONFLICTS, _CONFLICTING = 10, 100, 0.2
_FEW_ATTEMPTS, _FAILING, _FAILING_SHARE = 10, 3, 0.2
# What failures are counted of: what is tried, and where the errors are. Then how attempts end, and which have failed.
TRIED = {
    "pool": ("attempts at jobs", "penstock jobs --pool {name}"),
    "task": ("runs", "penstock tasks records {name} --state failed"),
    "outbox": ("deliveries", "penstock outbox show {name}"),
    "function": ("runs", ""),  # its callers, jobs or deliveries have got the errors
}
_ENDS = ("success", "failed", "retrying", "canceled", "skipped", "delivered", "error")
_FAILED = ("failed", "retrying", "fault")
_LONG_SCAN, _SCANS, _UNUSED_SIZE = 10_000, 100, 10 * _MIB
_DEAD, _DEAD_SHARE = 10_000, 0.5
_LOG_SIZE, _REPLICA_BEHIND = 128 * _MIB, 16 * _MIB
_CONNECTED, _NEARLY_ALL = 0.8, 0.95


# Each kind of finding: its usual severity, the next step and its command.
KINDS: dict[str, tuple[Severity, str, str]] = {
    "lease-expired": ("critical", "Start a worker.", "penstock worker"),
    "loop-blocked": ("warning", 'Await in it, write it with def, or set runtime="process".', "penstock check"),
    "worker-missing": ("critical", "Start a worker.", "penstock worker"),
    "work-unserved": ("critical", "Start a worker that runs it, or one without options.", "penstock worker"),
    "cron-late": ("critical", "Start a worker, which runs the scheduler.", "penstock worker"),
    "pool-backlog": ("warning", "Look at its limit and its jobs, or start more workers.", "penstock top --once"),
    "pool-paused": ("warning", "Resume the pool.", "penstock resume {name}"),
    "failures-rising": ("warning", "Read their errors, in the log or on its page of the dashboard.", ""),
    "failures-steady": ("warning", "Read their errors, in the log or on its page of the dashboard.", ""),
    "task-failed": (
        "warning",
        "Read the errors; retry once their cause is gone.",
        "penstock tasks records {name} --state failed",
    ),
    "run-parked": (
        "critical",
        "Read the reasons. Deploy code that fits, and kills no worker: the runs then go on by themselves.",
        "penstock workflows --state parked --function {name}",
    ),
    "run-unheard": (
        "notice",
        "See that somebody sends the event, give the wait a timeout, or cancel them.",
        "penstock workflows --state waiting --function {name}",
    ),
    "row-contended": ("warning", "Run it in a pool with max_parallelism=1, or give each call a row of its own.", ""),
    "pruner-missing": ("warning", "Start a worker; it runs the pruner.", "penstock worker"),
    "reader-stopped": (
        "critical",
        "Start a worker, or resume or retry its outbox. If nobody needs it, drop it.",
        "penstock changes",
    ),
    "reader-behind": ("warning", "Look at its handler's duration, and at old transactions.", "penstock changes"),
    "search-filling": (
        "warning",
        "Searches in it fail until its rows are indexed. See that a process runs the services.",
        "penstock migrate",
    ),
    "search-behind": ("critical", "Searches in it fail. Start a worker, which runs the indexer.", "penstock worker"),
    "feed-large": ("warning", "Find the reader, keep_for or the transaction that keeps it.", "penstock changes"),
    "transaction-old": (
        "warning",
        "Find its program, and end it:",
        "select * from pg_stat_activity order by xact_start",
    ),
    "interest-broken": ("critical", "Find out who changed them, then make them again:", "penstock migrate"),
    "interest-undeclared": ("notice", "If no other program declares it either, drop its reader.", "penstock changes"),
    "outbox-halted": ("critical", "Fix the cause and retry, or skip the message.", "penstock outbox show {name}"),
    "outbox-parked": ("warning", "Fix the cause, then retry them.", "penstock outbox retry {name}"),
    "schema-mismatch": ("critical", "Mend the declarations or the rows.", "penstock migrate --plan"),
    "schema-behind": ("warning", "Look at the plan, then migrate.", "penstock migrate --plan"),
    "index-missing": ("warning", "Find the queries without with_index, and declare an Index.", "penstock check"),
    "index-redundant": ("notice", "Leave it out, unless queries through it read rows in order of creation.", ""),
    "index-unused": ("notice", "If replicas do not use it either, leave it out.", ""),
    "vacuum-needed": ("warning", "Look at old transactions and at autovacuum, then run:", "vacuum (analyze) {name}"),
    "connections-few": (
        "warning",
        "Lower max_connections, use a pooler, or let the server permit more.",
        "penstock config",
    ),
    "log-long": ("warning", "Find the program that reads the file, and let its transaction end.", ""),
    "replica-behind": ("warning", "Look at its log, its disk and the network.", "select * from pg_stat_replication"),
    "clock-skew": ("warning", "Set the clocks of the machines by NTP.", "timedatectl status"),
}


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
    work: Work  # of this program
    expired: Collection[int]  # leases that ran out a while ago
    crons: Sequence[tuple[KeptCron, str | None]]  # with the state of the last run of each
    pools: Sequence[Backlog]
    sums: Sequence[Numbers]  # what processes have counted: in each of the spans, and in twice the first
    tasks: Sequence[TaskBacklog]
    runs: Sequence[Stuck]  # of workflows
    feed: FeedSeen
    interests: Sequence[InterestRow]
    declared: Collection[str]  # the names of this program's interests
    outboxes: Sequence[OutboxStatus]
    searches: Mapping[str, int | None]  # by search index the number of its unread changes; None while it is filled
    plan: Plan | SchemaMismatch
    statistics: Statistics
    replica: int | Literal["away"] | None  # bytes that it is behind; None without a replica

    @property
    def conflicts(self) -> Mapping[str, tuple[int, int]]:
        """By function: how often it conflicted and ran in the last hour."""
        sums = self.sums[1]
        found = {where: round(parts["conflict"]) for where, parts in sums.items() if "conflict" in parts}
        return {where.partition(" ")[2]: (number, _count_failures(sums, where)[1]) for where, number in found.items()}


async def look(engine: Engine, definitions: Sequence[TableDefinition], work: Work, outboxes: Outboxes) -> Health:
    """Read all that the rules look at, for a program that declares these tables and this work."""
    store, clock, now = engine.store, engine.clock, engine.clock.now()
    await engine.write_logbook()
    async with reading(store.begin_read) as session:
        leases, crons = await store.leases.list(session), await store.crons.list(session, now)
    rows, replica = await store.outboxes.list(), store.replica
    behind = None if replica is None else await replica.behind()
    declared = {live_interest(one).name for one in definitions if one.live}
    declared |= {*map(interest_name, work.tasks), *map(reader_name, work.outboxes)}
    declared |= {one.interest_name for one in searches_of(definitions)}
    try:
        plan: Plan | SchemaMismatch = await push(store, definitions, apply=False)
    except SchemaMismatch as error:
        plan = error
    return Health(
        now=now,
        max_connections=engine.config.max_connections,
        offset=clock.offset if isinstance(clock, SystemClock) else timedelta(0),
        leases=leases,
        work=work,
        expired=await store.leases.find_expired(now - _RESCUED_WITHIN),
        crons=crons,
        pools=await store.pools.backlog(_MOST),
        sums=[await store.logbook.sums(now - one) for one in (*_SPANS, 2 * _SPAN)],
        tasks=await store.records.backlog(_MOST),
        runs=await store.workflows.list_stuck(now - _UNHEARD, _MOST),
        feed=await see_feed(store.changes, _MOST),
        interests=await store.interests.list(),
        declared=declared,
        outboxes=await look_at(store, rows, now, outboxes.find, _MOST) if rows else [],
        searches={one.name: await count_unread(store, one, _MOST) for one in searches_of(definitions)},
        plan=plan,
        statistics=await store.statistics.look([one.name for one in definitions], now - _PRUNED_WITHIN, _MOST),
        replica="away" if replica is not None and behind is None else behind,
    )


def findings(seen: Health) -> list[HealthFinding]:
    """The findings of the rules, the worst first."""
    found = [one for rule in _RULES for one in rule(seen)]
    return sorted(found, key=lambda one: SEVERITIES.index(one.severity))


def _of(
    code: str, where: str, what: str, *, name: str = "", severity: Severity | None = None, command: str = ""
) -> HealthFinding:
    usual, fix, its_command = KINDS[code]
    command = command or its_command
    typed = quote(name) if command.startswith("penstock ") else name
    return HealthFinding(code, severity or usual, where, what, fix, command.format(name=typed))


def _count_failures(sums: Numbers, where: str) -> tuple[int, int]:
    """How many attempts have failed, and how many there were."""
    found = sums.get(where, {})
    failed, whole = (sum(found.get(one, 0) for one in parts) for parts in (_FAILED, _ENDS))
    return round(failed), round(whole)


# ----- workers and jobs


def _leases(seen: Health) -> Iterator[HealthFinding]:
    known = {one.lease: one for one in seen.leases}
    blocked = {one.blocked: f"lease of {one.holder}" for one in seen.leases if one.blocked}
    for what, where in blocked.items():  # a worker, planner and relay of one process see the same
        yield _of("loop-blocked", where, f"{what}.")
    for number in seen.expired:
        lease = known.get(number)
        told = (
            f"The lease of {lease.holder} ran out {span(seen.now - lease.expires_at)} ago." if lease else "It is gone."
        )
        if lease and not lease.running:
            yield _of("lease-expired", f"lease {number}", f"{told} Nobody has taken over.", severity="warning")
        else:
            jobs = f": {lease.running:,}" if lease else ""
            yield _of("lease-expired", f"lease {number}", f"{told} Jobs that wait to be rescued{jobs}.")


def _workers(seen: Health) -> Iterator[HealthFinding]:
    jobs = sum(one.ready for one in seen.pools)
    if jobs and not any(one.is_worker and one.expires_at > seen.now for one in seen.leases):
        yield _of("worker-missing", "workers", f"No worker runs. Ready jobs: {_most(jobs)}.")
        return
    for one in seen.pools:
        if one.oldest is not None and seen.now - one.oldest >= _WAITS_LONG:
            code = "pool-paused" if one.max_parallelism == 0 else "pool-backlog"
            what = f"Its oldest ready job has waited for {span(seen.now - one.oldest)}. Ready jobs: {_most(one.ready)}."
            yield _of(code, f"pool {one.pool}", what, name=one.pool)


def _work(seen: Health) -> Iterator[HealthFinding]:
    unserved = list_unserved(seen.leases, seen.work, seen.now)
    for noun, name in unserved:
        yield _of("work-unserved", f"{noun} {name}", "No worker that is running runs it.")
    theirs = {*seen.work.crons} - {name for noun, name in unserved if noun == "cron"}
    for kept, state in seen.crons:
        late, under_way = seen.now - kept.next_at, state is not None and JobState(state) not in FINISHED
        waits = under_way and kept.plan.overlap == "wait"
        if late >= _LATE and kept.plan.name in theirs and not (kept.paused or waits):
            yield _of("cron-late", f"cron {kept.plan.name}", f"No scheduler starts it. It was due {span(late)} ago.")


def _failures(seen: Health) -> Iterator[HealthFinding]:
    last, *_, week, twice = seen.sums
    for where in sorted(where for where in week if where.partition(" ")[0] in TRIED):
        noun, _, name = where.partition(" ")
        tried, command = TRIED[noun]
        failed, whole = _count_failures(last, where)
        before, code, length = _count_failures(twice, where)[0] - failed, "failures-steady", _SPAN
        if failed >= _FEW_FAILURES and failed > 2 * before:
            code = "failures-rising"
        elif noun != "pool" or failed < _FEW_FAILURES:
            tries = ((one, *_count_failures(sums, where)) for one, sums in zip(_SPANS, seen.sums, strict=False))
            length, failed, whole = next(one for one in tries if one[2] >= _FEW_ATTEMPTS or one[0] == KEPT)
            if failed < max(_FAILING, _FAILING_SHARE * whole):
                continue
        compared = f", after {before:,} in as long before" if code == "failures-rising" else ""
        what = f"{failed:,} of {whole:,} {tried} failed in the last {span(length)}{compared}."
        yield _of(code, where, what, name=name, command=command)
    for task in seen.tasks:
        if task.failed:
            what = f"Rows whose last run failed: {_most(task.failed)}."
            yield _of("task-failed", f"task {task.name}", what, name=task.name)


def _runs(seen: Health) -> Iterator[HealthFinding]:
    for one in seen.runs:
        code = "run-parked" if one.parked else "run-unheard"
        why = "are parked" if one.parked else f"have waited over {span(_UNHEARD)} for an event"
        yield _of(code, f"workflow {one.function}", f"Runs that {why}: {_most(one.number)}.", name=one.function)


def _conflicts(seen: Health) -> Iterator[HealthFinding]:
    for name, (conflicts, runs) in seen.conflicts.items():
        if conflicts >= _FEW_CONFLICTS and conflicts >= _CONFLICTING * runs:
            what = f"It conflicted {conflicts:,} times in {runs:,} runs: many calls write one row."
            yield _of("row-contended", f"function {name}", what)


def _retention(seen: Health) -> Iterator[HealthFinding]:
    if overdue := seen.statistics.overdue:
        yield _of("pruner-missing", "finished jobs", f"No pruner runs. Expired job statuses: {_most(overdue)}.")


# ----- the change feed and its readers


def _feed(seen: Health) -> Iterator[HealthFinding]:
    for _row, reader in seen.feed.readers:
        alert = lag_alert(reader, seen.feed.size, seen.now)
        if alert is not None:
            code = "reader-stopped" if alert.stopped else "reader-behind"
            behind, unread = span(reader.age(seen.now)), _most(reader.rows)
            what = f"It is {behind} behind. Unread changes, which the feed keeps: {unread}."
            severity: Severity | None = "critical" if alert.full else None
            yield _of(code, f"reader {reader.name}", what, severity=severity)
    if seen.feed.size >= FULL:
        yield _of("feed-large", "change feed", f"It takes {size_of(seen.feed.size)}, as it is not emptied.")
    oldest = seen.feed.oldest_transaction
    if oldest is not None and oldest >= _OPEN_LONG:
        what = f"A transaction has been open for {span(oldest)}. It delays readers of the feed, and vacuum."
        yield _of("transaction-old", "database", what)


def _interests(seen: Health) -> Iterator[HealthFinding]:
    for row in seen.interests:
        name, table = row.interest.name, row.interest.table
        if row.state != "ok":
            what = f"Changes of table {table} are not captured: {row.state}."
            yield _of("interest-broken", f"interest {name}", what)
        elif name not in seen.declared:
            what = f"Changes of table {table} are captured, and this program does not declare it."
            yield _of("interest-undeclared", f"interest {name}", what)


def _outboxes(seen: Health) -> Iterator[HealthFinding]:
    for one in seen.outboxes:
        where = f"outbox {one.name}"
        if one.halted:
            what = f"It waits for a message that failed. Messages to deliver: {_most(one.messages)}. {one.error or ''}"
            yield _of("outbox-halted", where, what.rstrip(), name=one.name)
        if one.parked:
            yield _of("outbox-parked", where, f"Failed messages that are parked: {_most(one.parked)}.", name=one.name)


def _searches(seen: Health) -> Iterator[HealthFinding]:
    for name, unread in seen.searches.items():
        if unread is None:
            yield _of("search-filling", f"search index {name}", "It is not filled yet.")
        elif unread > MOST_UNREAD:
            what = f"Unread changes: {_most(unread)}. A search reads at most {MOST_UNREAD:,} of them itself."
            yield _of("search-behind", f"search index {name}", what)


# ----- tables and the database


def _schema(seen: Health) -> Iterator[HealthFinding]:
    if isinstance(seen.plan, SchemaMismatch):
        yield _of("schema-mismatch", "schema", seen.plan.what)
        return
    if not seen.plan.empty:
        lacking = ", ".join(sorted(seen.plan.tables)) or "penstock's own tables"
        yield _of("schema-behind", "schema", f"The database lacks what the program declares in {lacking}.")
    for table, index, other in seen.plan.redundant:
        what = f"The columns of index {index.name} are the first ones of {other.name}, so each write pays twice."
        yield _of("index-redundant", f"table {table}", what)


def _tables(seen: Health) -> Iterator[HealthFinding]:
    for one in seen.statistics.tables:
        if not one.own and one.scans >= _SCANS and one.scanned >= _LONG_SCAN * one.scans:
            what = f"{one.scans:,} statements read the whole table, {one.scanned // one.scans:,} rows each."
            yield _of("index-missing", f"table {one.name}", what)
        if one.dead >= _DEAD and one.dead >= _DEAD_SHARE * one.live:
            what = f"{one.dead:,} dead rows lie among {one.live:,} live ones."
            yield _of("vacuum-needed", f"table {one.name}", what, name=one.name)
    for index in seen.statistics.unused:
        if index.size >= _UNUSED_SIZE:
            what = f"No query has used index {index.name} of {size_of(index.size)} since the server began to count."
            yield _of("index-unused", f"table {index.table}", what)


def _database(seen: Health) -> Iterator[HealthFinding]:
    found, wanted = seen.statistics, seen.max_connections + _SERVICES
    if (most := found.max_connections) is not None:
        if found.connections >= _CONNECTED * most:
            severity: Severity | None = "critical" if found.connections >= _NEARLY_ALL * most else None
            what = f"{found.connections:,} of {most:,} connections are open."
            yield _of("connections-few", "database", what, severity=severity)
        elif wanted > most:
            what = f"One process may open {wanted:,} connections, and the server permits {most:,}."
            yield _of("connections-few", "max_connections", what)
    if (size := found.log_size or 0) >= _LOG_SIZE:
        what = f"It has grown to {size_of(size)}: a program keeps a snapshot open."
        yield _of("log-long", "write-ahead log", what)
    if seen.replica == "away":
        yield _of("replica-behind", "replica", "It does not answer, so live queries run on the primary.")
    elif (seen.replica or 0) >= _REPLICA_BEHIND:
        yield _of("replica-behind", "replica", f"It is {size_of(seen.replica or 0)} behind the primary.")


def _clocks(seen: Health) -> Iterator[HealthFinding]:
    if abs(seen.offset) > _SKEW:
        way = "behind" if seen.offset > timedelta(0) else "ahead of"
        what = f"Its clock is {span(abs(seen.offset))} {way} the database's. Your own code and the logs show it."
        yield _of("clock-skew", "this machine", what)
    moved = [(f"lease of {one.holder}", one.started_at) for one in seen.leases]
    moved += [(f"reader {row.name}", row.moved_at) for row, _lag in seen.feed.readers]
    for where, at in moved:
        if at - seen.now > _SKEW:
            what = f"Its process wrote a time {span(at - seen.now)} in the future: its clock is ahead of this one."
            yield _of("clock-skew", where, what)


_RULES = (
    _leases, _workers, _work, _failures, _runs, _conflicts, _retention, _feed, _interests, _outboxes, _searches,
    _schema, _tables, _database, _clocks,
)  # fmt: skip
