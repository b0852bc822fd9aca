"""Several programs on one database, from the command line: in a schema each, and in one."""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta

import pytest
from doors.cli_fixtures import Console
from stage.databases import run_sql
from stage.feed import opened
from stage.postgres import server

from penstock.clock import SystemClock

# ----- a schema each


def test_commands_tell_of_the_programs_own_schema(
    console: Console, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", empty_database_url)
    postgres = empty_database_url.startswith("postgres")
    console.write_bookings(("app = App()", 'app = App(schema="shop")\nmail = app.workpool("mail")'))
    console.ok("migrate")
    monkeypatch.setenv("PENSTOCK_SCHEMA", "erp")
    assert console("jobs").code == 0, "the argument of App counts more"
    assert console("jobs", "--schema", "erp").code == 1, "its tables are not made yet"
    console.ok("migrate", "--schema", "erp")
    named = console.ok("config", "--schema", "erp", "--json").json["schema"]
    assert named == {"value": "erp", "source": "--schema"}
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


@pytest.mark.long  # it needs a server of its own
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


# ----- one schema

PROGRAM = """
from penstock import ActionCtx, App, MutationCtx, Retry

app = App(name="NAME", lease=2.0)
mail = app.workpool("mail", max_parallelism=LIMIT, default_retry=Retry(max_attempts=9, initial_backoff=0.1))


@app.internal_action
async def send(ctx: ActionCtx) -> None:
    with open("sent", "a") as sent:
        sent.write("NAME")


@app.mutation
async def order(ctx: MutationCtx) -> None:
    await mail.with_options(retry=True).enqueue(ctx, send)


@app.cron("0 0 1 1 *", name="CRON")
async def yearly(ctx: MutationCtx) -> None: ...
"""


@pytest.fixture
def programs(shell: Console) -> Console:
    """Two programs whose functions have the same names, each in a folder of its own."""
    for name in ("shop", "erp"):
        write(shell, name)
    return shell


def write(console: Console, folder: str, *, name: str = "", limit: int = 3, cron: str = "") -> None:
    text = PROGRAM.replace("NAME", name or folder).replace("LIMIT", str(limit)).replace("CRON", cron or folder)
    console.write(f"{folder}/main.py", text)


def test_a_clash_changes_nothing_and_a_renamed_program_goes_on(programs: Console) -> None:
    for name in ("shop", "erp"):
        programs.ok("--app", f"{name}/main.py", "migrate")
    before = programs.ok("--app", "shop/main.py", "pools", "--json").json
    write(programs, "crm", limit=7, cron="shop")
    for words in (("migrate",), ("worker",)):
        refused = programs("--app", "crm/main.py", *words)
        assert refused.code == 1
        assert "'mail' is declared otherwise by program 'erp'" in refused.err
        assert "cron 'shop' is declared by program 'shop'" in refused.err
        assert "penstock forget" in refused.err
    assert programs.ok("--app", "shop/main.py", "pools", "--json").json == before
    assert programs("--app", "erp/main.py", "crons", "remove", "shop").code == 1, "it is another program's"

    programs.ok("--app", "erp/main.py", "run", "main:order")
    write(programs, "erp", name="books", cron="erp")
    assert programs("--app", "erp/main.py", "migrate").code == 1, "the cron is still one of the old name"
    assert "of erp are forgotten" in programs.ok("--app", "erp/main.py", "forget", "erp").err
    programs.ok("--app", "erp/main.py", "migrate")
    (job,) = programs.ok("jobs", "--app", "erp/main.py", "--json").json["jobs"]
    with programs.start("--app", "erp/main.py", "worker") as worker:
        programs.ok("jobs", "wait", job["id"], "--app", "erp/main.py", "--timeout", "60s")
        worker.tell(signal.SIGTERM)
        assert worker.end() == 0
    assert (programs.folder / "sent").read_text() == "books"
