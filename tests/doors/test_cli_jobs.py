"""The commands about jobs: list, show, retry, cancel, wait, and top."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import pytest
from flow.test_broken_jobs import change

from penstock import JobId

if TYPE_CHECKING:
    from doors.cli_fixtures import Console

pytest_plugins = ("doors.cli_fixtures",)

PROGRAM = """
from pathlib import Path
from typing import Any

from penstock import ActionCtx, App, MutationCtx, Retry, WorkId, WorkResult

app = App()
mail = app.workpool("mail", max_parallelism=3, default_retry=Retry(2, 0.0))
slow = app.workpool("slow", max_parallelism=0)


@app.action
async def go(ctx: ActionCtx, count: int) -> list[str]:
    pool = mail.with_options(
        retry=True, on_complete=told, on_complete_retry=Retry(2, 0.0), context={"a": 1}, name="greet",
        concurrency_key="acme",
    )
    await slow.enqueue_batch(ctx, send, [{"to": "later"}] * 2)
    return [await pool.enqueue(ctx, send, f"user{number}") for number in range(count)]


@app.internal_action
async def send(ctx: ActionCtx, to: str) -> str:
    if not Path("open").exists():
        raise ConnectionError(f"no way to {to}")
    return f"sent {to}"


@app.internal_mutation
async def told(ctx: MutationCtx, work_id: WorkId, result: WorkResult[str], context: Any) -> None:
    if Path("broken").exists():
        raise ValueError("callback broke")
