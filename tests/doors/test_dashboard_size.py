"""Pages of the dashboard over many rows: what they read does not grow with the tables, on both stores."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from html import unescape
from typing import Any

import asyncpg
import httpx
import pytest
from stage.yard import app

from penstock import asgi_app
from penstock.store.sqlite.functions import register_functions
from penstock.store.sqlite.session import SqliteSession
from penstock.testing import TestApp

OPENED = app
FEW, MANY, COUNTED = 600, 4_500, 100
HERE = "http://localhost"
STEPS = 100  # of SQLite's machine, between two calls of a handler
PAGES = (
    "/", "/functions", "/live", "/crons", "/schema", "/audit", "/logs", "/timeline",
    "/data", "/data/parcel_of_yard", "/data/parcel_of_yard?order=asc", "/data/parcel_of_yard?where=weight == 3",
    "/work", "/work?state=failed", "/work?pool=default&function=ship",
    "/tasks", "/tasks/task?task=ship", "/tasks/task?task=ship&state=failed", "/tasks/task?task=ship&error=no way",
    "/outboxes", "/outboxes/outbox?outbox=ledger", "/outboxes/outbox?outbox=files",
)  # fmt: skip
# These read all jobs, each once: on PostgreSQL a row for a job, on SQLite at most so many steps.
ALL_READ = {
    "/tasks/task?task=ship&error=rare": 25,
    "/timeline?of=0123456789abcdef0123456789abcdef": 8,
    "/timeline?of=parcel_of_yard_00000000000000000000000007": 14,
}

# Rows by their numbers, as a program of another language inserts them: triggers capture them for the task and outboxes.
NUMBERS = "with recursive numbers (n) as (select {first} union all select n + 1 from numbers where n < {last}) "
ROWS = (
    "insert into parcel_of_yard (id, creation_time, name, password, weight) {numbers}"
    "select {id}, {now}, 'n' || n, 'p', n % 7 from numbers"
)
JOB = "id, pool, function, kind, args, priority, run_at, options, attempt, enqueued_at"
END = (
    "insert into {penstock}finished_job ({day}{job}, started_at, finished_at, expires_at, state, error)"
    " select {place}{job}, run_at, run_at, {later}, '{state}', {error} from {penstock}ready_job where seq % 3 = {part}"
)
ENDED = "delete from {penstock}ready_job where seq % 3 = {part}"
PARK = (
    "insert into {penstock}outbox_message (outbox, seq, key, state, interest, kind, row_key, after, changed_at, error)"
    " select (select id from {penstock}outbox where name = 'files'), seq, key, 'parked', 1, 'enter', key, after,"
    " changed_at, 'no way' from {penstock}change where key is not null on conflict do nothing"
)
OF_SQLITE = {
    "penstock": "penstock_", "now": "'2030-01-01T00:00:00.000000Z'", "later": "'2099-01-01T00:00:00.000000Z'",
    "day": "", "id": "'parcel_of_yard_' || substr('00000000000000000000000000' || n, -26)",
}  # fmt: skip
OF_POSTGRES = {
    "penstock": "penstock.", "now": "now()", "later": "timestamptz '2099-01-01'", "day": "day, ",
    "id": "'parcel_of_yard_' || lpad(n::text, 26, '0')",
}  # fmt: skip


class Read:
    """What the pages read: on PostgreSQL rows that scans visit, on SQLite steps of its machine."""

    number = 0


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    seen, of_sqlite, of_postgres = Read(), SqliteSession.fetch, asyncpg.Connection.fetch

    def step() -> int:
        seen.number += STEPS
        return 0

    async def fetch_sqlite(self: Any, statement: Any, args: Any = ()) -> Any:
        connection = self._use()
        connection.set_progress_handler(step, STEPS)
        try:
            return await of_sqlite(self, statement, args)
        finally:
            connection.set_progress_handler(None, STEPS)

    async def fetch_postgres(self: Any, sql: str, *args: Any, **options: Any) -> Any:
        if re.match(r"\s*(select|with)\b", sql):
            ((found,),) = await of_postgres(self, f"explain (analyze, format json) {sql}", *args)
            seen.number += sum(visited(json.loads(found)[0]["Plan"]))
        return await of_postgres(self, sql, *args, **options)

    monkeypatch.setattr(SqliteSession, "fetch", fetch_sqlite)
    monkeypatch.setattr(asyncpg.Connection, "fetch", fetch_postgres)
    for module in ("api.pools.activity", "dashboard.pages.overview", "dashboard.pages.tasks", "dashboard.pages.work"):
        monkeypatch.setattr(f"penstock.{module}.MOST_COUNTED", COUNTED)
    for module in ("dashboard.pages.outboxes", "dashboard.pages.data"):
        monkeypatch.setattr(f"penstock.{module}._MOST_COUNTED", COUNTED)
    monkeypatch.setattr("penstock.store.nouns.records._NEAR", 3 * COUNTED)
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
    words = OF_SQLITE if url.startswith("sqlite") else OF_POSTGRES
    numbers = NUMBERS.format(first=first, last=last)
    await run(url, [ROWS.format(numbers=numbers, **words)])
    await test.plan()
    ends = [
        text.format(job=JOB, state=state, error=error, part=part, place=place if words["day"] else "", **words)
        for part, state, error, place in ((1, "failed", "'no way'", "-1, "), (2, "success", "null", "5, "))
        for text in (END, ENDED)
    ]
    await run(url, [*ends, PARK.format(**words), "analyze"])


async def run(url: str, statements: list[str]) -> None:
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
            register_functions(file)
            for one in statements:
                file.execute(one)
        file.close()
        return
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
async def test_pages_read_no_more_of_large_tables_than_of_small_ones(database_url: str, read: Read) -> None:
    async with TestApp(app, database_url, dev=True) as test, looking(test) as http:
        seen = []
        for first, last in ((1, FEW), (FEW + 1, MANY)):
            await fill(test, first, last)
            found, sizes = {}, {}
            for path in PAGES:
                read.number = 0
                page = await http.get(path)
                assert page.status_code == 200, path
                found[path], sizes[path] = read.number, len(page.text)
                for words in re.findall(r'href="\?([^"]*\b(?:after|before)=[^"]*)"', page.text):
                    following, read.number = f"{path.partition('?')[0]}?{unescape(words)}", 0
                    assert (await http.get(following)).status_code == 200, following
                    found[f"{path}, next"] = read.number
            assert max(sizes.values()) < 60_000, sizes
            seen.append(found)
        few, many = seen
        assert few.keys() == many.keys()
        grown = {path: (few[path], many[path]) for path in few if many[path] > 1.2 * few[path] + 600}
        assert not grown
        for path, steps in ALL_READ.items():
            read.number = 0
            assert (await http.get(path)).status_code == 200, path
            assert read.number <= MANY * (steps if database_url.startswith("sqlite") else 1), path
        assert {"/data/parcel_of_yard, next", "/work, next", "/tasks/task?task=ship, next"} <= many.keys()
