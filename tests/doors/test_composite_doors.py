"""Keys of several columns at the doors: on the command line and over HTTP they are JSON arrays."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import pytest
from doors.board_fixtures import board
from doors.cli_fixtures import Console
from programs.admin import on
from stage.databases import ORDERS, TENANTS, Order, Tenant, prepare

from penstock import App, Id, MutationCtx, QueryCtx, TaskCtx, TaskFilter, asgi_app
from penstock.cli import data as tables
from penstock.testing import TestApp

ROWS = [(tenant, number) for tenant in (7, 8, 9) for number in ("a", 'b"b', "ů,")]

app = App()


@app.reactive_task(Order, name="ship", watch=("amount",), retry=None)
async def ship(ctx: TaskCtx[Order]) -> None:
    raise ConnectionError(f"no way for {ctx.doc_id}")


@app.query
async def order_of(ctx: QueryCtx, order: Id[Order]) -> Order | None:
    return await ctx.db.get(Order, order)


@app.query
async def name_of(ctx: QueryCtx, tenant: Id[Tenant]) -> str | None:
    found = await ctx.db.get(Tenant, tenant)
    return None if found is None else found.name


@app.mutation
async def add(ctx: MutationCtx, tenant: int, number: str) -> Id[Order]:
    return await ctx.db.insert(Order(tenant=tenant, number=number))


@pytest.fixture
def orders(shell: Console, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Console:
    monkeypatch.setenv("PENSTOCK_APP", f"{__name__}:app")
    values = ", ".join(f"({tenant}, '{number}', 1, null)" for tenant, number in reversed(ROWS))
    asyncio.run(prepare(database_url, ORDERS, TENANTS, f"insert into orders values {values}"))
    shell.ok("migrate")
    return shell


def test_rows_are_shown_exported_and_imported_in_the_order_of_the_key(
    orders: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = orders.ok("data", "orders", "--json", "--order", "asc").json
    assert [(row["tenant"], row["number"]) for row in shown] == ROWS
    exported = ""
    for piece in (1, 4, 9):
        monkeypatch.setattr(tables, "_PIECE", piece)
        exported = orders.ok("export", "orders", "-o", "-").out
        assert [(row["tenant"], row["number"]) for row in map(json.loads, exported.splitlines())] == ROWS, piece
    orders.ok("import", "orders", "-", "--replace", "--yes", stdin=exported.encode())
    assert orders.ok("export", "orders", "-o", "-").out == exported
    twice = orders("import", "orders", "-", "--append", stdin=exported.splitlines()[4].encode())
    assert twice.code != 0
    assert "line 1" in twice.err


def test_rows_of_tasks_are_called_by_arrays(orders: Console, database_url: str) -> None:
    on(app, database_url, lambda test: test.run_until_idle(raise_errors=False))
    one = orders.ok("tasks", "records", "ship", "--limit", "1", "--order", "key", "--json").json
    (first,) = one["records"]
    key = json.dumps(first["key"])
    assert tuple(first["key"]) in ROWS
    assert key in orders.ok("tasks", "records", "ship", "--key", key).out
    assert orders.ok("tasks", "show", "ship", key, "--json").json["key"] == first["key"]
    assert "no way for (9, 'ů,')" in orders.ok("tasks", "explain", "ship", '[9, "ů,"]').out
    assert "1 row retried" in orders.ok("tasks", "retry", "ship", "--key", '[8, "b\\"b"]').err
    for wrong in ("8", '[8, "a"', '["x", "a"]'):
        refused = orders("tasks", "show", "ship", wrong)
        assert refused.code != 0, wrong
        assert "key" in refused.err


async def test_ids_travel_as_arrays_over_http(database_url: str) -> None:
    await prepare(database_url, ORDERS, TENANTS, "insert into tenants values (7, 'Ada')")
    async with TestApp(app, database_url) as backend:
        transport = httpx.ASGITransport(asgi_app(app, backend=backend))
        async with httpx.AsyncClient(base_url="http://shop", transport=transport) as http:

            async def call(kind: str, path: str, **args: Any) -> Any:
                sent = {"path": f"{__name__}:{path}", "args": args, "format": "json"}
                return (await http.post(f"/api/{kind}", json=sent)).json()

            assert (await call("mutation", "add", tenant=7, number="a"))["value"] == [7, "a"]
            found = (await call("query", "order_of", order=[7, "a"]))["value"]
            assert found["_id"] == [7, "a"]
            assert (await call("query", "order_of", order=found["_id"]))["value"] == found
            wrong: Any
            for wrong in (7, [7], [7, 7], {}):
                assert (await call("query", "order_of", order=wrong))["status"] == "error"
            rest = f"/rest/{__name__.replace('.', '/')}/name_of?tenant="
            assert [(await http.get(rest + tenant)).json() for tenant in ("7", "8")] == ["Ada", None]
            for malformed in ("x", "7%00"):
                refused = await http.get(rest + malformed)
                assert (refused.status_code, refused.json()["code"]) == (422, "ArgumentsInvalid"), refused.text
                assert refused.json()["message"].endswith("is not an id of table tenants.")


@pytest.mark.both_stores
async def test_checked_rows_of_a_task_are_changed_alone_whatever_their_keys(database_url: str) -> None:
    keys = [(7, "a b"), (7, "%20"), (8, 'b"b'), (9, "ů,+&")]
    values = ", ".join(f"({tenant}, '{number}', 1, null)" for tenant, number in keys)
    await prepare(database_url, ORDERS, TENANTS)
    async with board(app, database_url) as one:
        await prepare(database_url, f"insert into orders values {values}")
        await one.test.run_until_idle(raise_errors=False)
        where = {"task": "ship", "state": "failed"}
        page = (await one.here.get("/tasks/task", params=where)).text
        boxes = re.findall(r'name="chosen" value="([^"]+)"', page)
        assert len(boxes) == len(keys)
        told = await one.here.post("/tasks/task", params=where, data={"act": "retry chosen", "chosen": boxes[:3]})
        assert told.status_code == 303
        assert "3 rows retried, of 3." in await one.get(told.headers["location"].removeprefix("/dashboard"))
        counts = await app.tasks.count(one.test, TaskFilter(task="ship"))
        assert (counts["pending"], counts["failed"]) == (3, 1)
        chosen = " ".join(boxes)
        assert await one.act("/tasks/task", "skip chosen", where, chosen=chosen) == "Skip 4 rows?"
        assert await one.act("/tasks/task", "cancel chosen", where, chosen=chosen, sure="yes") == (
            "3 rows asked to be canceled, of 4."
        )
        assert await one.act("/tasks/task", "skip chosen", where, sure="yes") == "Not done: Fill in chosen."
