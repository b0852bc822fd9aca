"""A program runs through PgBouncer, which lends each transaction one of four connections, and keeps nothing of it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Any, cast

import asyncpg
import pytest
from programs import ledger
from stage.databases import administrator
from stage.servers import PgBouncer, pgbouncer
from stage.waits import until

from penstock import App, Index, Table
from penstock.app import Backend
from penstock.errors import ConfigError, DatabaseBusy, DatabaseUnavailable, Overloaded
from penstock.testing import gate

_REFUSED = (
    "enable_seqscan, jit, extra_float_digits, intervalstyle, lock_timeout, statement_timeout, "
    "idle_in_transaction_session_timeout"
)


@pytest.fixture
def postgres_url(empty_postgres_url: str) -> str:
    """URL of an empty database: penstock's own tables are made through the pooler too."""
    return empty_postgres_url


@pytest.fixture(params=["with a direct connection", "alone"])
def settings(request: pytest.FixtureRequest, postgres_url: str) -> dict[str, Any]:
    """Settings of a program that knows, or does not know, where the server itself is."""
    return {"direct_database": postgres_url} if request.param != "alone" else {}


def pooled(backend: Backend) -> bool:
    """Whether a backend has found that a pooler stands between."""
    return bool(backend.engine.store._connections.route.pooled)  # type: ignore[attr-defined]


# ----- programs


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_it_is_noticed_although_it_takes_all_settings(postgres_url: str, mode: str) -> None:
    async def story(own: PgBouncer) -> None:
        await own.start()
        async with ledger.app.open(own.url) as backend, ledger.app.open(postgres_url) as directly:
            assert (pooled(backend), pooled(directly)) == (True, False)
            await backend.run_mutation(ledger.enter, what="x")
            assert await backend.run_query(ledger.entries, what="x") == [0]

    with pgbouncer(postgres_url, pool_mode=mode, ignore_startup_parameters=_REFUSED) as own:
        asyncio.run(story(own))


async def test_many_callers_share_four_connections(postgres_url: str, pooled_url: str) -> None:
    async with (
        administrator(postgres_url) as admin,
        ledger.app.open(pooled_url) as one,
        ledger.app.open(pooled_url) as two,
        ledger.app.open(pooled_url) as three,
    ):
        for backend in (one, two, three):
            calls: list[Any] = [backend.run_mutation(ledger.enter, what="x", number=n) for n in range(40)]
            calls += [backend.run_query(ledger.entries, what="x") for _ in range(40)]
            await asyncio.gather(*calls)
        assert len(await one.run_query(ledger.entries, what="x")) == 120
        count = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        assert await admin.fetchval(count) <= 4


# ----- the schema


async def test_tables_are_changed(postgres_url: str, pooled_url: str, settings: dict[str, Any]) -> None:
    """What is built beside writers is no part of a transaction."""
    async with App(tables=[Before]).open(pooled_url, **settings), administrator(postgres_url) as admin:
        await admin.execute("insert into item select 'item_' || n, now(), 'a' || n from generate_series(1, 1000) n")
    async with App(tables=[After]).open(pooled_url, **settings) as backend:
        stored = (await backend.engine.store.catalog.read_tables(["item"]))["item"]
        assert stored.indexes["item_by_name"].valid
        assert "note" in stored.columns


