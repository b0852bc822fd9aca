"""``penstock top`` on a real terminal: drawn anew as things change, ended by a key, and the terminal as it was."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import rich.console
from race.test_workers import make_worker
from stage.outboxes import OutboxStage
from stage.terminal import INTERRUPT, Terminal

from penstock import ActionCtx, App, Table
from penstock.api.pools.activity import Look, look
from penstock.cli.top import as_data, draw
from penstock.clock import SystemClock
from penstock.testing import TestApp

if TYPE_CHECKING:
    from doors.cli_fixtures import Console

pytest_plugins = ("doors.cli_fixtures",)

PROGRAM = """
from penstock import ActionCtx, App

app = App()
sms = app.workpool("sms", max_parallelism=3)


@app.action
async def send(ctx: ActionCtx, count: int) -> None:
    await sms.enqueue_batch(ctx, say, [{}] * count)


@app.internal_action
async def say(ctx: ActionCtx) -> None: ...
"""
ALTERNATE, BACK, CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


@pytest.mark.parametrize("key", ["q", INTERRUPT], ids=["q", "interrupt"])
def test_what_goes_on_is_drawn_anew_until_a_key_ends_it(console: Console, key: str) -> None:
    console.write("messages.py", PROGRAM)
    console.ok("migrate")
    with Terminal(console.folder, "top", "--interval", "0.2") as terminal:
        terminal.wait_for("sms")
        assert ALTERNATE in terminal.shown
        assert "4,321" not in terminal.shown
        console.ok("run", "send", "count=4321")
        terminal.wait_for("4,321")
        assert BACK not in terminal.shown
        terminal.press(key)
        assert terminal.end() == 0
        left = terminal.shown.rpartition("4,321")[2]
        assert BACK in left
        assert CURSOR in left
        assert "Traceback" not in left


class Item(Table, name="item_of_top"):
    note: str = ""


async def test_workers_are_those_that_run_jobs(database_url: str) -> None:
    stage = OutboxStage(Item)
    stage.outbox(Item)
    stage.task(Item)
    async with stage.open(database_url) as test:
        await test.relay.tick()
        await test.plan()
        await test.engine.store.leases.take("rebuild send", timedelta(minutes=1), test.clock.now())
        seen = await look(test.engine.store, SystemClock().now())
        assert (as_data(seen)["workers"], written(seen).count("no worker runs")) == ([], 1)
        worker = make_worker(test)
        await worker.tick()
        seen = await look(test.engine.store, SystemClock().now())
        assert [one.lease for one in as_data(seen)["workers"]] == [worker.lease]
        assert "  1 worker  " in written(seen)
        await worker.kill()


async def test_ids_of_jobs_stay_whole_beside_long_names(sqlite_url: str) -> None:
    guests = App()
    pool = guests.workpool("letters-and-parcels-to-all-guests-of-the-last-month", max_parallelism=3)

    @guests.internal_action
    async def send(ctx: ActionCtx) -> None: ...

    async with TestApp(guests, sqlite_url) as test:
        job = await pool.enqueue(test, send)
        lines = written(await look(test.engine.store, SystemClock().now(), oldest=1), 80).splitlines()
        assert max(map(len, lines)) <= 80
        assert any(line.startswith("test_cli_top") and f"{job} " in line and "waits" in line for line in lines)


def written(seen: Look, width: int = 200) -> str:
    console = rich.console.Console(width=width)
    with console.capture() as shown:
        console.print(draw(seen))
    return shown.get()
