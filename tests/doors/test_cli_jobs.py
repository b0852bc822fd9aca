"""The commands about jobs: list, show, retry, cancel, wait, and top."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from flow.test_broken_jobs import change
from stage.desk import on

from penstock import ActionCtx, App, JobId, MutationCtx, Retry, WorkId, WorkResult
from penstock.testing import TestApp

if TYPE_CHECKING:
    from doors.cli_fixtures import Console

pytest_plugins = ("doors.cli_fixtures",)

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
def mail(console: Console, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("PENSTOCK_APP", f"{__name__}:app")
    console.ok("migrate")
    broken.clear()
    yield console
    broken.clear()


def enqueue(mail: Console, count: int, *more: str) -> list[str]:
    jobs: list[str] = mail.ok("run", "go", f"count={count}", *more, "--json").json
    return jobs


async def work(test: TestApp) -> None:
    await test.run_until_idle(raise_errors=False, advance=False)


def test_top_shows_pools_and_workers(mail: Console) -> None:
    shown = mail.ok("top").out
    assert "no worker runs" in shown
    assert "nothing runs, nothing is ready" in shown
    mail.write("mail.py", MAIL)
    program = ("--app", "mail.py")
    jobs = mail.ok(*program, "run", "go", "--json").json
    with mail.start(*program, "worker", PYTHONUNBUFFERED="1") as worker:
        mail("jobs", "wait", *jobs, "--timeout", "60s")
        shown, seen = mail.ok("top", "--once").out, mail.ok("top", "--json").json
        worker.tell(signal.SIGTERM)
        worker.end()
    rows = [line.split() for line in shown.splitlines()]
    assert ["pool", "limit", "running", "ready", "scheduled", "ended/s", "failed", "waits"] in rows
    pools = {pool["name"]: pool for pool in seen["pools"]}
    (ended,) = (pool for pool in mail.ok("top", "--json").json["pools"] if pool["name"] == "mail")
    assert (ended["failed"], ended["ended"] > 0) == (2, True), "its worker has stopped, and written what it counted"
    assert list(pools) == ["default", "mail", "slow"]
    assert (pools["slow"]["ready"], pools["slow"]["limit"], pools["default"]["limit"]) == (1, 0, None)
    assert pools["slow"]["waits"] > 0
    assert len(seen["workers"]) == 1
    assert re.search(r"mail:send +job_\w{26} +slow +waits", shown)


MAIL = """
from penstock import ActionCtx, App
app = App()
mail, slow = app.workpool("mail", max_parallelism=3), app.workpool("slow", max_parallelism=0)
@app.action
async def go(ctx: ActionCtx) -> list[str]:
    await slow.enqueue(ctx, send)
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
    assert lines[0].startswith("2 ready, 0 scheduled, 0 running")
    assert lines[1].split()[:5] == ["id", "function", "state", "attempt", "pool"]
    assert "ConnectionError: no way to user1" in lines[2]

    shown = mail.ok("jobs", "show", first).out
    for text in (
        "state             failed",
        "attempt 1         raised",
        "attempt 2         exhausted",
        f"on complete       {told.name}",
        "name              greet",
        'args              {"to": "user0"}',
        'context           {"a": 1}',
        "concurrency key   acme",
        "keep              86400.0",
        "ConnectionError: no way to user0",
    ):
        assert text in shown, shown
    assert shown.count("Traceback (most recent call last)") == 2
    assert "test_cli_jobs.py" in shown
    assert "runner.py" not in shown
    assert "runner.py" in mail.ok("jobs", "show", first, "--all").out
    found = mail.ok("jobs", "show", first, "--json").json
    assert [(one["number"], one["what"]) for one in found["attempts"]] == [(1, "raised"), (2, "exhausted")]
    assert "in send" in found["attempts"][0]["traceback"]
    assert found["options"]["retry"] == {
        "type": "exponential", "initial_backoff": 0.0, "base": 2.0, "max_backoff": None, "max_attempts": 2,
    }  # fmt: skip

    ended = mail("jobs", "wait", first, second)
    assert (ended.code, ended.out.splitlines()[0]) == (3, f"{first} failed: ConnectionError: no way to user0")
    asked = mail("jobs", "retry", "--pool", "mail")
    assert (asked.code, "Retry 2 jobs?" in asked.err, "--yes" in asked.err) == (1, True, True)
    broken.clear()
    assert mail.ok("jobs", "retry", "--error", "user0").err == "1 job retried, of 1.\n", "one needs no asking"
    on(app, database_url, work)
    ended = mail("jobs", "wait", first, "--json")
    assert (ended.code, ended.json["jobs"][0]["result"]) == (0, "sent user0")
    refused = mail("jobs", "retry", first)
    assert (refused.code, "only what has failed or was canceled is; it is success." in refused.err) == (1, True)
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
    for verb in ("list", "retry", "cancel"):
        refused = mail("jobs", verb, "--pool", "mial")
        assert refused.code == 1
        assert refused.err == "error: The database knows no pool 'mial'.\n  fix: Name one of mail, slow.\n"
    assert mail.ok("jobs", "list", "--pool", "default").code == 0
    assert "'x' is not an id of a job" in mail("jobs", "show", "x").err
    unknown = "job_01jd3k4v5w6x7y8z9a0b1c2d3e"
    for command in (("show", unknown), ("retry", unknown), ("wait", unknown), ("cancel", job, unknown)):
        refused = mail("jobs", *command)
        assert (refused.code, f"There is no job {unknown}." in refused.err) == (1, True)
    assert mail.ok("jobs", "show", job, "--json").json["state"] == "pending", "nothing was done by half"
    for arguments in (("--since", "soon"), ("--state", "gone"), ("--since", "99999999999d")):
        assert mail("jobs", "list", *arguments).code == 2
    assert "--on-complete-error" not in mail.ok("jobs", "cancel", "--help").out
    assert mail("jobs", "cancel", "--on-complete-error", "x").code == 2
    offered = " ".join(mail.ok("jobs", "retry", "--help").out.split())
    assert "success and skipped go with --on-complete only" in offered
    assert "cannot be retried" in mail("jobs", "retry", "--state", "success").err
    for words in (("retry", "--on-complete", "--state", "success"), ("cancel", "--state", "running", "--yes")):
        assert mail.ok("jobs", *words).err == "There are no such jobs.\n"
    assert "Cancel 2 jobs?" in mail("jobs", "cancel", "--pool", "slow").err
    assert mail.ok("jobs", "cancel", "--pool", "slow", "--yes").err == "Asked for 2 jobs to be canceled.\n"

    text = '{"name": 5, "timeout": 9, "concurrency_key": "acme", "color": "red"}'
    change(database_url, "update {table}scheduled_job set options = {mark} where id = {mark}", JobId(job), text)
    shown = mail.ok("jobs", "show", job).out
    assert re.search(r"^broken +\{\"name\": 5\}$", shown, re.MULTILINE), shown
    assert re.search(r"^unread +\{\"color\": \"red\"\}$", shown, re.MULTILINE), shown
    assert mail.ok("jobs", "show", job, "--json").json["options"]["broken"] == {"name": 5}


