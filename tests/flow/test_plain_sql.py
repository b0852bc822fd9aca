"""Work that is enqueued in plain SQL, as programs in other languages do: it runs as if a pool had enqueued it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from stage.guests import sqlite_file

from penstock import (
    ActionCtx,
    App,
    Finished,
    JobId,
    JobState,
    MutationCtx,
    QueryCtx,
    Retry,
    Success,
    Table,
    WorkId,
    Workpool,
    WorkResult,
)
from penstock.clock import SystemClock
from penstock.jobs.job import job_id, job_uuid
from penstock.jobs.order import rank
from penstock.pools.rates import TokenBucket
from penstock.store.nouns.jobtext import options_of
from penstock.testing import TestApp, TestClock

app = OPENED = App()
sms = app.workpool("sms", max_parallelism=2)
ageing = app.workpool("ageing", ageing=timedelta(minutes=5))
slow = app.workpool("slow", rate_limit=TokenBucket(rate=1, period=timedelta(minutes=1)))

sent: list[str] = []
failures: list[Exception] = []


class Told(Table, name="told"):
    work: str
    what: str


@app.internal_action
async def send(ctx: ActionCtx, to: str, times: int = 1) -> str:
    sent.append(to * times)
    if failures and to == "a":
        raise failures.pop(0)
    return f"sent to {to}"


@app.internal_mutation
async def note(ctx: MutationCtx, what: str) -> None:
    await ctx.db.insert(Told(work="", what=what))


@app.internal_mutation
async def told(ctx: MutationCtx, work_id: WorkId, result: WorkResult[str], context: Any) -> None:
    await ctx.db.insert(Told(work=work_id, what=f"{result.kind} {context}"))


@app.internal_query
async def all_told(ctx: QueryCtx) -> list[tuple[str, str]]:
    return [(row.work, row.what) for row in await ctx.db.query(Told).collect()]


SEND, NOTE, TOLD = send.name, note.name, told.name


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    sent.clear()
    failures.clear()


class Raw:
    """A connection without penstock, and its transaction."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._lite = isinstance(connection, sqlite3.Connection)

    def enqueue(self, pool: str | None, function: str | None, args: str | None = "{}", **options: Any) -> str:
        """Enqueue work; what it is known by."""
        given = {"pool": pool, "function": function, **({} if args is None else {"args": args}), **options}
        if self._lite:
            marked = f"({', '.join(given)}) values ({', '.join('?' * len(given))})"
            self.connection.execute(f"insert into penstock_enqueue {marked}", [*given.values()])
            (found,) = self.connection.execute("select id from penstock_enqueue").fetchone()
        else:
            typed = {"args": "::jsonb", "context": "::jsonb", "timeout": " * interval '1 second'"}
            typed |= {"keep": " * interval '1 second'", "run_at": "::timestamptz"}
            named = ", ".join(f"{name} => %({name})s{typed.get(name, '')}" for name in given)
            (found,) = self.connection.execute(f"select penstock.enqueue({named})", given).fetchone()
        return str(found)


@contextmanager
def raw(url: str) -> Iterator[Raw]:
    """A connection of some other program to a database."""
    connection: Any = sqlite3.connect(sqlite_file(url)) if url.startswith("sqlite") else psycopg.connect(url)
    try:
        yield Raw(connection)
    finally:
        connection.close()


def work_off(url: str, look: Callable[[TestApp], Any]) -> Any:
    """Run all jobs, and then look."""

    async def run() -> Any:
        async with TestApp(app, url, clock=TestClock(SystemClock().now() + timedelta(seconds=1))) as backend:
            await backend.run_until_idle(raise_errors=False)
            return await look(backend)

    return asyncio.run(run())


