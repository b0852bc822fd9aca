"""Two programs with a schema each on one database, from the command line: each sees what is its own."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from stage.feed import opened
from stage.outboxes import run_sql
from stage.server import server

from penstock.clock import SystemClock

if TYPE_CHECKING:
    import pytest
    from doors.cli_fixtures import Console

pytest_plugins = ("doors.cli_fixtures",)


def test_commands_tell_of_the_programs_own_schema(
    console: Console, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", empty_database_url)
    postgres = empty_database_url.startswith("postgres")
    console.write_bookings(("app = App()", 'app = App(schema="shop")\nmail = app.workpool("mail")'))
    console.ok("migrate")
    plan = console.ok("--schema", "erp", "migrate", "--plan", "--all").out
    assert ('create schema if not exists "erp"' in plan, '"shop"' in plan, "shop_" in plan) == (postgres, False, False)
    monkeypatch.setenv("PENSTOCK_SCHEMA", "erp")
    assert console("jobs").code == 0, "the argument of App counts more"
    assert console("jobs", "--schema", "erp").code == 1, "its tables are not made yet"
    console.ok("migrate", "--schema", "erp")
    named = console.ok("config", "--schema", "erp", "--json").json["schema"]
    assert named == {"value": "erp", "source": "--schema"}
    assert "schema must be" in console("migrate", "--schema", "public").err

    console.ok("run", "bookings:book", "customer=Ada", "phone=1")
    enqueue = (
        "select \"erp\".enqueue('mail', 'bookings:refuse')"
        if postgres
        else ("insert into erp_enqueue (pool, function) values ('mail', 'bookings:refuse')")
    )
    asyncio.run(run_sql(empty_database_url, enqueue))
    seen = [
        [job["function"] for job in console.ok("jobs", *where, "--json").json["jobs"]]
        for where in ((), ("--schema", "erp"))
    ]
    assert seen == [["bookings:remind"], ["bookings:refuse"]]

    async def lose_a_lease() -> None:
        async with opened(empty_database_url, schema="erp") as store:
            past = SystemClock().now() - timedelta(hours=1)
            await store.leases.take("host:7", timedelta(seconds=30), past)

    asyncio.run(lose_a_lease())
    assert console.ok("doctor", "--json").json == {"findings": []}
    found = console("doctor", "--schema", "erp", "--json").json["findings"]
    assert "lease-expired" in {one["code"] for one in found}


def test_a_dump_of_a_schema_holds_what_a_program_needs(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    with server() as own:
        monkeypatch.setenv("DATABASE_URL", own.url)
        console.write_bookings(("app = App()", 'app = App(schema="shop")'), (", live=False", ""))
        console.ok("migrate")
        console.ok("migrate", "--schema", "erp")
        console.ok("run", "bookings:book", "customer=Ada", "phone=1")
        dump = own.program("pg_dump", "--dbname", own.url, "--clean", "--schema=shop", "--schema=public")
        asyncio.run(run_sql(own.url, "drop schema shop cascade", "drop table booking"))
        own.program("psql", "--dbname", own.url, "--quiet", given=dump)
        assert console.ok("doctor", "--json").json == {"findings": []}
        assert "nothing to do" in console.ok("migrate").err
        (job,) = console.ok("jobs", "--json").json["jobs"]
        assert job["function"] == "bookings:remind"
        console.ok("run", "bookings:book", "customer=Eve", "phone=2")
        assert console.ok("--schema", "erp", "jobs", "--json").json["jobs"] == []