def test_an_on_complete_that_failed_is_found_shown_and_called_again(mail: Console, database_url: str) -> None:
    broken.add("told")
    first, second = enqueue(mail, 2)
    on(app, database_url, work)
    found = mail.ok("jobs", "list", "--on-complete-error", "callback broke", "--json").json["jobs"]
    assert {job["id"] for job in found} == {first, second}
    assert mail.ok("jobs", "list", "--on-complete-error", "other", "--json").json["jobs"] == []
    shown = mail.ok("jobs", "show", first).out
    assert re.search(r"^on complete error +ValueError: callback broke$", shown, re.MULTILINE)
    assert re.search(r"^on complete 1 +raised ", shown, re.MULTILINE)
    assert re.search(r"^on complete 2 +exhausted ", shown, re.MULTILINE)
    assert shown.count('raise ValueError("callback broke")') == 2
    refused = mail("jobs", "retry", first)
    assert refused.code == 1
    assert "Its on_complete has failed: see --on-complete." in refused.err
    assert mail.ok("jobs", "retry", "--on-complete", first).err == f"The on_complete of {first} is called again.\n"
    broken.clear()
    again = mail.ok("jobs", "retry", "--on-complete", "--pool", "mail").err
    assert again == "The on_complete of 1 job is called again, of 1.\n"
    on(app, database_url, work)
    assert mail.ok("jobs", "list", "--on-complete-error", "", "--json").json["jobs"] == []
    refused = mail("jobs", "retry", "--on-complete", first)
    assert (refused.code, refused.err) == (
        1, f"The on_complete of {first} is not called again: it has not failed for good; the job is success.\n",
    )  # fmt: skip


def test_a_job_of_which_only_its_on_complete_is_left_is_not_canceled(mail: Console, database_url: str) -> None:
    broken.add("told")
    (job,) = enqueue(mail, 1, "patience=3600.0")
    on(app, database_url, work)
    refused = mail.ok("jobs", "cancel", job)
    assert refused.err == f"{job} is not canceled. Only its on_complete is left, and that still runs.\n"
    assert mail.ok("jobs", "cancel", job, "--json").json["jobs"] == [
        {"id": job, "state": "completing", "requested": False}
    ]