def test_work_runs_once_if_the_transaction_commits(database_url: str) -> None:
    with raw(database_url) as program:
        done = program.enqueue("sms", SEND, '{"to": "Žofie %s", "times": 2}', on_complete=TOLD, context='{"by": "x"}')
        noted = program.enqueue("sms", NOTE, '{"what": "it"}')
        program.connection.commit()
        gone = program.enqueue("sms", SEND, '{"to": "Bob"}')
        program.connection.rollback()
        wrong = program.enqueue("sms", SEND, '{"from": "x"}')
        program.connection.commit()

    async def look(backend: TestApp) -> None:
        assert await sms.status(backend, JobId(done)) == Finished(Success("sent to Žofie %s"))
        assert await sms.status(backend, JobId(noted)) == Finished(Success(None))
        assert await sms.status(backend, JobId(gone)) is None
        job: Any = await backend.job(JobId(wrong))
        assert job.state is JobState.FAILED
        assert "ArgumentsInvalid" in (job.error or "")
        assert sorted(await backend.run_query(all_told)) == [("", "it"), (done, "success {'by': 'x'}")]

    work_off(database_url, look)
    assert sent == ["Žofie %sŽofie %s"]


def test_ids_are_those_that_penstock_makes(database_url: str) -> None:
    began, mark = SystemClock().now(), "penstock_" if database_url.startswith("sqlite") else "penstock."
    with raw(database_url) as program:
        ids = [program.enqueue("sms", SEND, '{"to": "x"}', run_at="2026-01-01T00:00:00Z") for _ in range(300)]
        rows = program.connection.execute(f"select id from {mark}ready_job order by seq").fetchall()
    ended = SystemClock().now()
    assert len(set(ids)) == len(ids)
    assert [job_uuid(one).bytes for one in ids] == [getattr(row[0], "bytes", row[0]) for row in rows]
    for one in ids:
        uuid = job_uuid(one)
        assert job_id(uuid) == one
        assert (uuid.version, uuid.variant) == (7, UUID(int=SystemClock().uuid7()).variant)
        made = datetime.fromtimestamp((uuid.int >> 80) / 1000, UTC)
        assert began - timedelta(seconds=2) < made < ended + timedelta(seconds=2)
    for place in range(14, 32):  # digits of chance, and the mark of the variant
        digits = {job_uuid(one).hex[place] for one in ids}
        assert digits == (set("89ab") if place == 16 else set("0123456789abcdef"))


def test_work_waits_for_its_time_is_tried_again_and_keeps_its_status_as_it_says(database_url: str) -> None:
    later = SystemClock().now() + timedelta(days=2)
    failures.append(ValueError("no line"))
    with raw(database_url) as program:
        first = program.enqueue("sms", SEND, '{"to": "a"}', priority=-5, max_attempts=3, keep=3600)
        second = program.enqueue("sms", SEND, '{"to": "b"}', run_at=later.astimezone().isoformat(), keep=864000)
        urgent = program.enqueue("sms", SEND, '{"to": "c"}', priority=5)
        program.connection.commit()

    async def look(backend: TestApp) -> None:
        done = await backend.job(JobId(first))
        assert done is None, "its status was kept for an hour"
        assert await sms.status(backend, JobId(second)) == Finished(Success("sent to b"))
        assert backend.clock.now() - later < timedelta(seconds=1)
        assert await sms.status(backend, JobId(urgent)) is None, "after a day"

    work_off(database_url, look)
    assert sent == ["c", "a", "a", "b"]


@pytest.mark.parametrize("delay", [timedelta(0), timedelta(days=3)])
def test_a_job_is_stored_as_a_pool_stores_it(database_url: str, delay: timedelta) -> None:
    run_at = SystemClock().now() + delay
    for one in (sms, ageing, slow):
        with raw(database_url) as program:
            noted, noted_in_sql, sent_on, sent_in_sql = stored_by_both(program, one, run_at, database_url)
        assert noted == noted_in_sql, one.name
        assert sent_on == sent_in_sql, one.name


