"""What the doctor finds: each finding is staged in the database, or as what was read there."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from docs.test_docs_commands import parse
from stage.feed import write

from penstock import ActionCtx, App, Index, Message, MutationCtx, Retry, Table, TaskCtx
from penstock.api.health import KINDS, TRIED, Health, HealthFinding, findings, look
from penstock.changes.interest import Interest
from penstock.changes.position import BEGINNING
from penstock.errors import SchemaMismatch
from penstock.jobs.job import DEFAULT_POOL
from penstock.observe.logbook import Numbers
from penstock.store.nouns.jobs import Room
from penstock.store.nouns.leases import LeaseRow
from penstock.store.nouns.pools import Backlog
from penstock.store.nouns.statistics import Statistics, TableUse, UnusedIndex
from penstock.store.push.migrate import Plan
from penstock.testing import TestApp

MINUTE = timedelta(minutes=1)
FITTING = Plan((), (), ())


class Van(Table, name="van_of_health", live=False):
    name: str


app = App(tables=[Van])
sms = app.workpool("sms", max_parallelism=2)


class Parcel(Table, name="parcel_of_health"):
    name: str
    city: str = "Brno"

    by_city = Index("city")
    by_city_and_name = Index("city", "name")


@app.internal_action
async def look_around(ctx: ActionCtx) -> None: ...


@app.internal_action
async def send(ctx: ActionCtx) -> None:
    raise ConnectionError("no provider")


@app.mutation
async def post(ctx: MutationCtx, jobs: int = 0) -> None:
    await ctx.db.insert(Parcel(name="a"))
    await ctx.scheduler.run_after(timedelta(0), look_around)
    for _ in range(jobs):
        await sms.enqueue(ctx, send)


@app.outbox(Parcel, name="ship", retry=Retry(max_attempts=1))
async def ship(ctx: ActionCtx, message: Message[Parcel]) -> None:
    raise ConnectionError("no van")


@app.outbox(Parcel, name="bill", on_failure="park", retry=Retry(max_attempts=1))
async def bill(ctx: ActionCtx, message: Message[Parcel]) -> None:
    raise ConnectionError("no ledger")


@app.reactive_task(Parcel, name="weigh", retry=Retry(max_attempts=1))
async def weigh(ctx: TaskCtx[Parcel]) -> None:
    raise ConnectionError("no scale")


timetable = App()


@timetable.cron(timedelta(hours=1), name="often")
async def often(ctx: ActionCtx) -> None: ...


@timetable.cron(timedelta(hours=1), name="patient", overlap="wait")
async def patient(ctx: ActionCtx) -> None: ...


async def seen(backend: TestApp) -> Health:
    return await look(backend.engine, app.definitions(), app.work(), app.outboxes)


def by_code(found: list[HealthFinding]) -> dict[str, HealthFinding]:
    assert all(one.what and one.fix and one.where for one in found)
    return {one.code: one for one in found}


async def test_what_stands_still_is_found_in_the_database(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        store, clock = backend.engine.store, backend.clock
        (calm,) = await backend.health()  # the app declares an index twice
        assert (calm.code, calm.severity, calm.where) == ("index-redundant", "notice", "table parcel_of_health")

        await backend.run_mutation(post, jobs=12)
        lost = await store.leases.take("host:7", timedelta(seconds=30), clock.now())
        await store.changes.register("old", clock.now(), BEGINNING)
        idle = await store.leases.take("host:6", timedelta(seconds=30), clock.now())
        await store.jobs.claim(lost, 1, [Room(DEFAULT_POOL, 1)], clock.now())
        clock.advance(2 * MINUTE)
        found = by_code(await backend.health())
        assert found["worker-missing"].severity == "critical"
        leases = {one.where: one for one in await backend.health() if one.code == "lease-expired"}
        assert leases[f"lease {idle}"].severity == "warning"
        assert leases[f"lease {lost}"].severity == "critical"
        assert "host:7 ran out 90.0 s ago. Jobs that wait to be rescued: 1." in leases[f"lease {lost}"].what
        old = next(one for one in await backend.health() if one.where == "reader old")
        assert (old.code, old.severity) == ("reader-stopped", "critical")
        assert old.command == "penstock changes"
        await store.changes.forget("old")

        await backend.run_until_idle(raise_errors=False)
        await backend.relay.drain()
        found = by_code(await backend.health())
        rising = {one.where: one for one in await backend.health() if one.code == "failures-rising"}
        assert rising.keys() == {"pool sms", f"function {send.name}"}
        told = rising["pool sms"]
        assert told.what == "12 of 12 attempts at jobs failed in the last 10 min, after 0 in as long before."
        assert told.command == "penstock jobs --pool sms"
        assert found["outbox-halted"].where == "outbox ship"
        assert "no van" in found["outbox-halted"].what
        assert (found["outbox-parked"].where, found["outbox-parked"].severity) == ("outbox bill", "warning")
        assert found["task-failed"].where == "task weigh"

        clock.advance(15 * MINUTE)
        assert "failures-rising" not in by_code(await backend.health())
        clock.advance(timedelta(days=2, hours=2))
        assert "Expired job statuses: 12." in by_code(await backend.health())["pruner-missing"].what


async def test_what_somebody_has_changed_is_found_in_the_database(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        store, clock = backend.engine.store, backend.clock
        stray = Interest(name="stray", table="parcel_of_health", key=["id"])
        torn = Interest(name="torn", table="van_of_health", key=["id"])
        _, number = await store.interests.declare([stray, torn], clock.now())
        on = " on van_of_health" if store.dialect.schemas else ""
        await write(store, f"drop trigger _penstock_change_{number}_update{on}", "drop index parcel_of_health_by_city")
        await store.leases.take("host:8", MINUTE, clock.now() + timedelta(seconds=5))
        found = by_code(await backend.health())
        broken, undeclared = found["interest-broken"], found["interest-undeclared"]
        assert (broken.where, broken.severity) == ("interest torn", "critical")
        assert (undeclared.where, undeclared.severity) == ("interest stray", "notice")
        assert found["schema-behind"].command == "penstock migrate --plan"
        assert "parcel_of_health" in found["schema-behind"].what
        assert (found["clock-skew"].where, "5.0 s" in found["clock-skew"].what) == ("lease of host:8", True)

        statistics = (await seen(backend)).statistics
        assert statistics.size > 0
        if store.dialect.schemas:
            assert {"public.parcel_of_health", "penstock.ready_job"} <= {one.name for one in statistics.tables}
            assert {one.name for one in statistics.unused} == {"parcel_of_health_by_city_and_name"}
            assert 0 < statistics.connections < (statistics.max_connections or 0)
        else:
            assert (statistics.log_size or 0) > 0


async def test_a_cron_that_no_scheduler_starts_is_found(database_url: str) -> None:
    async with TestApp(timetable, database_url) as backend:

        async def late() -> list[str]:
            return [one.where for one in await backend.health() if one.code == "cron-late"]

        backend.clock.advance(60 * MINUTE)
        assert await late() == [], "a scheduler may be about to look"
        backend.clock.advance(MINUTE)
        assert await late() == ["cron often", "cron patient"]
        await timetable.crons.pause(backend, "often")
        await timetable.crons.run(backend, "patient")
        backend.clock.advance(61 * MINUTE)
        assert await late() == [], "one is paused, and one waits for its run"
        await timetable.crons.resume(backend, "often")
        await backend.run_until_idle()
        backend.clock.advance(61 * MINUTE)
        assert await late() == ["cron often", "cron patient"]
        await backend.cron_scheduler.tick()
        assert await late() == []


async def test_what_a_server_counts_is_judged(sqlite_url: str) -> None:
    async with TestApp(app, sqlite_url) as backend:
        calm, book = await seen(backend), backend.engine.journal.book
        book.add("function shop:count", "conflict", 300)
        book.add("function shop:count", "success", 900)
        assert "300 times in 900 runs" in by_code(await backend.health())["row-contended"].what

    def of(**changes: Any) -> dict[str, HealthFinding]:
        return by_code(findings(replace(calm, plan=FITTING, **changes)))

    assert not of()
    table = TableUse("public.parcel", dead=0, live=50_000, scans=200, scanned=10_000_000)
    own = replace(table, name="penstock.ready_job", own=True)
    unused = UnusedIndex("public.parcel", "parcel_by_city", 20 * 2**20)
    waits = Backlog("sms", 2, granted=0, ready=5, oldest=calm.now - 11 * MINUTE, scheduled=0)
    worker = [LeaseRow(1, "host:1", calm.now, calm.now + MINUTE, running=0)]
    runs: Numbers = {"function shop:count": {"success": 900.0}, "function shop:other": {"success": 9000.0}}
    hot = {name: found | {"conflict": 300.0} for name, found in runs.items()}
    for fine in (
        {"statistics": Statistics(0, [own, replace(table, scans=99), replace(table, scanned=100_000)])},
        {"statistics": Statistics(0, unused=[replace(unused, size=8192)])},
        {"replica": 0},
        {"pools": [replace(waits, oldest=calm.now - 9 * MINUTE)], "leases": worker},
    ):
        assert not of(**fine), fine
    found: list[tuple[str, dict[str, Any], str]] = [
        ("index-missing", {"statistics": Statistics(0, [table])}, "table public.parcel"),
        ("vacuum-needed", {"statistics": Statistics(0, [replace(own, dead=30_000)])}, "vacuum (analyze) penstock.re"),
        ("index-unused", {"statistics": Statistics(0, unused=[unused])}, "parcel_by_city of 20 MiB"),
        ("connections-few", {"statistics": Statistics(0, connections=97, max_connections=97)}, "critical"),
        ("connections-few", {"statistics": Statistics(0, connections=82, max_connections=97)}, "warning"),
        ("connections-few", {"statistics": Statistics(0, connections=3, max_connections=22)}, "27 connections"),
        ("log-long", {"statistics": Statistics(0, log_size=200 * 2**20)}, "200 MiB"),
        ("replica-behind", {"replica": "away"}, "does not answer"),
        ("replica-behind", {"replica": 64 * 2**20}, "64 MiB behind"),
        ("pool-backlog", {"pools": [waits], "leases": worker}, "pool sms"),
        ("pool-paused", {"pools": [replace(waits, max_parallelism=0)], "leases": worker}, "penstock resume sms"),
        ("clock-skew", {"offset": timedelta(seconds=-3)}, "this machine"),
        ("row-contended", {"sums": [hot] * 5}, "function shop:count"),
        ("feed-large", {"feed": replace(calm.feed, size=2 * 2**30)}, "2.0 GiB"),
        ("transaction-old", {"feed": replace(calm.feed, oldest_transaction=20 * MINUTE)}, "20 min"),
    ]
    for code, changes, words in found:
        one = of(**changes)[code]
        assert words in f"{one.severity} {one.where} {one.what} {one.command}", code
    worst = findings(replace(calm, replica="away", plan=SchemaMismatch("Rows would be lost.")))
    assert [(one.code, one.severity) for one in worst] == [
        ("schema-mismatch", "critical"), ("replica-behind", "warning"),
    ]  # fmt: skip


async def test_failures_are_found_while_they_rise_and_while_they_stay(sqlite_url: str) -> None:
    async with TestApp(app, sqlite_url) as backend:
        calm = replace(await seen(backend), plan=FITTING)

    def of(*spans: tuple[float, float], where: str = "pool sms", bad: str = "failed") -> list[HealthFinding]:
        """Failed and other attempts: in ten minutes, an hour, a day and a week, and in twenty minutes."""
        of_function = {"error"} if bad == "fault" else set()
        sums = [
            {where: {bad: failed, "success": done, "-4": 9.0, **dict.fromkeys(of_function, failed)}}
            for failed, done in spans
        ]
        return findings(replace(calm, sums=sums))

    def codes(found: list[HealthFinding]) -> list[str]:
        return [f"{one.code} {one.where}" for one in found]

    many = ((12, 900), (72, 5400), (999, 90_000), (999, 90_000))
    assert codes(of(*many, (24, 1800))) == ["failures-steady pool sms"], "few of all, and lost work all the same"
    assert codes(of(*many, (12, 1800))) == ["failures-rising pool sms"]
    assert of(*many, (24, 1800), where="function x", bad="fault") == []
    assert of((9, 900), (54, 5400), (54, 5400), (54, 5400), (18, 1800)) == []
    hourly = (0, 0), (1, 0), (24, 0), (168, 0), (0, 0)
    once = (0, 0), (0, 0), (2, 0), (2, 0), (0, 0)
    mended = (0, 20), (30, 20), (30, 20), (30, 20), (5, 20)
    for noun in TRIED:
        bad = "fault" if noun == "function" else "failed"
        wanted = [f"failures-steady {noun} x y"]
        found = of(*hourly, where=f"{noun} x y", bad=bad)
        assert codes(found) == codes(of(*[(3, 9)] * 4, (6, 18), where=f"{noun} x y", bad=bad)) == wanted
        assert ("24 of 24" in found[0].what, "'x y'" in found[0].command) == (True, noun != "function")
        assert of(*once, where=f"{noun} x", bad=bad) == of(*mended, where=f"{noun} x", bad=bad) == []
    assert codes(of(*hourly, where="task x", bad="retrying")) == ["failures-steady task x"]


def test_the_page_names_each_finding_and_each_command_exists() -> None:
    page = (Path(__file__).parents[2] / "docs" / "observability.md").read_text("utf-8")
    rows = re.findall(r"^\| (`[a-z]+-[a-z]+`.*?) \| \w+", page, re.MULTILINE)
    assert {*KINDS, "database-away"} == {code for row in rows for code in re.findall(r"[a-z]+-[a-z]+", row)}
    for command in (*(command for _, _, command in KINDS.values()), *(command for _, command in TRIED.values())):
        if command.startswith("penstock "):
            parse(command.format(name="x"))
