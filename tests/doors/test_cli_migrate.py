"""`penstock migrate` as a step of a deploy: what it makes known and captures, and what its plan promises."""

from __future__ import annotations

import asyncio

import pytest
from doors.cli_fixtures import Console
from stage.databases import run_sql

from penstock.store.push import migrate

PROGRAM = """
from penstock import ActionCtx, App, Table, TaskCtx

app = App()


class Invoice(Table, name="invoice_of_cli"):
    name: str


@app.outbox(Invoice, name="ledger", start="end", on=("insert", "delete"))
async def ledger(ctx: ActionCtx, invoice: Invoice) -> None: ...


@app.outbox("news", name="news")
async def news(ctx: ActionCtx, payload: str) -> None: ...


@app.reactive_task(Invoice, name="bill", cleanup="never")
async def bill(ctx: TaskCtx[Invoice]) -> None: ...
"""


@pytest.fixture
def invoices(shell: Console) -> Console:
    shell.write("invoices.py", PROGRAM)
    return shell


MORE = """
from datetime import timedelta

from penstock import MutationCtx

work = app.workpool("work", max_parallelism=2)


@app.cron(timedelta(hours=1), name="sweep")
@app.internal_mutation
async def sweep(ctx: MutationCtx) -> None: ...
"""
TOLD = [
    "new: pool work",
    "new: cron sweep",
    "new: task bill",
    "new: triggers on table invoice_of_cli, for task:bill",
    "new: outbox ledger",
    "new: triggers on table invoice_of_cli, for outbox:ledger",
    "new: outbox news",
]


def told(lines: str) -> list[str]:
    """What a report or a plan says beside SQL."""
    found = [line.removeprefix("-- ") for line in lines.splitlines()]
    return [line for line in found if line.startswith(("new: ", "changed: ", "mended: "))]


def test_it_tells_what_it_makes_known_and_which_tables_get_triggers(invoices: Console) -> None:
    invoices.write("invoices.py", PROGRAM + MORE)
    assert told(invoices.ok("migrate", "--plan").out) == TOLD, "though penstock's own tables may not be there"
    invoices.write("invoices.py", PROGRAM.partition("@app")[0])
    invoices.ok("migrate")
    invoices.write("invoices.py", PROGRAM + MORE)
    plan = invoices.ok("migrate", "--plan")
    assert (told(plan.out), "nothing to do" in plan.err) == (TOLD, False)
    data = invoices.ok("migrate", "--plan", "--json").json
    assert data["declared"][0] == {"noun": "pool", "name": "work", "change": "new"}
    assert data["captured"][1] == {"table": "invoice_of_cli", "for": "outbox:ledger", "change": "new"}
    assert invoices.ok("outbox", "--json").json["outboxes"] == [], "a plan makes nothing known"
    assert told(invoices.ok("migrate").out) == TOLD
    captured = {one["name"]: one["state"] for one in invoices.ok("changes", "--json").json["interests"]}
    assert captured.items() > {"task:bill": "ok", "outbox:ledger": "ok"}.items(), "though nothing runs"
    assert "there is nothing to do" in invoices.ok("migrate", "--plan").err
    again = invoices.ok("migrate")
    assert (again.out, "there was nothing to do" in again.err) == ("", True)


def test_it_tells_what_is_declared_otherwise_than_before(invoices: Console) -> None:
    program = PROGRAM + MORE
    invoices.write("invoices.py", PROGRAM.replace('name="ledger", start="end"', 'name="x", order_by="nothing"'))
    assert "no field 'nothing'" in invoices("migrate").err
    invoices.write("invoices.py", program)
    invoices.ok("migrate")
    triggers = "changed: triggers on table invoice_of_cli, for outbox:ledger"
    for old, new, changes in (
        ("max_parallelism=2", "max_parallelism=2, ageing=timedelta(minutes=1)", ["changed: pool work"]),
        ('"insert", "delete"', '"insert",', ["changed: outbox ledger", triggers]),
        ('name="bill", ', 'name="bill", version=2, ', ["changed: task bill"]),
        ('start="end", ', 'start="end", version=2, ', ["changed: outbox ledger"]),
    ):
        assert old in program
        program = program.replace(old, new)
        invoices.write("invoices.py", program)
        assert told(invoices.ok("migrate", "--plan").out) == changes
        assert told(invoices.ok("migrate").out) == changes
    invoices.write("invoices.py", program.replace("version=2, ", "").replace('"insert",', '"insert", "delete"'))
    assert told(invoices.ok("migrate", "--plan").out) == [], "a later release has declared it"


