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


def test_it_makes_known_what_a_program_declares_and_again_changes_nothing(invoices: Console, database_url: str) -> None:
    planned = invoices.ok("migrate", "--plan", "--json").json
    assert not planned["applied"]
    assert invoices.ok("migrate", "--json").json["applied"]
    for _ in range(2):
        outboxes = invoices.ok("outbox", "--json").json["outboxes"]
        assert [(one["name"], one["source"]) for one in outboxes] == [
            ("ledger", "invoice_of_cli"), ("news", "topic news")
        ]  # fmt: skip
        assert [one["name"] for one in invoices.ok("tasks", "--json").json["tasks"]] == ["bill"]
        assert "there was nothing to do" in invoices.ok("migrate").err


def test_a_plan_makes_nothing_known(invoices: Console) -> None:
    invoices.ok("migrate", "--plan")
    assert invoices.ok("outbox", "--json").json["outboxes"] == []


def test_an_outbox_that_cannot_be_is_refused(invoices: Console) -> None:
    invoices.write("invoices.py", PROGRAM.replace('name="ledger", start="end"', 'name="x", order_by="nothing"'))
    assert "no field 'nothing'" in invoices("migrate").err