"""


@pytest.fixture
def mail(console: Console, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Console:
    console.write("mail.py", PROGRAM)
    monkeypatch.setenv("DATABASE_URL", database_url)
    console.ok("migrate")
    return console


def enqueue(mail: Console, count: int) -> list[str]:
    jobs: list[str] = mail.ok("run", "go", f"count={count}", "--json").json
    return jobs


def work(mail: Console, *jobs: str) -> None:
    """Run a worker until these jobs have ended."""
    with mail.start("worker", PYTHONUNBUFFERED="1"):
        mail("jobs", "wait", *jobs, "--timeout", "60s")


def test_a_failed_job_is_shown_with_every_attempt(mail: Console) -> None:
    (job,) = enqueue(mail, 1)
    work(mail, job)
    shown = mail.ok("jobs", "show", job).out
    for text in (
        "state             failed",
        "attempt 1         raised",
        "attempt 2         exhausted",
        "on complete       mail:told",
        "name              greet",
        'context           {"a": 1}',
        "concurrency key   acme",
        "keep              86400.0",
        "ConnectionError: no way to user0",
    ):
        assert text in shown, shown
    assert shown.count("Traceback (most recent call last)") == 2
    assert "mail.py" in shown
    assert "runner.py" not in shown
    assert "runner.py" in mail.ok("jobs", "show", job, "--all").out
    found = mail.ok("jobs", "show", job, "--json").json
    assert [(one["number"], one["what"]) for one in found["attempts"]] == [(1, "raised"), (2, "exhausted")]
    assert "in send" in found["attempts"][0]["traceback"]
    assert found["options"]["retry"] == {
        "type": "exponential", "initial_backoff": 0.0, "base": 2.0, "max_backoff": None, "max_attempts": 2,
    }  # fmt: skip


def test_jobs_are_listed_by_what_they_are(mail: Console) -> None:
    jobs = enqueue(mail, 2)
    work(mail, *jobs)

    def listed(*filters: str) -> list[str]:
        return [job["id"] for job in mail.ok("jobs", "list", *filters, "--json").json["jobs"]]

    assert listed("--state", "failed") == jobs[::-1]
    assert listed("--error", "to user1") == [jobs[1]]
    assert len(listed("--pool", "slow")) == 2
    assert len(listed("--function", "send")) == len(listed("--function", "mail:send")) == 4
    assert listed("--name", "greet", "--since", "1h", "--limit", "1") == [jobs[1]]
    assert listed("--before", "1h") == listed("--since", "2100-01-01") == []
    assert len(mail.ok("jobs", "--pool", "mail", "--json").json["jobs"]) == 2, "the short spelling lists too"
    lines = mail.ok("jobs", "list", "--state", "failed").out.splitlines()
    assert (lines[1].split()[:5], "ConnectionError: no way to user1" in lines[2]) == (
        ["id", "function", "state", "attempt", "pool"], True,
    )  # fmt: skip
    for arguments in (("--since", "soon"), ("--state", "gone"), ("--since", "99999999999d")):
        assert mail("jobs", "list", *arguments).code == 2


def test_jobs_are_retried_by_id_and_waited_for(mail: Console) -> None:
    first, second = enqueue(mail, 2)
    assert mail("jobs", "wait", first, "--timeout", "0.01").code == 5
    work(mail, first, second)
    ended = mail("jobs", "wait", first, second)
    assert (ended.code, ended.out) == (3, f"{first} failed: ConnectionError: no way to user0\n{second} failed: ConnectionError: no way to user1\n")  # noqa: E501  # fmt: skip
    mail.write("open", "")
    assert mail.ok("jobs", "retry", first).err == f"{first} is retried.\n"
    work(mail, first)
    ended = mail("jobs", "wait", first, "--json")
    assert (ended.code, ended.json["jobs"][0]["result"]) == (0, "sent user0")
    shown = mail.ok("jobs", "show", first, "--json").json
    assert (shown["attempt"], [one["number"] for one in shown["attempts"]]) == (1, [1, 2])
    refused = mail("jobs", "retry", first)
    assert (refused.code, "only what has failed or was canceled is; it is success." in refused.err) == (1, True)
    assert mail("jobs", "retry", second, first, "--json").json["jobs"] == [
        {"id": second, "state": "pending", "retried": True},
        {"id": first, "state": "success", "retried": False},
    ]


def test_many_are_retried_by_filter_once_somebody_is_sure(mail: Console) -> None:
    jobs = enqueue(mail, 3)
    work(mail, *jobs)
    asked = mail("jobs", "retry", "--pool", "mail")
    assert (asked.code, "Retry 3 jobs?" in asked.err, "--yes" in asked.err) == (1, True, True)
    assert mail.ok("jobs", "retry", "--error", "user2").err == "1 job retried, of 1.\n", "one needs no asking"
    done = mail.ok("jobs", "retry", "--pool", "mail", "--function", "send", "--yes", "--json").json
    assert (done["found"], done["retried"]) == (2, jobs[:2])
    assert mail.ok("jobs", "retry", "--state", "canceled").err == "There are no such jobs.\n"
    assert len(mail.ok("jobs", "list", "--state", "pending", "--pool", "mail", "--json").json["jobs"]) == 3


def test_many_are_canceled_by_filter(mail: Console) -> None:
    (job,) = enqueue(mail, 1)
    assert "Cancel 2 jobs?" in mail("jobs", "cancel", "--pool", "slow").err
    assert mail.ok("jobs", "cancel", "--pool", "slow", "--yes").err == "Asked for 2 jobs to be canceled.\n"
    assert mail.ok("jobs", "cancel", "--state", "running", "--yes").err == "There are no such jobs.\n"
    assert mail.ok("jobs", "cancel", job, "--json").json["jobs"] == [{"id": job, "state": "pending", "requested": True}]
    work(mail, job)
    assert mail("jobs", "wait", job).code == 4
    assert "has ended already: canceled." in mail.ok("jobs", "cancel", job).err


def test_which_jobs_are_meant_is_to_be_said_once(mail: Console) -> None:
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
    unknown = "job_01jd3k4v5w6x7y8z9a0b1c2d3e"
    for command in (("retry", unknown), ("wait", unknown), ("cancel", job, unknown)):
        refused = mail("jobs", *command)
        assert (refused.code, f"There is no job {unknown}." in refused.err) == (1, True)
    assert mail.ok("jobs", "show", job, "--json").json["state"] == "pending", "nothing was done by half"


# ----- top


def test_top_shows_pools_and_workers_once(mail: Console) -> None:
    jobs = enqueue(mail, 2)
    with mail.start("worker", PYTHONUNBUFFERED="1") as worker:
        mail("jobs", "wait", *jobs, "--timeout", "60s")
        shown = mail.ok("top", "--once").out
        seen = mail.ok("top", "--json").json
        worker.tell(signal.SIGTERM)
        worker.end()
    rows = [line.split() for line in shown.splitlines()]
    assert ["pool", "limit", "running", "ready", "scheduled", "ended/s", "failed", "waits"] in rows
    pools = {pool["name"]: pool for pool in seen["pools"]}
    (ended,) = (pool for pool in mail.ok("top", "--json").json["pools"] if pool["name"] == "mail")
    assert (ended["failed"], ended["ended"] > 0) == (2, True), "its worker has stopped, and written what it counted"
    assert list(pools) == ["default", "mail", "slow"]
    assert (pools["slow"]["ready"], pools["slow"]["limit"], pools["default"]["limit"]) == (2, 0, None)
    assert pools["slow"]["waits"] > 0
    assert len(seen["workers"]) == 1
    assert re.search(r"mail:send +job_\w{26} +slow +waits", shown)


def test_top_without_workers_or_jobs(mail: Console) -> None:
    shown = mail.ok("top").out
    assert "no worker runs" in shown
    assert "nothing runs, nothing is ready" in shown


def test_an_on_complete_that_failed_is_found_shown_and_called_again(mail: Console) -> None:
    mail.write("open", "")
    broken = mail.write("broken", "")
    first, second = enqueue(mail, 2)
    work(mail, first, second)
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
    broken.unlink()
    again = mail.ok("jobs", "retry", "--on-complete", "--pool", "mail").err
    assert again == "The on_complete of 1 job is called again, of 1.\n"
    work(mail, first, second)
    assert mail.ok("jobs", "list", "--on-complete-error", "", "--json").json["jobs"] == []
    refused = mail("jobs", "retry", "--on-complete", first)
    assert (refused.code, refused.err) == (
        1, f"The on_complete of {first} is not called again: it has not failed for good; the job is success.\n",
    )  # fmt: skip


def test_what_a_cancel_and_a_retry_cannot_do_is_not_offered(mail: Console) -> None:
    assert "--on-complete-error" not in mail.ok("jobs", "cancel", "--help").out
    assert mail("jobs", "cancel", "--on-complete-error", "x").code == 2
    offered = " ".join(mail.ok("jobs", "retry", "--help").out.split())
    assert "success and skipped go with --on-complete only" in offered
    assert "cannot be retried" in mail("jobs", "retry", "--state", "success").err
    assert mail.ok("jobs", "retry", "--on-complete", "--state", "success").err == "There are no such jobs.\n"


def test_a_job_that_has_ended_but_for_its_on_complete_is_not_canceled(
    mail: Console,
) -> None:
    """It would run all the same, so nobody is told otherwise."""
    mail.write("mail.py", PROGRAM.replace("on_complete_retry=Retry(2, 0.0)", "on_complete_retry=Retry(2, 3600.0)"))
    mail.write("open", "")
    mail.write("broken", "")
    (job,) = enqueue(mail, 1)
    with mail.start("worker", PYTHONUNBUFFERED="1", PENSTOCK_LOG_LEVEL="info") as worker:
        worker.wait_for("callback broke")
        worker.tell(signal.SIGTERM)
        worker.end()
    refused = mail.ok("jobs", "cancel", job)
    assert refused.err == f"{job} is not canceled. Only its on_complete is left, and that still runs.\n"
    assert mail.ok("jobs", "cancel", job, "--json").json["jobs"] == [
        {"id": job, "state": "completing", "requested": False}
    ]


def test_what_a_job_was_asked_for_that_cannot_be_is_shown(mail: Console, database_url: str) -> None:
    (job,) = enqueue(mail, 1)
    text = '{"name": 5, "timeout": 9, "concurrency_key": "acme", "color": "red"}'
    change(database_url, "update {table}scheduled_job set options = {mark} where id = {mark}", JobId(job), text)
    shown = mail.ok("jobs", "show", job).out
    assert re.search(r"^broken +\{\"name\": 5\}$", shown, re.MULTILINE), shown
    assert re.search(r"^unread +\{\"color\": \"red\"\}$", shown, re.MULTILINE), shown
    assert mail.ok("jobs", "show", job, "--json").json["options"]["broken"] == {"name": 5}
