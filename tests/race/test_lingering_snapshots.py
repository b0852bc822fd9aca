"""A query's snapshot on PostgreSQL is ended by who uses its connection next, or soon; nobody sees through it."""

from __future__ import annotations

import asyncio
from typing import Any

from stage import ledger
from stage.administrators import administrator, end_all_connections
from stage.waits import until

from penstock.clock import SystemClock
from penstock.testing import TestApp

_OPEN = (
    "select count(*) from pg_stat_activity where datname = current_database()"
    " and application_name = 'penstock' and backend_xmin is not null and state = 'idle in transaction'"
)


async def test_an_idle_backend_soon_holds_no_snapshot(postgres_url: str) -> None:
    async with ledger.app.open(postgres_url) as backend, administrator(postgres_url) as admin:
        await asyncio.gather(*(backend.run_query(ledger.accounts) for _ in range(10)))

        async def none_is_open() -> bool:
            return bool(await admin.fetchval(_OPEN) == 0)

        await until(none_is_open)
        assert await backend.run_query(ledger.accounts) == 0, "the connections can still be used"


async def test_each_query_has_a_snapshot_of_its_own(postgres_url: str) -> None:
    async with (
        TestApp(ledger.app, postgres_url, max_connections=1) as one,
        TestApp(ledger.app, postgres_url) as other,
    ):
        for count in range(20):
            assert await one.run_query(ledger.accounts) == count
            await (other if count % 2 else one).run_mutation(ledger.open_account, owner=f"owner {count}")


async def test_callers_in_line_get_a_connection_whose_snapshot_is_open(postgres_url: str) -> None:
    async with TestApp(ledger.app, postgres_url, max_connections=2) as backend:
        calls: list[Any] = []
        for number in range(20):
            calls += [
                backend.run_mutation(ledger.open_account, owner=f"owner {number}"),
                backend.run_query(ledger.accounts),
                backend.run_query(ledger.balance, owner=f"owner {number}"),
            ]
        await asyncio.gather(*calls)
        assert await backend.run_query(ledger.accounts) == 20


async def test_a_caller_in_line_who_goes_away_leaves_no_snapshot_open(postgres_url: str) -> None:
    async with (
        ledger.app.open(postgres_url, max_connections=1) as backend,
        administrator(postgres_url) as admin,
    ):
        store = backend.engine.store
        session = await store.begin_read()
        waiting = asyncio.create_task(store.begin_read())
        while not store._connections._line._waiting:  # type: ignore[attr-defined]
            await SystemClock().sleep(0)
        await session.rollback()  # which hands its connection to the one who waits
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

        async def none_is_open() -> bool:
            return bool(await admin.fetchval(_OPEN) == 0)

        await until(none_is_open)
        assert await backend.run_query(ledger.accounts) == 0


async def test_a_connection_that_is_lost_while_its_snapshot_is_open_disturbs_nobody(postgres_url: str) -> None:
    async with ledger.app.open(postgres_url) as backend, administrator(postgres_url) as admin:
        for _ in range(5):
            assert await backend.run_query(ledger.accounts) == 0
            await end_all_connections(admin)
        await backend.run_mutation(ledger.open_account, owner="ada")
        assert await backend.run_query(ledger.accounts) == 1


async def test_work_outside_of_transactions_finds_no_snapshot_open(postgres_url: str) -> None:
    async with ledger.app.open(postgres_url, max_connections=1) as backend:
        connections = backend.engine.store._connections  # type: ignore[attr-defined]
        for _ in range(3):
            assert await backend.run_query(ledger.accounts) == 0
            connection = await connections.acquire()
            await connection.execute("create table if not exists beside (number int)")
            connections.release(connection)


async def test_work_that_is_cancelled_while_it_ends_a_snapshot_gives_its_connection_back(postgres_url: str) -> None:
    async with ledger.app.open(postgres_url, max_connections=1) as backend:
        connections = backend.engine.store._connections  # type: ignore[attr-defined]
        assert await backend.run_query(ledger.accounts) == 0
        acquiring = asyncio.create_task(connections.acquire())
        await SystemClock().sleep(0)
        acquiring.cancel()
        await asyncio.gather(acquiring, return_exceptions=True)
        assert await backend.run_query(ledger.accounts) == 0
