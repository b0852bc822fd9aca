"""What a pool goes by in a transaction of the user's own: whose clock and settings, which thread, and who is woken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import pytest
from stage.guests import sqlite_file

from penstock import ActionCtx, App, ConfigError, LimitExceeded, Message, Pending, Success, WorkId
from penstock.store.guest.session import guest_session
from penstock.testing import TestApp

MINUTE = timedelta(minutes=1)


def new_app(**settings: Any) -> tuple[App, Any, Any]:
    app = App(**settings)
    pool = app.workpool("mail")

    @app.internal_action
    async def send(ctx: ActionCtx, to: str) -> str:
        return f"sent to {to}"

    return app, pool, send


async def connect(url: str) -> Any:
    """A connection that is awaited, in autocommit on PostgreSQL."""
    return await (aiosqlite.connect(sqlite_file(url)) if url.startswith("sqlite") else asyncpg.connect(url))


async def test_where_a_backend_is_open_its_clock_and_its_settings_hold(database_url: str) -> None:
    app, pool, send = new_app()
    async with TestApp(app, database_url, max_job_argument_bytes=50) as backend:
        connection = await connect(database_url)
        await pool.with_options(run_after=MINUTE).enqueue(connection, send, to="Ada")
        if database_url.startswith("sqlite"):
            await connection.commit()
        (job,) = await backend.jobs("pending")
        assert (job.enqueued_at, job.run_at) == (backend.clock.now(), backend.clock.now() + MINUTE)
        with pytest.raises(LimitExceeded):
            await pool.enqueue(connection, send, to="x" * 100)
        await connection.close()
        await backend.run_until_idle()
        assert await pool.result(backend, job.id) == Success("sent to Ada")
    other = await connect(database_url)
    await pool.enqueue(other, send, to="x" * 100)
    await other.close()


async def test_nothing_is_told_of_what_is_enqueued_where_nobody_sees_the_commit(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, _, send = new_app()
    loud = app.workpool("loud", log_level="info")
    caplog.set_level("INFO", "penstock")
    async with app.open(database_url, metrics_token="let-me-in") as backend:
        connection = await connect(database_url)
        await loud.enqueue(connection, send, to="Ada")
        await loud.enqueue_batch(connection, send, [{"to": "Bob"}, {"to": "Eve"}])
        await loud.with_options(key="k").enqueue(connection, send, to="Dan")
        if database_url.startswith("sqlite"):
            await connection.commit()
        await connection.close()
        assert (await backend.job_counts())["ready"] == 4
        await loud.enqueue(backend, send, to="Joe")
        meters = backend.engine.journal.meters
        assert meters is not None
        assert meters.counters["penstock_jobs_enqueued"] == {("loud",): 1}
        assert caplog.text.count("workpool.enqueued") == 1


def test_times_are_those_of_the_database(postgres_url: str) -> None:
    app, pool, send = new_app()
    with app.sync.open(postgres_url):
        pass
    with psycopg.connect(postgres_url) as connection:
        app.guests._homes["postgres"] = home = app.guests._new_home(guest_session(connection))
        assert home._clock is not None
        clock = home._clock
        wrong = clock.now() + MINUTE
        clock.set(wrong, clock.steady(), within=0)
        pool.with_options(run_after=MINUTE).enqueue(connection, send, to="Ada")
        ((enqueued, runs),) = connection.execute(
            "select extract(epoch from clock_timestamp() - enqueued_at), extract(epoch from run_at - enqueued_at)"
            " from penstock.scheduled_job"
        )
        assert -10 < enqueued < 50
        assert runs == 60
        clock.set(wrong, clock.steady(), within=0)  # it is asked for once a minute only
        pool.enqueue(connection, send, to="Bob")
        assert clock.now() >= wrong


async def test_workers_can_be_woken_after_the_commit(postgres_url: str) -> None:
    app, pool, send = new_app(poll=600.0)
    async with app.open(postgres_url, services=("worker",)) as backend:
        first = await pool.enqueue(backend, send, to="Ada")
        await pool.result(backend, first)  # now it is idle
        connection = await asyncpg.connect(postgres_url)
        for wake in ("wake", "notify"):
            work = await pool.enqueue(connection, send, to="Bob")
            if wake == "wake":
                backend.wake()
            else:
                await connection.execute("notify penstock")
            assert await pool.result(backend, work, timedelta(seconds=60)) == Success("sent to Bob"), wake
        await connection.close()


AGED = "'00000000-0000-7000-8000-000000000001'"  # the id of work that was enqueued long ago
OF_A_RETRY = "update penstock.scheduled_job set id = {}, attempt = 1"
RIGHTS_FOR_KEYS = ("update on penstock.scheduled_job", "update, delete on penstock.job_key")
RIGHTS = ("usage on schema penstock", "select, insert on all tables in schema penstock")


@contextmanager
def guest(connection: psycopg.Connection[Any]) -> Iterator[str]:
    """Be a user of the database without rights for the time of a block; its name."""
    ((database,),) = connection.execute("select current_database()").fetchall()
    role = f"guest_of_{database}"
    connection.execute(f"create role {role}")
    try:
        connection.execute(f"set role {role}")
        yield role
    finally:
        connection.execute("reset role")
        connection.execute(f"drop owned by {role}")
        connection.execute(f"drop role {role}")


def test_the_rights_that_the_docs_name_are_enough(postgres_url: str) -> None:
    app, pool, send = new_app()
    keyed = pool.with_options(key="k", run_after=MINUTE)

    @app.outbox("greetings")
    async def hear(ctx: ActionCtx, message: Message[Any]) -> None: ...

    with (
        app.sync.open(postgres_url) as backend,
        psycopg.connect(postgres_url, autocommit=True) as connection,
        guest(connection) as role,
    ):

        def as_its_owner(*statements: str) -> None:
            connection.execute("; ".join(("reset role", *statements, f"set role {role}")))

        def enqueue(**options: Any) -> WorkId:
            work: WorkId = keyed.with_options(**options).enqueue(connection, send, to="Ada")
            return work

        for call in (
            lambda: pool.enqueue(connection, send, to="Ada"),
            lambda: app.outboxes.send(connection, "greetings", "Ada"),
        ):
            with pytest.raises(ConfigError, match=r"may not do this.* Grant it the right"):
                call()
        as_its_owner(*(f"grant {right} to {role}" for right in RIGHTS))
        work = pool.enqueue(connection, send, to="Ada")
        pool.cancel(connection, work)
        assert pool.status(connection, work) == Pending(0)
        connection.execute("select penstock.enqueue(pool => 'mail', function => %s)", [send.name])
        assert backend.job_counts()["ready"] == 2
        app.outboxes.send(connection, "greetings", "Ada")
        connection.execute("select penstock.send('greetings', '1')")
        as_its_owner("delete from penstock.ready_job")

        first = enqueue()
        assert enqueue() == first
        as_its_owner(*(one.format(AGED) for one in ("update penstock.job_key set job_id = {}", OF_A_RETRY)))
        assert enqueue() not in {None, first}, "that is the same work, whose id was made older"
        as_its_owner("delete from penstock.scheduled_job", "delete from penstock.job_key")
        as_its_owner(*(f"grant {right} to {role}" for right in RIGHTS_FOR_KEYS))
        first = enqueue()
        assert enqueue(on_duplicate="replace") == first
        pool.cancel(connection, first)
        second = enqueue()
        assert second != first, "in the place of work that is canceled"
        as_its_owner("delete from penstock.scheduled_job", f"update penstock.job_key set job_id = {AGED}")
        third = enqueue()
        assert third != second, "a key without its work is free"
        assert pool.status(connection, third) == Pending(0)