async def test_who_changes_tables_directly_keeps_out_those_behind_the_pooler(
    postgres_url: str, pooled_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ledger.app.open(postgres_url) as directly, ledger.app.open(pooled_url) as through:
        for holder, other in ((directly, through), (through, directly)):
            async with holder.engine.store.catalog.lock():
                monkeypatch.setattr("penstock.store.postgres.catalog.LOCK_WAIT", 0.0)
                with pytest.raises(DatabaseBusy, match="has been changing the schema"):
                    async with other.engine.store.catalog.lock():
                        pass
                monkeypatch.undo()  # a pooler ends the transaction that holds the lock a moment after its client
            async with other.engine.store.catalog.lock():
                pass


class Before(Table, name="item"):
    name: str


class After(Table, name="item"):
    name: str
    note: str | None = None

    by_name = Index("name")


# ----- what is left on the connections


async def test_nothing_is_left_on_the_connections(postgres_url: str, pooled_url: str) -> None:
    """Others that use them find the settings of the server, and no prepared statement."""
    async with ledger.app.open(pooled_url, services=("worker",)) as backend:
        await asyncio.gather(*(backend.run_mutation(ledger.enter, what="x", number=n) for n in range(20)))
        await backend.run_mutation(ledger.schedule_entries, what="job", first=0, count=5)
        await backend.run_query(ledger.sleep_in_the_database, seconds=0.0)
        await succeeded(backend, 5)
        async with administrator(postgres_url) as admin, AsyncExitStack() as stack:
            for _ in range(4):  # programs, each of which keeps one of the pooler's connections
                other = await asyncpg.connect(pooled_url, statement_cache_size=0)
                stack.push_async_callback(other.close)
                await other.execute("begin")
                for name in ("enable_seqscan", "jit", "lock_timeout", "statement_timeout", "TimeZone"):
                    assert await other.fetchval(f"show {name}") == await admin.fetchval(f"show {name}")
                assert await other.fetchval("select count(*) from pg_prepared_statements where name <> ''") == 0


# ----- wake-ups


async def test_without_a_direct_connection_workers_look_by_themselves_and_say_so_once(
    pooled_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "penstock"):
        async with (
            ledger.app.open(pooled_url) as front,
            ledger.app.open(pooled_url, services=("worker", "pruner"), poll=0.1) as backend,
        ):
            for number in range(2):
                await front.run_mutation(ledger.schedule_entries, what="job", first=0, count=1)
                await succeeded(front, number + 1)
            assert pooled(backend)
    assert [record.message.split()[0] for record in caplog.records] == ["signals.polling"]


async def test_with_a_direct_connection_workers_are_woken(postgres_url: str, pooled_url: str) -> None:
    async with (
        ledger.app.open(pooled_url, direct_database=postgres_url) as front,
        ledger.app.open(
            pooled_url, direct_database=postgres_url, services=("worker",), poll=3600.0, lease=600.0
        ) as backend,
        administrator(postgres_url) as admin,
    ):
        listeners = "select count(*) from pg_stat_activity where query ilike 'listen %'"
        await until(lambda: admin.fetchval(listeners))
        worker: Any = backend.services.services[0]
        await until(lambda: worker.lease is not None)
        for number in range(3):
            await front.run_mutation(ledger.schedule_entries, what="job", first=0, count=1)
            await succeeded(front, number + 1)


async def succeeded(backend: Backend, count: int) -> None:
    """Wait until so many jobs have succeeded."""

    async def all_have() -> bool:
        return (await backend.job_counts()).get("success", 0) == count

    await until(all_have)


# ----- what cannot be


async def test_a_direct_database_that_is_none_is_refused_at_once(
    postgres_server: str, pooled_url: str, postgres_url: str
) -> None:
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    cases: list[tuple[str, str, type[Exception], str | None]] = [
        (pooled_url, pooled_url, ConfigError, "direct_database leads to a pooler"),
        (pooled_url, postgres_server, ConfigError, "lead to different databases"),
        (postgres_url, postgres_server, ConfigError, "lead to different databases"),
        (pooled_url, nowhere, DatabaseUnavailable, None),
    ]
    for database, direct, error, why in cases:
        wait = 0.05 if direct == nowhere else 10.0
        with pytest.raises(error, match=why):
            async with ledger.app.open(database, direct_database=direct, database_wait=wait):
                pass


async def test_who_gets_no_connection_from_the_pooler_is_told_so_in_time(postgres_url: str) -> None:
    with pgbouncer(postgres_url, default_pool_size="1") as narrow:
        await narrow.start()
        await ask_for_a_connection(narrow, postgres_url)


async def ask_for_a_connection(narrow: PgBouncer, postgres_url: str) -> None:
    """Ask for one while another program has the only one."""
    async with (
        ledger.app.open(narrow.url, direct_database=postgres_url) as holder,
        ledger.app.open(narrow.url, direct_database=postgres_url) as other,
    ):
        connections = cast("Any", other.engine.store)._connections
        usual, connections.wait = connections.wait, 0.3
        with gate("mutation.ran", most=1) as held:
            call = asyncio.create_task(holder.run_mutation(ledger.enter, what="x"))
            await held.arrived()
            for refused in (other.run_query(ledger.entries, what="x"), other.run_mutation(ledger.enter, what="x")):
                with pytest.raises(Overloaded, match="The pooler gave no connection"):
                    await refused
            held.open()
            await call
        connections.wait = usual
        assert await other.run_query(ledger.entries, what="x") == [0]
