"""What pages of the dashboard say of a call, in whichever process it ran: its timeline, its log events, and numbers."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from doors.board_fixtures import HERE, Board, board
from stage.feed import write

from penstock import (
    ActionCtx,
    App,
    Id,
    Index,
    JobFilter,
    MutationCtx,
    QueryCtx,
    Retry,
    SyncTaskCtx,
    Table,
    WorkId,
    WorkResult,
)
from penstock.store.nouns.migration_files import FileProgress
from penstock.testing import TestApp, TestClock

app = App()
mail = app.workpool("mail", max_parallelism=3)
log = logging.getLogger("shop.mail")


class Visit(Table):
    who: str

    by_who = Index("who")
    by_who_and_time = Index("who", "creation_time")


class Archive(Table):
    """Nobody reads or writes it."""

    year: int

    by_year = Index("year")


@app.mutation
async def visit(ctx: MutationCtx, who: str) -> Id[Visit]:
    row = await ctx.db.insert(Visit(who=who))
    await mail.with_options(on_complete=told).enqueue(ctx, send, row=row, to=who)
    log.warning("wrote to %s", who)
    return row


@app.query
async def visits(ctx: QueryCtx) -> int:
    return len(await ctx.db.query(Visit).take(9))


@app.internal_action
async def send(ctx: ActionCtx, row: Id[Visit], to: str) -> str:
    log.warning('{"to": "%s", "password": "hunter2"}', to)
    await ctx.run_query(visits)
    if to == "nobody":
        raise ValueError("no mailbox")
    return f"sent {row}"


@app.internal_mutation
async def told(ctx: MutationCtx, work_id: WorkId, result: WorkResult[str], context: Any) -> None:
    log.error("ended", exc_info=ValueError("told with its traceback"))
    await ctx.scheduler.run_after(timedelta(0), later)


@app.internal_mutation
async def later(ctx: MutationCtx) -> None:
    await ctx.scheduler.run_after(timedelta(0), fail)


@app.internal_action
async def fail(ctx: ActionCtx) -> None:
    raise ValueError("<b>no</b>")


@app.reactive_task(Visit)
def greet(ctx: SyncTaskCtx[Visit]) -> None:
    ctx.get_document()
    logging.getLogger().warning("greeted in a thread")


@app.outbox(Visit, retry=Retry(max_attempts=1), on_failure="park")
async def refuse(ctx: ActionCtx, row: Visit) -> None:
    log.warning("handed over")
    raise ValueError("no mail today")


@pytest.fixture(autouse=True)
def _logged() -> Iterator[None]:
    log = logging.getLogger("penstock")
    before = log.level
    log.setLevel(logging.INFO)
    yield
    log.setLevel(before)


async def test_a_call_is_followed_from_its_request_to_the_last_job(database_url: str) -> None:
    is_sqlite = database_url.startswith("sqlite")
    async with board(app, database_url) as one:
        test, show = one.test, one.get
        body = {"path": visit.name, "args": {"who": "Ada"}}
        headers = {"x-request-id": "request-1"}
        called = await one.here.post(f"{HERE}/api/mutation", json=body, headers=headers)
        row = called.json()["value"]
        await test.run_until_idle(raise_errors=False)
        await test.run_mutation(visit, who="Grace")  # by nobody's request: it begins no trace
        jobs = {one.function: one for one in await test.jobs() if "Grace" not in str(one.args)}
        trace = (jobs[send.name].options.trace or "")[3:35]
        assert trace == (jobs[fail.name].options.trace or "")[3:35]

        whole = [f"{one.name}, attempt 1" for one in (send, later, fail)]
        for of in ("request-1", trace, jobs[later.name].id, row):
            shown = await show(f"/timeline?of={of}")
            assert all(one in shown for one in whole), of
            assert "POST /api/mutation" in shown, of
            assert f"on_complete {told.name}" in shown, of
            assert "ValueError: <b>no</b>" in shown, of
            assert f"enter for task {__name__}:greet" in shown, of
            assert f"{__name__}:greet, attempt 1" in shown, of
            assert f"insert for outbox {__name__}:refuse is parked" in shown, of
            assert "Grace" not in shown
        assert "Nothing is known of it" in await show("/timeline?of=unknown")
        of_job = await show(f"/logs?level=warning&function=fail&event=job.&job={jobs[fail.name].id}")
        assert "job.failed" in of_job
        assert "http.request" not in of_job

        (waiting,) = await test.jobs(where=JobFilter(state="pending"))
        assert (waiting.function, waiting.options.trace) == (send.name, None)
        filled = FileProgress("backfill", rows=5, total=20, seconds=2.0, at="12:00")
        await test.engine.store.migration_files.begin("0001_rename", filled)
        schema, health = await show("/schema"), await show("/health")
        assert "0001_rename : backfill: 5 of 20 rows, 2 a second, 0:00:06 left; last batch 12:00" in schema
        assert "redundant: by_who_and_time begins with its columns" in schema
        assert ("SQLite does not count" in schema and " 1 note " in schema) == is_sqlite
        assert ("by_year year no unused" in schema) != is_sqlite
        await write(test.engine.store, "drop index visit_by_who")
        assert "by_who who no not in the database" in await show("/schema")
        assert "PEN006" in health


async def test_two_servers_show_what_a_worker_ran_and_logged(database_url: str) -> None:
    clock, token = TestClock(), "top-secret-token-of-the-test"
    async with (
        TestApp(app, database_url, clock=clock, dev=True, admin_token=token) as first,
        TestApp(app, database_url, clock=clock, dev=True, admin_token=token) as second,
        TestApp(app, database_url, clock=clock, dev=True, admin_token=token) as worker,
    ):
        looking = [Board(first), Board(second)]
        for who in ("Ada", "nobody"):
            body = {"path": visit.name, "args": {"who": who}}
            headers = {"x-request-id": f"r-{who}"}
            assert (await looking[0].here.post(f"{HERE}/api/mutation", json=body, headers=headers)).status_code == 200
        await worker.run_until_idle(raise_errors=False)
        await worker.relay.drain()
        (ada,) = [one for one in await first.jobs() if one.function == send.name and one.args["to"] == "Ada"]
        (greeted, *_) = [one for one in await first.jobs() if one.function == f"{__name__}:greet"]
        clock.advance(timedelta(seconds=5))  # each process writes what it has counted
        for book in (first.engine, worker.engine):
            await book.write_logbook()
        await second.run_query(visits)  # its own are shown at once

        for see in (one.get for one in looking):
            overview = await see("/")
            assert re.search(r"Ended 0\.[1-9]/s", overview), overview
            assert re.search(r"Failed 3 ", overview), overview
            assert re.search(r"Latency p95 [\d.]+ (µs|ms|s)", overview), overview
            functions = await see("/functions")
            for function, runs, errors in ((visit.name, 2, 0), (send.name, 2, 1), (f"{__name__}:greet", 2, 0)):
                found = re.search(rf"{function} \w+ .*? (\d+) (\d+) (\d+) [\d.]+ (µs|ms|s) ", functions)
                assert found is not None, (function, functions)
                assert found.group(1, 2, 3) == (str(runs), str(errors), "0"), function
            shown = await see(f"/functions/{send.name}")
            assert "ValueError: no mailbox" in shown
            assert "hunter2" not in shown
            for page in (f"/jobs/{ada.id}", f"/timeline?of={ada.id}", "/timeline?of=r-Ada", f"/logs?job={ada.id}"):
                text = await see(page)
                assert '"to": "Ada"' in text, page
                assert "hunter2" not in text, page
                assert '"to": "nobody"' not in text, page
                assert "ended" in text, page  # its on_complete logs as well
            assert "wrote to Ada" in await see("/timeline?of=r-Ada")
            assert "told with its traceback" in await see(f"/functions/{told.name}")
            assert "greeted in a thread" in await see(f"/jobs/{greeted.id}")
            assert "handed over" in await see(f"/outboxes/outbox?outbox={__name__}:refuse")
            logs = await see("/logs")
            assert all(one in logs for one in ("http.request", "job.failed", "shop.mail", "root"))