# ----- plans

MORE_NEWS = """

@app.outbox(Invoice, name="more", start="end")
async def more(ctx: ActionCtx, invoice: Invoice) -> None: ...
"""
VIEWED = """

class Viewed(Table, source="viewed", key="id", managed=False):
    id: str
    name: str


class Extra(Table, name="extra_of_plan"):
    name: str

"""
BY_OUTBOX = """
@app.outbox(Viewed, name="views", start="end")
async def views(ctx: ActionCtx, viewed: Viewed) -> None: ...
"""
BY_TASK = """
@app.reactive_task(Viewed, name="views", cleanup="never")
async def views(ctx: TaskCtx[Viewed]) -> None: ...
"""
BASE = "create table base_of_view (id varchar primary key, creation_time varchar, name varchar)"
VIEW = "create view viewed as select id, creation_time, name from base_of_view"


def test_what_cannot_be_captured_is_refused_before_any_table_is_made(
    console: Console, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a database without penstock's own tables."""
    monkeypatch.setenv("DATABASE_URL", empty_database_url)
    asyncio.run(run_sql(empty_database_url, BASE, VIEW))
    for declared in (BY_OUTBOX, BY_TASK):
        console.write("program.py", PROGRAM + VIEWED + declared)
        planned, done = console("migrate", "--plan"), console("migrate")
        assert "viewed is a view, whose changes cannot be captured" in planned.err
        assert (planned.code, done.code, done.err) == (1, 1, planned.err)
    declared = VIEWED.replace('"viewed"', '"base_of_view"') + BY_OUTBOX.replace('start="end"', 'order_by="name"')
    console.write("program.py", PROGRAM + declared)
    assert "may be NULL" in console("migrate").err
    console.write("program.py", PROGRAM + VIEWED)
    assert "create table extra_of_plan" in console.ok("migrate", "--plan").out.replace('"', "").lower()


def later(monkeypatch: pytest.MonkeyPatch, sql: str) -> None:
    """Have a later release of penstock run, which brings one migration more."""
    shipped = migrate.load_migrations
    monkeypatch.setattr(migrate, "load_migrations", lambda store: [*shipped(store), ("9999_later", sql)])


def test_what_cannot_be_read_before_a_migration_is_not_known(
    invoices: Console, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoices.ok("migrate")
    table = "penstock_pool" if database_url.startswith("sqlite") else "penstock.pool"
    older = f"{table.partition('.')[0]}.older_pool" if "." in table else "older_pool"
    asyncio.run(run_sql(database_url, f"alter table {table} rename to older_pool"))
    later(monkeypatch, f"alter table {older} rename to {table.rpartition('.')[2]};")
    assert "unknown until penstock's own tables are up to date" in invoices.ok("migrate", "--plan").out
    assert "applied penstock's own 9999_later" in invoices.ok("migrate").out


def test_beside_a_pending_migration_only_what_is_new_is_told(
    invoices: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoices.ok("migrate")
    later(monkeypatch, "create table later_of_plan (id integer primary key);")
    invoices.write("invoices.py", PROGRAM + MORE_NEWS)
    plan = invoices.ok("migrate", "--plan", "--json").json
    assert plan["migrations"] == ["9999_later"]
    assert [one["name"] for one in plan["declared"]] == ["more"]
    assert [one["for"] for one in plan["captured"]] == ["outbox:more"]
    assert invoices.ok("migrate", "--json").json == {**plan, "applied": True}
