"""The commands about outboxes, and the metrics of outboxes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from stage.outboxes import OutboxStage
from stage.reactive import Stage

from penstock import ActionCtx, App, MutationCtx, Retry, Table, asgi_app
from penstock.clock import SystemClock
from penstock.testing import TestApp, TestClock

if TYPE_CHECKING:
    from doors.cli_fixtures import Console

pytest_plugins = ("doors.cli_fixtures",)

PROGRAM = """
from penstock import ActionCtx, App, MutationCtx, Table

app = App()


class Invoice(Table, name="invoice_of_cli"):
    name: str


@app.outbox(Invoice, name="ledger", start="end")
async def ledger(ctx: ActionCtx, invoice: Invoice) -> None: ...


@app.outbox(Invoice, name="mail", start="end")
async def mail(ctx: ActionCtx, invoice: Invoice) -> None: ...


async def clear(ctx: MutationCtx) -> None: ...


@app.outbox(Invoice, name="count", reset=clear)
async def count(ctx: MutationCtx, invoice: Invoice) -> None: ...
"""

app = App()
failing: set[str] = set()


class Invoice(Table, name="invoice_of_cli"):
    name: str


class Line(Table, name="line_of_cli"):
    note: str


def work(name: str) -> None:
    if name in failing:
        raise ConnectionError(f"no way for {name}")


@app.outbox(Invoice, name="ledger", start="end", retry=Retry(max_attempts=1))
async def ledger(ctx: ActionCtx, invoice: Invoice) -> None:
    work(invoice.name)


@app.outbox(Invoice, name="old", start="end", on_failure="park", retry=Retry(max_attempts=1))
async def old(ctx: ActionCtx, invoice: Invoice) -> None:
    work(invoice.name)


@app.outbox(Invoice, name="keyed", start="end", on_failure="halt_key", partition_by="name")
async def keyed(ctx: ActionCtx, invoice: Invoice) -> None:
    work(invoice.name)


@app.outbox(Invoice, name="count")
async def count(ctx: MutationCtx, invoice: Invoice) -> None: ...


@app.internal_mutation
async def put(ctx: MutationCtx, names: list[str]) -> None:
    for name in names:
        await ctx.db.insert(Invoice(name=name))


async def hand_over(test: TestApp) -> None:
    test.clock.advance(timedelta(seconds=2))
    await test.relay.drain()


def on_app(url: str, work: Callable[[TestApp], Awaitable[None]]) -> None:
    """Do something with the app of this file on the database of the commands."""

    async def main() -> None:
        async with TestApp(app, url, clock=TestClock(SystemClock().now())) as test:
            await work(test)

    asyncio.run(main())


@pytest.fixture
def books(console: Console, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Console:
    """A program of which `old` and `keyed` are gone, with messages that have failed in each way."""
    failing.clear()
    failing.add("bad")
    console.write("books.py", PROGRAM)
    monkeypatch.setenv("DATABASE_URL", database_url)

    async def begin(test: TestApp) -> None:
        await hand_over(test)
        await test.run_mutation(put, ["good", "bad", "worse", "bad"])
        await hand_over(test)

    on_app(database_url, begin)
    return console


def test_outboxes_and_their_messages_are_shown(books: Console) -> None:
    found = {one["name"]: one for one in books.ok("outbox", "--json").json["outboxes"]}
    assert (found["ledger"]["messages"], found["ledger"]["halted"], found["ledger"]["declared"]) == (3, True, True)
    assert (found["old"]["parked"], found["old"]["declared"]) == (2, False)
    assert (found["keyed"]["waits_for"], found["keyed"]["waiting"]) == (1, 1)
    shown = books.ok("outbox").out
    for word in ("ledger", "HALTED", "not of this program", "waits for 1 key", "invoice_of_cli", "nobody"):
        assert word in shown

    one = books.ok("outbox", "show", "ledger")
    for word in ("HALTED", "3 to be delivered", "Traceback", "ConnectionError: no way for bad", '"name": "bad"'):
        assert word in one.out
    number = books.ok("outbox", "messages", "ledger", "--json").json["messages"][0]["number"]
    assert f"penstock outbox skip ledger --reason … {number}" in one.err
    gone = books.ok("outbox", "show", "old")
    assert "its handler was renamed or removed" in gone.err
    assert "penstock outbox drop old" in gone.err

    listed = books.ok("outbox", "messages", "keyed").out
    assert "halted" in listed
    assert "waiting" in listed
    page = books.ok("outbox", "messages", "old", "--state", "parked", "--limit", "1")
    assert "There are more: --after" in page.err
    assert books.ok("outbox", "messages", "count").out == "no such messages\n"
    assert books("outbox", "show", "nobody").code == 1
    assert "penstock outbox" in books("outbox", "show", "nobody").err


def test_what_is_known_of_a_message_that_is_older_or_waited_for_older_ones(
    console: Console, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = OutboxStage(Line)
    stage.outbox(Line, "send", retry=Retry(max_attempts=1))
    stage.fails = lambda _message: ConnectionError("away")
    monkeypatch.setenv("DATABASE_URL", database_url)
    console.write("books.py", PROGRAM)

    async def begin() -> None:
        async with Stage(Line).open(database_url) as test:
            await stage.insert(test, Line(note="older"))
        async with stage.open(database_url) as test:
            await stage.insert(test, Line(note="newer"), Line(note="last"))
            await hand_over(test)

    asyncio.run(begin())
    (older,) = console.ok("outbox", "messages", "send", "--state", "failing", "--json").json["messages"]
    assert (older["kind"], older["content"]["note"], older["written_at"]) == ("insert", "older", None)
    shown = console.ok("outbox", "show", "send").out
    assert re.search(r"^attempts .*first one at", shown, re.MULTILINE)
    assert not re.search(r"^written", shown, re.MULTILINE)
    assert re.search(r"^waiting +2 of these", shown, re.MULTILINE)
    console.ok("outbox", "skip", "send", "--reason", "a test", "--yes", "--", str(older["number"]))

    async def go_on() -> None:
        async with stage.open(database_url) as test:
            await hand_over(test)

    asyncio.run(go_on())
    newer, last = console.ok("outbox", "messages", "send", "--json").json["messages"]
    assert [(one["state"], one["content"]["note"]) for one in (newer, last)] == [
        ("failing", "newer"), ("waiting", "last"),
    ]  # fmt: skip
    shown = console.ok("outbox", "show", "send").out
    for line in (rf"message +{newer['number']}, failing", f"id +{newer['id']}", "kind +insert", "written +2"):
        assert re.search(f"^{line}", shown, re.MULTILINE), line
    assert re.search(r"^waiting +1 of these", shown, re.MULTILINE)


def test_messages_are_retried_and_skipped(books: Console, database_url: str) -> None:
    (one,) = books.ok("outbox", "messages", "ledger", "--json").json["messages"]
    refused = books("outbox", "skip", "ledger", str(one["number"]), "--reason", "a test")
    assert refused.code == 1
    assert "Confirm with --yes." in refused.err
    assert books("outbox", "skip", "ledger", str(one["number"]), "--yes").code == 2  # for what reason?
    books.ok("outbox", "skip", "ledger", str(one["number"]), "--reason", "a test", "--yes")
    assert books("outbox", "retry", "ledger", "123456").code == 1
    assert "2 messages of old" in books.ok("outbox", "retry", "old").err
    failing.clear()
    on_app(database_url, hand_over)
    found = {one["name"]: one for one in books.ok("outbox", "--json").json["outboxes"]}
    assert (found["ledger"]["delivered"], found["ledger"]["messages"]) == (3, 0)
    assert (found["old"]["delivered"], found["old"]["parked"]) == (4, 0)


def test_what_cannot_be_done_is_refused_before_anybody_is_asked(books: Console) -> None:
    for command, refusal in (
        (("rebuild", "ledger"), "Outbox ledger declares no reset"),
        (("rebuild", "old"), "Outbox old has no declaration in this program"),
        (("resend", "old", "--where", "name == 'x'"), "Outbox old has no declaration in this program"),
        (("resend", "ledger", "--where", "nobody == 1"), "nobody"),
        (("move", "ledger", "--to", '{"seen": 1}'), "is no position"),
        (("skip", "ledger", "123456", "--reason", "x"), "has no message 123456 that has failed"),
    ):
        refused = books("outbox", *command)
        assert refused.code == 1, command
        assert refusal in refused.err
        assert "no terminal to ask on" not in refused.err
        assert "cleared" not in refused.err


def test_older_rows_are_told_of_without_messages(books: Console) -> None:
    books.ok("outbox", "rebuild", "count", "--yes")
    asked = books("outbox", "drop", "count").err
    assert "count has older rows to deliver, and never will." in asked
    assert "no messages" not in asked


def test_what_asks_is_not_done_without_an_answer(books: Console) -> None:
    for command in (("move", "ledger", "--to", "end"), ("drop", "old")):
        refused = books("outbox", *command)
        assert (refused.code, "Confirm with --yes." in refused.err) == (1, True)
    refused = books("outbox", "resend", "ledger", "--where", 'name == "good"')
    assert refused.code == 1
    assert 'Its handler gets each row that matches: name == "good"' in refused.err
    assert books("outbox", "move", "ledger", "--to", "yesterday", "--yes").code == 2


def test_an_outbox_is_moved_to_the_position_that_was_shown_and_another_dropped(books: Console) -> None:
    books.ok("outbox", "move", "ledger", "--to", "beginning", "--yes")
    position = books.ok("outbox", "show", "ledger", "--json").json["outbox"]["position"]
    assert "4 messages" in books.ok("outbox", "move", "ledger", "--to", position, "--yes").err
    refused = books("changes", "drop", "outbox:old", "--yes")
    assert refused.code == 1
    assert "penstock outbox drop old" in refused.err
    assert "2 messages parked" in books.ok("outbox", "drop", "old", "--yes").err
    assert "old" not in {one["name"] for one in books.ok("outbox", "--json").json["outboxes"]}
    assert "outbox:old" not in books.ok("changes").out


def test_a_database_without_outboxes(console: Console, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    console.write_bookings()
    console.ok("migrate")
    assert console.ok("outbox").out == "no outboxes\n"


async def test_metrics_of_outboxes_are_told_by_any_process(database_url: str) -> None:
    async def samples(backend: TestApp) -> dict[str, float]:
        web = asgi_app(app, backend=backend)
        async with httpx.AsyncClient(base_url="http://books", transport=httpx.ASGITransport(web)) as http:
            text = (await http.get("/metrics", headers={"authorization": "Bearer let-me-in"})).text
        found = [one for family in text_string_to_metric_families(text) for one in family.samples]
        return {
            f"{one.name.removeprefix('penstock_outbox_')} {' '.join(one.labels.values())}": one.value
            for one in found
            if one.name.startswith("penstock_outbox_")
        }

    failing.clear()
    failing.add("bad")
    clock = TestClock(SystemClock().now())
    async with (
        TestApp(app, database_url, clock=clock, metrics_token="let-me-in") as backend,
        TestApp(app, database_url, clock=clock, metrics_token="let-me-in") as other,
    ):
        await hand_over(backend)
        await app.outboxes.pause(backend, "count")
        await backend.run_mutation(put, ["good", "bad", "worse"])
        await hand_over(backend)
        clock.advance(timedelta(seconds=10))
        found = await samples(other)
        expected = {
            "messages": {"ledger": 2, "old": 0, "keyed": 1, "count": 3},
            "failing": {"ledger": 1, "old": 0, "keyed": 1, "count": 0},
            "halted": {"ledger": 1, "old": 0, "keyed": 0, "count": 0},
            "parked": {"ledger": 0, "old": 1, "keyed": 0, "count": 0},
            "paused": {"ledger": 0, "old": 0, "keyed": 0, "count": 1},
        }
        for gauge, numbers in expected.items():
            assert {name: found[f"{gauge} {name}"] for name in numbers} == numbers, gauge
        assert found["seconds old"] == 0
        assert 9 <= found["seconds ledger"] <= 60
        assert not [name for name in found if name.startswith(("delivered", "failed"))], "it has delivered nothing"
        found = await samples(backend)
        assert (found["delivered_total ledger"], found["failed_total ledger"]) == (1, 1)
        assert (found["delivered_total old"], found["failed_total old"]) == (2, 1)
        assert found["delivered_total keyed"] == 2
