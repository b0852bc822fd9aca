"""The commands about jobs, reactive tasks and outboxes, `penstock top`, and the metrics of outboxes."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from doors.cli_fixtures import Console
from doors.test_metrics import samples
from flow.test_broken_jobs import change
from programs import admin, deliveries
from programs.admin import on

from penstock import ActionCtx, App, JobId, MutationCtx, Retry, WorkId, WorkResult, asgi_app
from penstock.clock import SystemClock
from penstock.testing import TestApp, TestClock

# ----- jobs

app = App()
pool = app.workpool("mail", max_parallelism=3, default_retry=Retry(2, 0.0))
slow = app.workpool("slow", max_parallelism=0)
broken: set[str] = set()


@app.action
async def go(ctx: ActionCtx, count: int, patience: float = 0.0) -> list[str]:
    greeting = pool.with_options(
        retry=True, on_complete=told, on_complete_retry=Retry(2, patience), context={"a": 1}, name="greet",
        concurrency_key="acme",
    )  # fmt: skip
    await slow.enqueue_batch(ctx, send, [{"to": "later"}] * 2)
    return [await greeting.enqueue(ctx, send, f"user{number}") for number in range(count)]


@app.internal_action
async def send(ctx: ActionCtx, to: str) -> str:
    if "send" in broken:
        raise ConnectionError(f"no way to {to}")
    return f"sent {to}"


@app.internal_mutation
async def told(ctx: MutationCtx, work_id: WorkId, result: WorkResult[str], context: Any) -> None:
    if "told" in broken:
        raise ValueError("callback broke")


@pytest.fixture
def mail(shell: Console, monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    monkeypatch.setenv("PENSTOCK_APP", f"{__name__}:app")
    shell.ok("migrate")
    broken.clear()
    yield shell
    broken.clear()


def enqueue(mail: Console, count: int, *more: str) -> list[str]:
    jobs: list[str] = mail.ok("run", "go", f"count={count}", *more, "--json").json
    return jobs


async def work(test: TestApp) -> None:
    await test.run_until_idle(raise_errors=False, advance=False)


def test_top_shows_pools_and_workers(mail: Console) -> None:
    mail.write("mail.py", MAIL)
    program = ("--app", "mail.py")
    jobs = mail.ok(*program, "run", "go", "--json").json
    with mail.start(*program, "worker", PYTHONUNBUFFERED="1") as worker:
        mail("jobs", "wait", *jobs, "--timeout", "60s")
        shown, seen = mail.ok("top", "--once").out, mail.ok("top", "--json").json
        worker.tell(signal.SIGTERM)
        worker.end()
    pools = {pool["name"]: pool for pool in seen["pools"]}
    (ended,) = (pool for pool in mail.ok("top", "--json").json["pools"] if pool["name"] == "mail")
    assert (ended["failed"], ended["ended"] > 0) == (2, True), "its worker has stopped, and written what it counted"
    assert (pools["slow"]["ready"], pools["slow"]["limit"], pools["default"]["limit"]) == (2, 0, None)
    assert len(seen["workers"]) == 1
    assert len(re.findall(r"mail:send +job_\w{26} +slow +waits", shown)) == 2, "at a gate, too"


MAIL = """
from penstock import ActionCtx, App
app = App()
mail, slow = app.workpool("mail", max_parallelism=3), app.workpool("slow", max_parallelism=0)
@app.action
async def go(ctx: ActionCtx) -> list[str]:
    await slow.enqueue(ctx, send)
    await slow.with_options(concurrency_key="a").enqueue(ctx, send)
    return [await mail.enqueue(ctx, send) for _ in range(2)]
@app.internal_action
async def send(ctx: ActionCtx) -> None:
    raise ValueError
