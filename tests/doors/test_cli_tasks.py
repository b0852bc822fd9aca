"""The commands about reactive tasks, and the metrics of tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock import App, MutationCtx, MutationTaskCtx, Table, TaskCtx, TaskFilter, asgi_app
from penstock.services.planner.planner import Planner
from penstock.testing import TestApp

if TYPE_CHECKING:
    from doors.cli_fixtures import Console

pytest_plugins = ("doors.cli_fixtures",)

PROGRAM = """
from pathlib import Path

from penstock import ActionCtx, App, MutationCtx, Table, TaskCtx, TaskFilter

app = App()


class Order(Table):
    name: str
    amount: int = 1


@app.mutation
async def put(ctx: MutationCtx, names: list[str]) -> list[str]:
    return [await ctx.db.insert(Order(name=name)) for name in names]


@app.reactive_task(Order, filter=lambda order: order.amount > 0, watch=("amount",), retry=None)
async def ship(ctx: TaskCtx[Order]) -> None:
    order = await ctx.get_document()
    if not Path("open").exists() and order.name != "easy":
        raise ConnectionError(f"no way for {order.name}")


@app.action
async def idle(ctx: ActionCtx) -> bool:
    counts = await app.tasks.count(ctx, TaskFilter(task="ship"))
    return bool(counts) and not counts.keys() & {"pending", "running"}
