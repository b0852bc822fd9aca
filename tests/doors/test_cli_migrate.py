"""`penstock migrate` as a step of a deploy: what the new version declares is captured before any of it runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from stage.outboxes import run_sql

from penstock import ActionCtx, App, Table
from penstock.testing import TestApp

if TYPE_CHECKING:
    from doors.cli_fixtures import Console

pytest_plugins = ("doors.cli_fixtures",)

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
WRITE = """insert into invoice_of_cli (id, creation_time, name) values ('{}', '2030-01-01 00:00:00Z', '{}')"""


class Invoice(Table, name="invoice_of_cli"):
    name: str


app = App()
heard: list[Any] = []


@app.outbox(Invoice, name="ledger", start="end", on=("insert", "delete"))
async def ledger(ctx: ActionCtx, invoice: Invoice) -> None:
    heard.append(invoice.name)


@app.outbox("news", name="news")
async def news(ctx: ActionCtx, payload: str) -> None:
    heard.append(payload)


@pytest.fixture
def invoices(console: Console, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Console:
    heard.clear()
    console.write("invoices.py", PROGRAM)
    monkeypatch.setenv("DATABASE_URL", database_url)
    return console


def test_what_is_written_after_it_is_captured_though_nothing_runs(invoices: Console, database_url: str) -> None:
    invoices.ok("migrate")
    first, second = (f"invoice_of_cli_01jd{'0' * 21}{number}" for number in (1, 2))
    send = "select penstock.send('news', '\"hi\"')"
    if database_url.startswith("sqlite"):
        send = "insert into penstock_send (topic, payload) values ('news', '\"hi\"')"
    asyncio.run(run_sql(database_url, WRITE.format(first, "a"), WRITE.format(second, "b"), send))
    asyncio.run(run_sql(database_url, f"delete from invoice_of_cli where id = '{first}'"))

    async def start() -> None:
        async with TestApp(app, database_url) as test:
            await test.relay.drain()

    asyncio.run(start())
    assert heard == ["a", "b", "a", "hi"]


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
    outboxes = invoices.ok("outbox", "--json").json["outboxes"]
    assert [(one["name"], one["source"]) for one in outboxes] == [("ledger", "invoice_of_cli"), ("news", "topic news")]
    assert [one["name"] for one in invoices.ok("tasks", "--json").json["tasks"]] == ["bill"]
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
        ("hours=1", "hours=2", ["changed: cron sweep"]),
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


def test_it_tells_of_triggers_that_it_mends(invoices: Console, database_url: str) -> None:
    invoices.ok("migrate")
    drop = "alter table invoice_of_cli disable trigger all"
    if database_url.startswith("sqlite"):
        drop = "drop trigger _penstock_change_1_insert"
    asyncio.run(run_sql(database_url, drop))
    plan = told(invoices.ok("migrate", "--plan").out)
    assert plan
    assert all(line.startswith("mended: triggers on table invoice_of_cli, for ") for line in plan)
    assert told(invoices.ok("migrate").out) == plan
    assert "there is nothing to do" in invoices.ok("migrate", "--plan").err