def stored_by_both(program: Raw, plain: Workpool, run_at: datetime, database_url: str) -> list[dict[str, Any]]:
    """Two jobs, each as a pool stores it and as SQL does."""
    pool = plain.with_options(
        concurrency_key="a %s", retry=Retry(3, 0.5, 4), timeout=timedelta(seconds=9), on_complete=told, context=["100%"]
    )
    pool.with_options(run_at=run_at, priority=7).enqueue(program.connection, send, to="a")
    plain.with_options(run_at=run_at).enqueue(program.connection, note, what="b")
    options: dict[str, Any] = {"max_attempts": 3, "initial_backoff": 0.5, "base": 4, "timeout": 9, "priority": 7}
    options |= {"on_complete": TOLD, "concurrency_key": "a %s", "context": '["100%"]', "run_at": run_at.isoformat()}
    program.enqueue(plain.name, SEND, '{"to": "a"}', **options)
    program.enqueue(plain.name, NOTE, '{"what": "b"}', run_at=run_at.isoformat())
    rows = []
    for table in ("scheduled_job", "ready_job"):
        mark = "penstock_" if database_url.startswith("sqlite") else "penstock."
        cursor = program.connection.execute(f"select * from {mark}{table}")
        names = [column[0] for column in cursor.description]
        rows += [{"table": table, **dict(zip(names, row, strict=True))} for row in cursor.fetchall()]
    assert len(rows) == 4
    return sorted(map(alike, rows), key=lambda row: str(row["function"]))


def alike(row: dict[str, Any]) -> dict[str, Any]:
    """A stored job, without what is its own, and with its texts read."""
    run_at = row["run_at"] if isinstance(row["run_at"], datetime) else datetime.fromisoformat(row["run_at"])
    read = {"args": json.loads(row["args"]), "options": options_of(row["options"]), "rank": row["rank"] - rank(run_at)}
    return {name: value for name, value in row.items() if name not in {"seq", "id", "run_at", "enqueued_at"}} | read


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"pool": "nowhere"}, "there is no.* pool"),
    ({"function": "shop:nothing"}, "there is no.* function"),
    ({"args": "[]"}, "args is no"),
    ({"run_at": "2099-01-01T00:00:00Z"}, "run_at"),
    ({"priority": 40000}, "priority"),
    ({"max_attempts": 0}, "max_attempts"),
    ({"function": NOTE, "max_attempts": 2}, "max_attempts"),
    ({"initial_backoff": 365 * 86400 + 1}, "initial_backoff is .*365 days"),
    ({"base": 0}, "base"),
    ({"timeout": 1830 * 86400 + 1}, "timeout is .*five years"),
    ({"keep": 365_000 * 86400 + 1}, "keep is .*365,000 days"),
    ({"concurrency_key": ""}, "concurrency_key"),
    ({"on_complete": SEND}, "on_complete"),
]


def test_what_cannot_be_enqueued_is_refused_with_the_reason(database_url: str) -> None:
    with raw(database_url) as program:
        for given, text in REFUSED:
            with pytest.raises((sqlite3.IntegrityError, psycopg.errors.InvalidParameterValue), match=text):
                program.enqueue(**{"pool": "sms", "function": SEND, "args": '{"to": "x"}', **given})
            program.connection.rollback()


def test_a_context_may_be_made_in_sql(database_url: str) -> None:
    contexts: list[tuple[str, str, Any]] = [
        ("json_object('a', 1)", "jsonb_build_object('a', 1)", {"a": 1}),
        ("json_quote('x')", "to_jsonb('x'::text)", "x"),
        ("5", "'5'", 5),
        ("'null'", "'null'", None),
    ]
    with raw(database_url) as program:
        for lite, postgres, _ in contexts:
            sql = (
                "insert into penstock_enqueue (pool, function, args, on_complete, context) "
                f"values ('sms', '{SEND}', '{{\"to\": \"x\"}}', '{TOLD}', {lite})"
                if database_url.startswith("sqlite")
                else f"select penstock.enqueue('sms', '{SEND}', '{{\"to\": \"x\"}}'::jsonb, "
                f"on_complete => '{TOLD}', context => {postgres})"
            )
            program.connection.execute(sql)
        program.connection.commit()

    async def look(backend: TestApp) -> None:
        came = sorted(what for _, what in await backend.run_query(all_told))
        assert came == sorted(f"success {context}" for *_, context in contexts)

    work_off(database_url, look)