"""


@pytest.fixture
def shop(console: Console, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Console:
    console.write("shop.py", PROGRAM)
    monkeypatch.setenv("DATABASE_URL", database_url)
    console.ok("migrate")
    return console


def work(shop: Console, expected: int) -> None:
    """Run the services until so many rows are done."""
    counts: dict[str, int] = {}
    with shop.start("worker", PYTHONUNBUFFERED="1"):
        for _ in range(150):
            counted = shop("tasks", "records", "ship", "--count", "--json")  # fails until the worker has declared it
            counts = counted.json["counts"] if counted.code == 0 else {}
            if sum(counts.values()) >= expected and not counts.keys() & {"pending", "running"}:
                return
    raise AssertionError(counts)


def test_tasks_are_shown_retried_and_explained(shop: Console) -> None:
    first, second, easy = shop.ok("run", "put", 'names=["a", "b", "easy"]', "--json").json
    work(shop, 3)
    shown = shop.ok("tasks").out
    assert "ship" in shown
    (task,) = shop.ok("tasks", "--json").json["tasks"]
    assert (task["name"], task["failed"], task["ready"], task["declared"]) == ("shop:ship", 2, 0, True)
    assert shop.ok("tasks", "records", "ship", "--count").out.strip() in {"2 failed, 1 success", "1 success, 2 failed"}
    listed = shop.ok("tasks", "records", "ship", "--state", "failed, canceled").out
    assert first in listed
    assert easy not in listed
    assert "ConnectionError: no way for a" in listed
    one = shop.ok("tasks", "records", "ship", "--limit", "1", "--order", "key", "--json").json
    two = shop.ok("tasks", "records", "ship", "--order", "key", "--after", one["next"], "--json").json
    assert {record["key"] for record in [*one["records"], *two["records"]]} == {first, second, easy}
    assert "amount" not in str(two), "what was captured is not shown"
    assert "state             failed" in shop.ok("tasks", "show", "ship", first).out
    explained = shop.ok("tasks", "explain", "ship", first).out
    assert "failed at" in explained
    assert "no way for a" in explained
    assert shop.ok("tasks", "explain", "ship", first, "--json").json["matches"] is True

    shop.write("open", "")
    assert "1 row retried" in shop.ok("tasks", "retry", "ship", "--error", "for b").err
    asked = shop("tasks", "retry", "ship", "--state", "failed,pending")
    assert asked.code != 0
    assert "Retry 2 rows?" in asked.err
    assert shop.ok("tasks", "retry", "ship", "--state", "failed", "--json", "--yes").json == {"found": 1, "changed": 1}
    work(shop, 3)
    assert shop.ok("tasks", "records", "ship", "--count", "--json").json == {"counts": {"success": 3}}


def test_f24_a_command_without_a_filter_changes_nothing(shop: Console) -> None:
    shop.ok("run", "put", 'names=["easy", "easy"]')
    work(shop, 2)
    for verb in ("retry", "cancel", "skip", "delete"):
        refused = shop("tasks", verb)
        assert refused.code != 0
        assert f"Say which rows to {verb}" in refused.err
        refused = shop("tasks", verb, "--yes")
        assert refused.code != 0
    assert "Retry 2 rows?" in shop("tasks", "retry", "--all").err
    assert shop.ok("tasks", "records", "--count", "--json").json == {"counts": {"success": 2}}
    assert "2 rows retried, of 2." in shop.ok("tasks", "retry", "--all", "--yes").err
    assert "2 rows skipped, of 2." in shop.ok("tasks", "skip", "ship", "--yes").err
    assert "There are no such rows." in shop.ok("tasks", "cancel", "ship").err
    assert "2 rows forgotten, of 2." in shop.ok("tasks", "delete", "ship", "--yes").err
    assert shop.ok("tasks", "records").out.strip() == "no rows"


def test_the_state_of_a_task_is_told_and_an_unknown_one_refused(shop: Console) -> None:
    shop.ok("run", "put", 'names=["easy"]')
    work(shop, 1)
    for verb in ("pause", "reconcile"):
        shop.ok("tasks", verb, "ship")
    assert "paused, looking at all rows: 0 rows so far" in shop.ok("tasks").out
    wrong = shop("tasks", "pause", "shipp")
    assert wrong.code != 0
    assert "no reactive task 'shipp'" in wrong.err
    assert shop("tasks", "show", "ship", "nonsense").code != 0
    assert shop("tasks", "records", "--state", "dirty").code != 0


def test_rows_are_named_by_a_condition_on_them(shop: Console) -> None:
    first, second, easy = shop.ok("run", "put", 'names=["a", "b", "easy"]', "--json").json
    work(shop, 3)
    listed = shop.ok("tasks", "records", "ship", "--rows", "name in ('a', 'easy')", "--json").json["records"]
    assert {record["key"] for record in listed} == {first, easy}
    assert shop.ok("tasks", "records", "--table", "order", "--rows", "name == 'b'", "--count").out.strip() == "1 failed"
    listed = shop.ok("tasks", "records", "--table", "order", "--json").json["records"]
    assert {record["key"] for record in listed} == {first, second, easy}
    failed = ("--rows", 'name > "a" and amount is not None', "--state", "failed", "--json")
    assert shop.ok("tasks", "retry", "ship", *failed).json == {"found": 1, "changed": 1}
    assert shop("tasks", "records", "ship", "--rows", "name == 'b'", "--order", "due").code == 1


def test_a_condition_that_cannot_be_read_changes_nothing(shop: Console) -> None:
    for verb in ("records", "retry", "cancel", "skip", "delete"):
        for words, part in (
            (("ship", "--rows", "nam == 'a'"), "There is name"),
            (("ship", "--rows", "__import__('os').remove('open')"), "cannot be called here"),
            (("ship", "--rows", ""), "0 characters"),
            (("--rows", "name == 'a'"), "the table is unknown"),
            (("shipp", "--rows", "name == 'a'"), "declares no reactive task 'shipp'"),
            (("--table", "orders", "--rows", "name == 'a'"), "declares no table 'orders'"),
        ):
            refused = shop("tasks", verb, *words)
            assert refused.code == 2, refused.err
            assert part in " ".join(refused.err.split())
            assert "Traceback" not in refused.err


# ----- metrics

app = App()
bad: set[str] = set()


class Parcel(Table, name="metered_parcel"):
    name: str


@app.reactive_task(Parcel, name="send", retry=None)
async def send(ctx: TaskCtx[Parcel]) -> None:
    parcel = await ctx.get_document()
    if parcel.name == "skipped":
        await ctx.run_mutation(touch, parcel.id)
        await ctx.get_document()
    if parcel.name in bad:
        raise ValueError("no")


@app.reactive_task(Parcel, name="weigh")
async def weigh(ctx: MutationTaskCtx[Parcel]) -> None:
    await ctx.get_document()


@app.internal_mutation
async def put(ctx: MutationCtx, names: list[str]) -> None:
    for name in names:
        await ctx.db.insert(Parcel(name=name))


@app.internal_mutation
async def touch(ctx: MutationCtx, parcel: Any) -> None:
    await ctx.db.patch(Parcel, parcel, name="gone")
    await ctx.db.delete(Parcel, parcel)


async def test_f22_f23_metrics_of_tasks_are_told_by_any_process(database_url: str) -> None:
    async def samples(backend: TestApp) -> dict[str, float]:
        web = asgi_app(app, backend=backend)
        async with httpx.AsyncClient(base_url="http://shop", transport=httpx.ASGITransport(web)) as http:
            text = (await http.get("/metrics", headers={"authorization": "Bearer let-me-in"})).text
        found = [one for family in text_string_to_metric_families(text) for one in family.samples]
        return {
            f"{one.name.removeprefix('penstock_task_')} {' '.join(one.labels.values())}": one.value
            for one in found
            if one.name.startswith("penstock_task_")
        }

    bad.add("bad")
    async with (
        TestApp(app, database_url, metrics_token="let-me-in") as backend,
        TestApp(app, database_url, metrics_token="let-me-in") as other,
    ):
        planner = backend.make_service("planner")
        assert isinstance(planner, Planner)
        await backend.run_mutation(put, ["good", "bad", "skipped"])
        for _ in range(3):
            await planner.tick()
        found = await samples(other)
        assert (found["ready send"], found["ready weigh"], found["failed send"]) == (3, 3, 0)
        await app.tasks.pause(backend, "weigh")
        await backend.run_until_idle(advance=False, raise_errors=False)
        assert (await samples(other))["paused weigh"] == 1
        await app.tasks.resume(backend, "weigh")
        await backend.run_until_idle(advance=False, raise_errors=False)
        found = await samples(other)
        for name in ("send", "weigh"):
            for gauge in ("ready", "scheduled", "running", "oldest_due_seconds", "paused"):
                assert found[f"{gauge} {name}"] == 0, (gauge, name)
        assert (found["failed send"], found["failed weigh"]) == (1, 0)
        found = await samples(backend)
        runs = {name: value for name, value in found.items() if name.startswith("runs")}
        assert {name: value for name, value in runs.items() if "created" not in name} == {
            "runs_total success send": 1,
            "runs_total failed send": 1,
            "runs_total skipped send": 1,
            "runs_total success weigh": 2,
            "runs_total skipped weigh": 1,
        }
        assert await app.tasks.count(backend, TaskFilter(task="weigh")) == {"success": 2, "skipped": 1}
        await planner.finish()
