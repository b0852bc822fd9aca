"""What people do on the dashboard about work, reactive tasks, outboxes and crons, and what its pages read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from html import unescape
from typing import Any

import asyncpg
import httpx
import pytest
from doors.board_fixtures import HERE, board
from programs.everynoun import app, failing, mail, put, send, texts

from penstock import asgi_app
from penstock.api.pools.activity import look
from penstock.testing import TestApp

MOST_LINKS = 120


@pytest.fixture(autouse=True)
def _failing() -> None:
    failing.clear()
    failing.add("bad")


async def test_jobs_are_found_and_counted_before_they_are_changed(database_url: str) -> None:
    """What each act does is tried in `test_operations`, here and below."""
    async with board(app, database_url) as one:
        for to in ("bad", "bad", "good"):
            await mail.enqueue(one.test, send, to=to)
        await one.test.run_until_idle(raise_errors=False)
        failed = {"state": "failed", "function": "send", "since": "1 hour", "error": "no way"}
        assert (await one.get("/work", **failed)).count("ConnectionError: no way for bad") == 2
        asked = await one.ask("/work", "retry all", failed)
        assert "Retry 2 jobs? state failed function send since 1 hour error no way" in asked, "it says which"
        told = await one.act("/work", "retry all", sure="yes")
        assert told == "Not done: This would change all jobs. Filter the jobs first."
        keyed = texts.with_options(concurrency_key="k")
        _, job = [await keyed.enqueue(one.test, send, to="good") for _ in range(2)]
        await one.act("/work", "pause", {"name": "a job's"}, of="texts")
        page = await one.get("/work", pool="texts")
        assert "Slots held 0 of 5 Rate limit 600 per min, burst 20 Limit of a key 1" in page
        page = await one.get(f"/jobs/{job}")
        assert "start first. The pool texts is paused. Of its concurrency key 0 of at most 1 jobs run, 2 wait." in page


async def test_pools_are_changed_in_bulk_by_a_part_of_their_names_and_that_is_seen_at_once(
    monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    monkeypatch.setattr("penstock.dashboard.activity._AGAIN", math.inf)  # however lately the pools were read
    async with board(app, database_url) as one:
        assert "Pool texts is paused" not in await one.get("/")
        texts_only = {"pools": "ext"}
        assert await one.act("/work", "pause", texts_only) == "Pause 1 pool: texts?"
        await one.act("/work", "pause", texts_only, sure="yes")
        needs = await one.get("/")
        assert ("Pool texts is paused" in needs, "Pool mail is paused" in needs) == (True, False)
        assert await one.act("/work", "limit", limit="3") == "Set the limit of 2 pools to 3: mail, texts?"
        assert await one.act("/work", "limit", limit="3", sure="yes") == "2 pools are limited to 3 jobs at once."
        assert await one.act("/work", "resume", sure="yes") == "2 pools are resumed."
        found = (await look(one.test.engine.store, one.test.clock.now())).pools
        assert [(row.max_parallelism, row.paused) for row in found] == [(3, False)] * 2
        assert "No pool matches." in await one.act("/work", "pause", {"pools": "nobody"}, sure="yes")
        await one.get("/")
        await mail.enqueue(one.test, send, to="good")
        assert "Ready 0 may start now" in await one.get("/"), "pages share what was read"


async def test_each_link_leads_to_a_page(database_url: str) -> None:
    async with board(app, database_url) as one:
        await one.test.run_mutation(put, ["good", "bad"])
        await mail.enqueue(one.test, send, to="bad")
        await one.test.run_until_idle(raise_errors=False)
        seen, found = {"/"}, ["/"]
        while found and len(seen) < MOST_LINKS:
            new = await one.links(found.pop())
            found += sorted(new - seen)
            seen |= new
        of = {link.partition("?")[0].strip("/").partition("/")[0] for link in seen}
        assert of >= {"data", "functions", "health", "jobs", "outboxes", "schema", "tasks", "timeline", "work"}
        assert await one.links("/health") >= {"/tasks/task?task=ship", "/outboxes/outbox?outbox=ledger"}
        rows = (link for link in seen if link.startswith("/tasks/row?"))
        for row in rows:
            assert any(link.startswith("/data/parcel_of_yard/row?") for link in await one.links(row)), row


async def test_tasks_and_their_rows_are_explained_and_changed(database_url: str) -> None:
    async with board(app, database_url) as one:
        _, bad, _ = await one.test.run_mutation(put, ["good", "bad", "good"])
        await one.test.run_until_idle(raise_errors=False)
        page = await one.get("/tasks/task", task="ship", state="failed")
        assert "Runs rows of which weight > 0 Again if these change password" in page
        page = await one.get("/tasks/row", task="ship", key=bad)
        assert "weight > 0 is true: weight is 1" in page
        assert re.search(r"a row that began to match, and failed at [\d-]+ [\d:]+ UTC : ConnectionError", page)
        jobs = await one.get("/work", function="ship")
        (job,) = await one.test.jobs("failed")
        assert '"after": "{\\"password\\": \\"••••••\\"}"' in await one.get(f"/jobs/{job.id}")
        assert "hush-hush" not in page + jobs + await one.get(f"/jobs/{job.id}")
        assert await one.act("/tasks/task", "retry", {"task": "ship", "state": "failed"}) == "Retry 1 row?"
        await one.act("/tasks/task", "pause", {"task": "ship"})
        await one.act("/tasks/row", "retry", {"task": "ship", "key": bad}, sure="yes")
        assert "The task is paused" in await one.get("/tasks/row", task="ship", key=bad)


async def test_messages_are_retried_and_skipped_and_outboxes_moved_and_rebuilt(database_url: str) -> None:
    async with board(app, database_url) as one:
        await one.test.relay.drain()
        await one.test.run_mutation(put, ["bad", "good"])
        for _ in range(2):
            one.test.clock.advance(timedelta(seconds=2))
            await one.test.relay.drain()
        assert re.search(r"Act ledger .* halted .* files .* counts ", await one.get("/outboxes"))
        assert "Outbox ledger is halted" in await one.get("/")
        page = await one.get("/outboxes/outbox", outbox="ledger")
        assert "Messages wait for one whose attempts are used up." in page
        assert "hush-hush" not in page
        ledger, files = {"outbox": "ledger"}, {"outbox": "files"}
        (bad,) = (await app.outboxes.messages(one.test, "files")).messages
        skip = {"number": str(bad.number), "reason": "by hand"}
        await one.act("/outboxes/outbox", "skip", files, sure="yes", **skip)
        assert "Not done:" in await one.act("/outboxes/outbox", "skip", files, sure="yes", **skip)
        asked = "Move ledger? It has 2 messages to deliver. Some are skipped, or delivered again."
        assert await one.act("/outboxes/outbox", "move", ledger, to="beginning") == asked


async def test_crons_are_told_in_words_and_run_by_hand(database_url: str) -> None:
    async with board(app, database_url) as one:
        assert "remind At 09:00 on Monday through Friday Europe/Prague" in await one.get("/crons")
        assert "remind runs now, as job" in await one.act("/crons", "run", cron="remind")
        await one.test.run_until_idle()
        page = await one.get("/crons/cron", cron="remind")
        assert re.search(r"Next times 2030-01-0\d 08:00:00 UTC 2030-01-0\d 08:00:00 UTC", page)
        await one.act("/crons/cron", "pause", {"cron": "remind"})
        assert "none while it is paused" in await one.get("/crons/cron", cron="remind")
        acts = [(it.act, (it.outcome or "")[:9]) for it in await one.test.engine.store.audit.list(10)]
        assert acts == [("Cron: pause", "remind is"), ("Crons: run", "remind ru")]


async def test_who_may_only_look_gets_no_forms_and_changes_nothing() -> None:
    async with board(app) as one, aclosing(await one.signed_in("dashboard:look")) as http:
        await one.test.run_mutation(put, ["good"])
        for path, act in (
            ("/work?pool=mail", "cancel all"),
            ("/tasks/task?task=ship", "pause"),
            ("/outboxes/outbox?outbox=counts", "rebuild"),
            ("/crons", "run"),
        ):
            page = await http.get(path)
            assert page.status_code == 200
            assert 'name="act"' not in page.text
            assert (await http.post(path, data={"act": act, "sure": "yes"})).status_code == 403
        assert await one.test.engine.store.audit.list(1) == []


# ----- pages over many rows

OPENED = app
FEW, MANY, COUNTED = 600, 4_500, 100
PAGES = (
    "/", "/functions", "/live", "/crons", "/schema", "/audit", "/logs", "/timeline",
    "/data", "/data/parcel_of_yard", "/data/parcel_of_yard?order=asc", "/data/parcel_of_yard?where=weight == 3",
    "/work", "/work?state=failed", "/work?pool=default&function=ship",
    "/tasks", "/tasks/task?task=ship", "/tasks/task?task=ship&state=failed", "/tasks/task?task=ship&error=no way",
    "/outboxes", "/outboxes/outbox?outbox=ledger", "/outboxes/outbox?outbox=files",
)  # fmt: skip
# Rows by their numbers, as a program of another language inserts them: triggers capture them for the task and outboxes.
NUMBERS = "with recursive numbers (n) as (select {first} union all select n + 1 from numbers where n < {last}) "
ROWS = (
    "insert into parcel_of_yard (id, creation_time, name, password, weight) {numbers}"
    "select 'parcel_of_yard_' || lpad(n::text, 26, '0'), now(), 'n' || n, 'p', n % 7 from numbers"
)
JOB = "id, pool, function, kind, args, priority, run_at, options, attempt, enqueued_at"
END = (
    "insert into penstock.finished_job (day, {job}, started_at, finished_at, expires_at, state, error)"
    " select {day}, {job}, run_at, run_at, timestamptz '2099-01-01', '{state}', {error}"
    " from penstock.ready_job where seq % 3 = {part}"
)
ENDED = "delete from penstock.ready_job where seq % 3 = {part}"
PARK = (
    "insert into penstock.outbox_message (outbox, seq, key, state, interest, kind, row_key, after, changed_at, error)"
    " select (select id from penstock.outbox where name = 'files'), seq, key, 'parked', 1, 'enter', key, after,"
    " changed_at, 'no way' from penstock.change where key is not null on conflict do nothing"
)


class Read:
    """The rows that scans visit for the pages."""

    number = 0


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    seen, of_postgres = Read(), asyncpg.Connection.fetch

    async def fetch_postgres(self: Any, sql: str, *args: Any, **options: Any) -> Any:
        if re.match(r"\s*(select|with)\b", sql):
            ((found,),) = await of_postgres(self, f"explain (analyze, format json) {sql}", *args)
            seen.number += sum(visited(json.loads(found)[0]["Plan"]))
        return await of_postgres(self, sql, *args, **options)

    monkeypatch.setattr(asyncpg.Connection, "fetch", fetch_postgres)
    for module in ("api.pools.activity", "dashboard.pages.overview", "dashboard.pages.tasks", "dashboard.pages.work"):
        monkeypatch.setattr(f"penstock.{module}.MOST_COUNTED", COUNTED)
    for module in ("dashboard.pages.outboxes", "dashboard.pages.data"):
        monkeypatch.setattr(f"penstock.{module}._MOST_COUNTED", COUNTED)
    for name in ("records._NEAR", "jobs.LOOKED_AT"):
        monkeypatch.setattr(f"penstock.store.nouns.{name}", 3 * COUNTED)
    monkeypatch.setattr("penstock.dashboard.activity._AGAIN", 1e-9)  # each page reads the pools by itself
    return seen


def visited(plan: dict[str, Any]) -> Iterator[int]:
    if "Relation Name" in plan:
        rows = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        yield int(rows * plan["Actual Loops"])
    for below in plan.get("Plans", ()):
        yield from visited(below)


async def fill(test: TestApp, first: int, last: int) -> None:
    """Rows with these numbers, and a parked message each. Of their jobs a third wait, failed, or are done each."""
    url = test.config.database
    await run(url, [ROWS.format(numbers=NUMBERS.format(first=first, last=last))])
    await test.plan()
    ends = [
        text.format(job=JOB, state=state, error=error, part=part, day=day)
        for part, state, error, day in ((1, "failed", "'no way'", -1), (2, "success", "null", 5))
        for text in (END, ENDED)
    ]
    await run(url, [*ends, PARK, "analyze"])


async def run(url: str, statements: list[str]) -> None:
    connection = await asyncpg.connect(url)
    for one in statements:
        await connection.execute(one)
    await connection.close()


@asynccontextmanager
async def looking(test: TestApp) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(asgi_app(app, backend=test, dashboard=True), client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url=f"{HERE}/dashboard") as http:
        yield http


@pytest.mark.long
async def test_pages_read_no_more_of_large_tables_than_of_small_ones(postgres_url: str, read: Read) -> None:
    async with TestApp(app, postgres_url, dev=True) as test, looking(test) as http:
        seen = []
        for first, last in ((1, FEW), (FEW + 1, MANY)):
            await fill(test, first, last)
            found = {}
            for path in PAGES:
                read.number = 0
                page = await http.get(path)
                assert page.status_code == 200, path
                found[path] = read.number
                assert len(page.text) < 60_000, path
                for words in re.findall(r'href="\?([^"]*\b(?:after|before)=[^"]*)"', page.text):
                    following, read.number = f"{path.partition('?')[0]}?{unescape(words)}", 0
                    assert (await http.get(following)).status_code == 200, following
                    found[f"{path}, next"] = read.number
            seen.append(found)
        few, many = seen
        assert few.keys() == many.keys()
        grown = {path: (few[path], many[path]) for path in few if many[path] > 1.2 * few[path] + 600}
        assert not grown
        assert {"/data/parcel_of_yard, next", "/work, next", "/tasks/task?task=ship, next"} <= many.keys()
