"""Encryption at rest: by no road does a value come into the database in plain, and by each it comes back as it was."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import psycopg
from flow.encrypted_program import (
    CANARY,
    admit,
    app,
    change,
    crunch,
    failing,
    kept,
    outside,
    pool,
    remove,
    schedule,
    send,
    tokens,
    told,
)

from penstock import Success
from penstock.store.nouns.requests import RequestKey
from penstock.testing import TestApp

OPENED = app


def contents(url: str) -> str:
    """All that a database holds: each value of each table as text, bytes too; on SQLite the files besides."""
    if url.startswith("sqlite"):
        file = Path(url.removeprefix("sqlite:///"))
        files = [one.read_bytes().decode("latin-1") for one in file.parent.glob(f"{file.name}*")]
        return "\n".join(files)
    with psycopg.connect(url) as connection:
        named = connection.execute(
            "select format('%I.%I', schemaname, tablename) from pg_tables where schemaname !~ '^(pg_|information_)'"
        ).fetchall()
        found = [str(connection.execute(f"select * from {name}").fetchall()) for (name,) in named]
    return "\n".join(found)


def assert_hidden(url: str, stage: str) -> None:
    held = contents(url)
    assert "gAAAA" in held or stage == "begin"
    place = held.find(CANARY)
    assert place < 0, f"{stage}: {held[max(0, place - 300) : place + 60]!r}"


async def test_no_road_leads_into_the_database_in_plain(database_url: str) -> None:
    kept.clear()
    tokens.clear()
    failing[:] = [True]
    async with TestApp(app, database_url) as test:
        assert_hidden(database_url, "begin")
        answer = await test.dispatch.call_once(
            "flow.encrypted_program:schedule",
            b'{"text":"%s"}' % CANARY.encode(),
            RequestKey("session", 1, 2),
            lambda result: str(result).encode(),
            resent=False,
        )
        assert answer == CANARY.encode()
        assert_hidden(database_url, "session")
        again = await test.dispatch.call_once(
            "flow.encrypted_program:schedule", b"{}", RequestKey("session", 1, 2), lambda _: b"", resent=True
        )
        assert again == answer
        await test.run_mutation(schedule, CANARY)
        await pool.enqueue(test, crunch, CANARY)
        works = [await pool.with_options(on_complete=told, context={"a": CANARY}).enqueue(test, outside, CANARY)]
        works.append(await test.scheduler.run_after(timedelta(0), send, CANARY))
        if database_url.startswith("sqlite"):
            with closing(sqlite3.connect(database_url.removeprefix("sqlite:///"))) as mine:
                works.append(pool.with_options(on_complete=told, context=CANARY).enqueue(mine, send, CANARY))
                mine.commit()
        else:
            with psycopg.connect(database_url) as connection:
                works.append(pool.with_options(on_complete=told, context=CANARY).enqueue(connection, send, CANARY))
        row = await test.run_mutation(admit, CANARY)
        assert_hidden(database_url, "enqueued")
        assert CANARY in str(await test.jobs())
        await test.run_until_idle(raise_errors=False)
        assert_hidden(database_url, "run")
        assert (await pool.complete(test, tokens[0], CANARY)).accepted
        await test.run_mutation(change, row, CANARY)
        await test.run_mutation(remove, row)
        test.clock.advance(timedelta(hours=2))
        await test.run_until_idle(raise_errors=False)
        failing.clear()
        assert await pool.retry_all(test) == 1
        await test.run_until_idle(raise_errors=False)
        for work in works:
            assert await pool.result(test, work) == Success(CANARY)
        assert_hidden(database_url, "ended")
        await test.run_until(test.clock.now() + timedelta(days=2), raise_errors=False)
        assert_hidden(database_url, "crons")
        told_of = [one for one in kept if one[0] == "told"]
        assert {one[1] for one in told_of} == {CANARY, "failed"}
        assert {str(one[2]) for one in told_of} == {CANARY, str([CANARY]), str({"a": CANARY})}
        assert ("tick", CANARY, True) in kept
