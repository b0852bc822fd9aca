"""Two programs on one database, from the command line: workers of both, a kill, plain SQL, a clash and a rename."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from stage.waits import until

if TYPE_CHECKING:
    from doors.cli_fixtures import Console, Process

pytest_plugins = ("doors.cli_fixtures",)

PROGRAM = """
from datetime import timedelta

from penstock import ActionCtx, App, MutationCtx, Retry

app = App(name="NAME", lease=2.0)
mail = app.workpool("mail", max_parallelism=LIMIT, default_retry=Retry(max_attempts=9, initial_backoff=0.1))


@app.internal_action
async def send(ctx: ActionCtx, number: int) -> None:
    with open("sent", "a") as sent:
        sent.write(f"NAME {number}\\n")


@app.mutation
async def order(ctx: MutationCtx, first: int) -> None:
    for number in range(first, first + 20):
        if number % 2:
            await ctx.scheduler.run_after(timedelta(0), send, number=number)
        else:
            await mail.with_options(retry=True).enqueue(ctx, send, number=number)


@app.cron("0 0 1 1 *", name="CRON")
async def yearly(ctx: MutationCtx) -> None: ...
"""


@pytest.fixture
def programs(console: Console, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Console:
    """Two programs whose functions have the same names, each in a folder of its own."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    for name in ("shop", "erp"):
        write(console, name)
    return console


def write(console: Console, folder: str, *, name: str = "", limit: int = 3, cron: str = "") -> None:
    text = PROGRAM.replace("NAME", name or folder).replace("LIMIT", str(limit)).replace("CRON", cron or folder)
    console.write(f"{folder}/main.py", text)


def sent(console: Console) -> Counter[str]:
    file = console.folder / "sent"
    return Counter(file.read_text("utf-8").splitlines() if file.exists() else ())


def each(name: str, first: int) -> Counter[str]:
    return Counter(f"{name} {number}" for number in range(first, first + 20))


def worker(console: Console, name: str) -> Process:
    process = console.start("--app", f"{name}/main.py", "worker")
    process.wait_for("worker.started")
    return process


def order(console: Console, name: str, first: int) -> None:
    console.ok("--app", f"{name}/main.py", "run", "main:order", f"first={first}")


def wait_for(console: Console, expected: Counter[str]) -> None:
    async def all_are() -> bool:
        return sent(console) >= expected

    asyncio.run(until(all_are))
    assert sent(console) == expected
    while console.ok("jobs", "--app", "shop/main.py", "--state", "running", "--json").json["jobs"]:
        """They have run, and their ends are being stored: an attempt whose end is not stored is made again."""


def test_each_program_runs_its_own_jobs_whoever_is_killed(programs: Console) -> None:
    for name in ("shop", "erp"):
        programs.ok("--app", f"{name}/main.py", "migrate")
    with worker(programs, "shop") as shop, worker(programs, "erp") as erp:
        order(programs, "shop", 0)
        order(programs, "erp", 100)
        expected = each("shop", 0) + each("erp", 100)
        wait_for(programs, expected)
        erp.tell(signal.SIGKILL)
        erp.end()
        order(programs, "erp", 200)
        order(programs, "shop", 20)
        expected += each("shop", 20)
        wait_for(programs, expected)
        pending = programs.ok("jobs", "--app", "shop/main.py", "--state", "pending", "--json").json["jobs"]
        assert [(job["attempt"], job["error"]) for job in pending] == [(0, None)] * 20, "nobody touches them"
        with worker(programs, "erp"):
            wait_for(programs, expected + each("erp", 200))
        shop.tell(signal.SIGTERM)
        assert shop.end() == 0
        assert not any("job.parked" in line for line in shop.lines)


def test_a_clash_changes_nothing_and_a_renamed_program_goes_on(programs: Console) -> None:
    for name in ("shop", "erp"):
        programs.ok("--app", f"{name}/main.py", "migrate")
    before = programs.ok("--app", "shop/main.py", "pools", "--json").json
    write(programs, "crm", limit=7, cron="shop")
    for words in (("migrate",), ("migrate", "--plan"), ("worker",)):
        refused = programs("--app", "crm/main.py", *words)
        assert refused.code == 1
        assert "'mail' is declared otherwise by program 'erp'" in refused.err
        assert "cron 'shop' is declared by program 'shop'" in refused.err
        assert "penstock forget" in refused.err
    assert programs.ok("--app", "shop/main.py", "pools", "--json").json == before
    assert programs("--app", "erp/main.py", "crons", "remove", "shop").code == 1, "it is another program's"

    order(programs, "erp", 300)
    write(programs, "erp", name="books", cron="erp")
    assert programs("--app", "erp/main.py", "migrate").code == 1, "the cron is still one of the old name"
    assert "of erp are forgotten" in programs.ok("--app", "erp/main.py", "forget", "erp").err
    programs.ok("--app", "erp/main.py", "migrate")
    with worker(programs, "erp"):
        wait_for(programs, each("books", 300))