"""


def test_jobs_that_failed_are_listed_shown_retried_and_waited_for(mail: Console, database_url: str) -> None:
    first, second = enqueue(mail, 2)
    assert mail("jobs", "wait", first, "--timeout", "0.01").code == 5
    broken.add("send")
    on(app, database_url, work)

    def listed(*filters: str) -> list[str]:
        return [job["id"] for job in mail.ok("jobs", "list", *filters, "--json").json["jobs"]]

    assert listed("--state", "failed") == [second, first]
    assert listed("--error", "to user1") == [second]
    assert len(listed("--pool", "slow")) == 2
    assert len(listed("--function", "send")) == len(listed("--function", send.name)) == 4
    assert listed("--name", "greet", "--since", "1h", "--limit", "1") == [second]
    assert listed("--before", "1h") == listed("--since", "2100-01-01") == []
    assert len(mail.ok("jobs", "--pool", "mail", "--json").json["jobs"]) == 2, "the short spelling lists too"
    lines = mail.ok("jobs", "list", "--state", "failed").out.splitlines()
    assert "ConnectionError: no way to user1" in lines[2]

    shown = mail.ok("jobs", "show", first).out
    for text in ("attempt 2         exhausted", f"on complete       {told.name}", 'args              {"to": "user0"}'):
        assert text in shown, shown
    assert shown.count("Traceback (most recent call last)") == 2
    assert ("test_cli_work.py" in shown, "runner.py" in shown) == (True, False)
    found = mail.ok("jobs", "show", first, "--json").json
    assert [(one["number"], one["what"]) for one in found["attempts"]] == [(1, "raised"), (2, "exhausted")]

    ended = mail("jobs", "wait", first, second)
    assert (ended.code, ended.out.splitlines()[0]) == (3, f"{first} failed: ConnectionError: no way to user0")
    broken.clear()
    assert mail.ok("jobs", "retry", "--error", "user0").err == "1 job retried, of 1.\n", "one needs no asking"
    on(app, database_url, work)
    ended = mail("jobs", "wait", first, "--json")
    assert (ended.code, ended.json["jobs"][0]["result"]) == (0, "sent user0")
    assert mail("jobs", "retry", second, first, "--json").json["jobs"] == [
        {"id": second, "state": "pending", "retried": True},
        {"id": first, "state": "success", "retried": False},
    ]
    assert mail.ok("jobs", "cancel", second, "--json").json["jobs"] == [
        {"id": second, "state": "pending", "requested": True}
    ]
    on(app, database_url, work)
    assert mail("jobs", "wait", second).code == 4
    assert "has ended already: canceled." in mail.ok("jobs", "cancel", second).err


def test_which_jobs_are_meant_is_said_once(mail: Console, database_url: str) -> None:
    (job,) = enqueue(mail, 1)
    for verb in ("retry", "cancel"):
        assert (mail("jobs", verb).code, "Say which jobs" in mail("jobs", verb).err) == (2, True)
        both = mail("jobs", verb, job, "--pool", "mail")
        assert (both.code, "--pool and the ids of jobs exclude each other." in both.err) == (2, True)
        refused = mail("jobs", verb, "--pool", "mial")
        assert refused.err == "error: The database knows no pool 'mial'.\n  fix: Name one of mail, slow.\n"
    unknown = "job_01jd3k4v5w6x7y8z9a0b1c2d3e"
    for command in (("show", unknown), ("retry", unknown), ("wait", unknown), ("cancel", job, unknown)):
        refused = mail("jobs", *command)
        assert (refused.code, f"There is no job {unknown}." in refused.err) == (1, True)
    assert mail.ok("jobs", "show", job, "--json").json["state"] == "pending", "nothing was done by half"
    for arguments in (("--since", "soon"), ("--state", "gone"), ("--since", "99999999999d")):
        assert mail("jobs", "list", *arguments).code == 2
    assert "Cancel 2 jobs?" in mail("jobs", "cancel", "--pool", "slow").err
    assert mail.ok("jobs", "cancel", "--pool", "slow", "--yes").err == "Asked for 2 jobs to be canceled.\n"

    text = '{"name": 5, "timeout": 9, "concurrency_key": "acme", "color": "red"}'
    change(database_url, "update {table}scheduled_job set options = {mark} where id = {mark}", JobId(job), text)
    shown = mail.ok("jobs", "show", job).out
    assert re.search(r"^broken +\{\"name\": 5\}$", shown, re.MULTILINE), shown
    assert re.search(r"^unread +\{\"color\": \"red\"\}$", shown, re.MULTILINE), shown


def test_an_on_complete_that_failed_is_found_shown_and_called_again(mail: Console, database_url: str) -> None:
    broken.add("told")
    first, second = enqueue(mail, 2)
    on(app, database_url, work)
    found = mail.ok("jobs", "list", "--on-complete-error", "callback broke", "--json").json["jobs"]
    assert {job["id"] for job in found} == {first, second}
    shown = mail.ok("jobs", "show", first).out
    assert re.search(r"^on complete error +ValueError: callback broke$", shown, re.MULTILINE)
    assert re.search(r"^on complete 1 +raised ", shown, re.MULTILINE)
    assert re.search(r"^on complete 2 +exhausted ", shown, re.MULTILINE)
    assert shown.count('raise ValueError("callback broke")') == 2
    assert mail.ok("jobs", "retry", "--on-complete", first).err == f"The on_complete of {first} is called again.\n"
    broken.clear()
    again = mail.ok("jobs", "retry", "--on-complete", "--pool", "mail").err
    assert again == "The on_complete of 1 job is called again, of 1.\n"
    on(app, database_url, work)
    refused = mail("jobs", "retry", "--on-complete", first)
    assert (refused.code, refused.err) == (
        1, f"The on_complete of {first} is not called again: it has not failed for good; the job is success.\n",
    )  # fmt: skip

    broken.add("told")
    (job,) = enqueue(mail, 1, "patience=3600.0")
    on(app, database_url, work)
    refused = mail.ok("jobs", "cancel", job)
    assert refused.err == f"{job} is not canceled. Only its on_complete is left, and that still runs.\n"


# ----- reactive tasks


@pytest.fixture
def shop(shell: Console, monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    """A desk where orders named a and b fail."""
    monkeypatch.setenv("PENSTOCK_APP", "programs.admin:app")
    admin.failing.update("ab")
    yield shell
    admin.failing.clear()


async def put_and_run(test: TestApp) -> list[str]:
    made = await test.run_mutation(admin.put, ["a", "b", "easy"])
    await test.run_until_idle(raise_errors=False)
    return [*made]


def test_f24_tasks_are_shown_and_explained_and_rows_are_changed_only_by_a_filter(
    shop: Console, database_url: str
) -> None:
    first, second, easy = on(admin.app, database_url, put_and_run)
    assert shop.ok("tasks", "records", "ship", "--count").out.strip() in {"2 failed, 1 success", "1 success, 2 failed"}
    one = shop.ok("tasks", "records", "ship", "--limit", "1", "--order", "key", "--json").json
    two = shop.ok("tasks", "records", "ship", "--order", "key", "--after", one["next"], "--json").json
    assert {record["key"] for record in [*one["records"], *two["records"]]} == {first, second, easy}
    assert "amount" not in str(two), "what was captured is not shown"
    explained = shop.ok("tasks", "explain", "ship", first).out
    assert "failed at" in explained
    assert "no way for a" in explained

    listed = shop.ok("tasks", "records", "ship", "--rows", "name in ('a', 'easy')", "--json").json["records"]
    assert {record["key"] for record in listed} == {first, easy}
    assert (
        shop.ok("tasks", "records", "--table", "order_of_admins", "--rows", "name == 'b'", "--count").out.strip()
        == "1 failed"
    )
    assert len(shop.ok("tasks", "records", "--table", "order_of_admins", "--json").json["records"]) == 3
    assert shop("tasks", "records", "ship", "--rows", "name == 'b'", "--order", "due").code == 1
    assert shop("tasks", "records", "--state", "dirty").code != 0

    for verb in ("retry", "cancel", "skip", "delete"):
        refused = shop("tasks", verb, "--yes")
        assert (refused.code != 0, f"Say which rows to {verb}" in refused.err) == (True, True)
    assert "Retry 3 rows?" in shop("tasks", "retry", "--all").err
    assert len(shop.ok("tasks", "records", "--state", "failed", "--json").json["records"]) == 2
    admin.failing.clear()
    assert "1 row retried" in shop.ok("tasks", "retry", "ship", "--error", "for b").err
    asked = shop("tasks", "retry", "ship", "--state", "failed,pending")
    assert asked.code != 0
    assert "Retry 2 rows?" in asked.err
    failed = ("--rows", 'name == "a" and amount is not None', "--state", "failed", "--json")
    assert shop.ok("tasks", "retry", "ship", *failed).json == {"found": 1, "changed": 1}
    assert "3 rows retried, of 3." in shop.ok("tasks", "retry", "--all", "--yes").err
    assert "3 rows skipped, of 3." in shop.ok("tasks", "skip", "ship", "--yes").err
    assert "There are no such rows." in shop.ok("tasks", "cancel", "ship").err
    assert "3 rows forgotten, of 3." in shop.ok("tasks", "delete", "ship", "--yes").err
    assert shop.ok("tasks", "records").out.strip() == "no rows"
    for verb in ("pause", "reconcile"):
        shop.ok("tasks", verb, "ship")
    assert "paused, looking at all rows: 0 rows so far" in shop.ok("tasks").out


# ----- outboxes

OTHER = ("--app", "programs.admin:stranger")  # another program


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    deliveries.failing.clear()
    yield
    deliveries.failing.clear()


@pytest.fixture
def letters(shell: Console, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Console:
    """A deliveries in which letters have failed in each way."""
    monkeypatch.setenv("PENSTOCK_APP", "programs.deliveries")
    on(deliveries.app, database_url, deliveries.put_and_fail)
    return shell


def test_outboxes_and_their_messages_are_shown(letters: Console) -> None:
    found = {one["name"]: one for one in letters.ok("outbox", "--json").json["outboxes"]}
    assert (found["post"]["messages"], found["post"]["halted"], found["post"]["declared"]) == (3, True, True)
    assert (found["sorted"]["waits_for"], found["sorted"]["waiting"]) == (1, 2)
    assert "not of this program" in letters.ok("outbox", *OTHER).out

    one = letters.ok("outbox", "show", "post")
    for word in ("HALTED", "3 to be delivered", "Traceback", '"name": "bad"'):
        assert word in one.out
    number = letters.ok("outbox", "messages", "post", "--json").json["messages"][0]["number"]
    assert f"penstock outbox skip post --reason … {number}" in one.err
    assert re.search(rf"^message +{number}, failing", one.out, re.MULTILINE), one.out
    gone = letters.ok("outbox", "show", "files", *OTHER)
    assert "its handler was renamed or removed" in gone.err
    page = letters.ok("outbox", "messages", "files", "--state", "parked", "--limit", "1")
    assert "There are more: --after" in page.err


def test_what_cannot_be_done_is_refused_before_anybody_is_asked(letters: Console) -> None:
    for command, code, refusal in (
        (("resend", "files", "--where", "name == 'x'", *OTHER), 1, "Outbox files has no declaration in this program"),
        (("move", "post", "--to", "yesterday"), 2, ""),
        (("skip", "post", "123456", "--reason", "x"), 1, "has no message 123456 that has failed"),
    ):
        refused = letters("outbox", *command)
        assert (refused.code, refusal in refused.err) == (code, True), refused
        assert "no terminal to ask on" not in refused.err
    for asking, before, question in (
        (
            ("move", "post", "--to", "end"),
            "post has 3 messages to deliver.\nNone of these will be delivered.\n",
            "Move post to end?",
        ),
        (
            ("drop", "files"),
            "files has no messages to deliver. 2 messages parked will be forgotten.\n",
            "Drop files?",
        ),
    ):
        asked = letters("outbox", *asking)
        assert asked.code == 1
        assert asked.err.startswith(f"{before}error: {question} There is no terminal to ask on."), asked.err
    letters.ok("outbox", "rebuild", "counts", "--yes")
    letters.ok("outbox", "move", "post", "--to", "beginning", "--yes")
    position = letters.ok("outbox", "show", "post", "--json").json["outbox"]["position"]
    assert "4 messages" in letters.ok("outbox", "move", "post", "--to", position, "--yes").err
    refused = letters("changes", "drop", "outbox:files", "--yes")
    assert (refused.code, "penstock outbox drop files" in refused.err) == (1, True), refused
    assert "2 messages parked" in letters.ok("outbox", "drop", "files", "--yes", *OTHER).err
    assert "files" not in {one["name"] for one in letters.ok("outbox", "--json", *OTHER).json["outboxes"]}


async def test_metrics_of_outboxes_are_told_by_any_process(database_url: str) -> None:
    async def told_by(backend: TestApp) -> dict[str, float]:
        web = asgi_app(deliveries.app, backend=backend)
        async with httpx.AsyncClient(base_url="http://mail", transport=httpx.ASGITransport(web)) as http:
            return samples((await http.get("/metrics")).text)

    deliveries.failing.add("bad")
    clock = TestClock(SystemClock().now())
    async with (
        TestApp(deliveries.app, database_url, clock=clock, dev=True) as backend,
        TestApp(deliveries.app, database_url, clock=clock, dev=True) as other,
    ):
        await deliveries.hand_over(backend)
        await deliveries.app.outboxes.pause(backend, "counts")
        await backend.run_mutation(deliveries.put, ["good", "bad", "worse"])
        await deliveries.hand_over(backend)
        clock.advance(timedelta(seconds=10))
        found = await told_by(other)
        names = ("post", "files", "sorted", "counts")
        for gauge, numbers in {
            "messages": (2, 0, 2, 3),
            "failing": (1, 0, 1, 0),
            "halted": (1, 0, 0, 0),
            "parked": (0, 1, 0, 0),
            "paused": (0, 0, 0, 1),
        }.items():
            assert tuple(found[f"penstock_outbox_{gauge}{{outbox={name}}}"] for name in names) == numbers, gauge
        assert 9 <= found["penstock_outbox_seconds{outbox=post}"] <= 60
        assert "penstock_outbox_delivered_total{outbox=post}" not in found, "it has delivered nothing"
        found = await told_by(backend)
        assert (
            found["penstock_outbox_delivered_total{outbox=post}"],
            found["penstock_outbox_failed_total{outbox=post}"],
        ) == (1, 1)
        assert (
            found["penstock_outbox_delivered_total{outbox=files}"],
            found["penstock_outbox_failed_total{outbox=files}"],
        ) == (2, 1)
        assert found["penstock_outbox_delivered_total{outbox=sorted}"] == 1
