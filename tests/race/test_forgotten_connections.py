"""Connections to PostgreSQL are closed by whoever opened them, also if that is cancelled or the event loop ends."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from programs import ledger
from stage.databases import administrator
from stage.postgres import Proxy
from stage.waits import SOON

from penstock import asgi_app
from penstock.clock import SystemClock
from penstock.config import Config
from penstock.store.postgres import access, connections
from penstock.store.postgres.route import Route
from penstock.store.postgres.store import PostgresStore
from penstock.store.session import Statement, reading
from penstock.store.sql.queries import Query

SLOW = Statement("select pg_sleep(600)")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All connections that stores have opened."""
    connections: list[Any] = []
    real = Route.open

    async def noted(route: Route, *args: Any) -> Any:
        connections.append(await real(route, *args))
        return connections[-1]

    monkeypatch.setattr(Route, "open", noted)
    return connections


def run(story: Callable[[], Awaitable[None]], opened: list[Any]) -> None:
    """Run a story on an event loop of its own, after which no connection is open."""

    async def main() -> None:
        await story()

    asyncio.run(main())
    assert opened
    assert [connection for connection in opened if not connection.is_closed()] == []


async def turn() -> None:
    await SystemClock().sleep(0)


def new_store(url: str, size: int = 4) -> PostgresStore:
    return PostgresStore(url, Config(database=url, max_connections=size), SystemClock())


def test_an_event_loop_that_ends_while_snapshots_are_about_to_be_ended(postgres_url: str, opened: list[Any]) -> None:
    """The end of the loop cancels the tasks that were to do it before they have begun, then closes the backend."""

    async def story() -> None:
        backend = await asgi_app(ledger.app, config=ledger.app.config(database=postgres_url)).opening.backend()
        await asyncio.gather(*(backend.run_query(ledger.accounts) for _ in range(3)))
        connections: Any = backend.engine.store._connections  # type: ignore[attr-defined]
        asyncio.get_running_loop().call_soon(connections._end_left_open)  # as the timer does

    run(story, opened)


def test_closing_a_store_that_is_cancelled_closes_all_the_same(postgres_url: str, opened: list[Any]) -> None:
    async def story() -> None:
        store = new_store(postgres_url)
        await store.open()
        store.signals.subscribe(asyncio.Event())
        while not store.signals.listening:
            await turn()
        store.signals.notify()
        closing = asyncio.create_task(store.close())
        await turn()  # it waits until others are told
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing

    run(story, opened)


async def sleep_in_a_transaction(store: PostgresStore) -> None:
    async with reading(store.begin_read) as session:
        await session.fetch(SLOW)


async def sleep_alone(store: PostgresStore) -> None:
    await access.run(store._connections, Query("slow", "", SLOW, ()), {})


async def begun(url: str) -> int:
    """Wait until the statement runs; the server's process that runs it."""
    sleeps = "state = 'active' and query = 'select pg_sleep(600)' and datname = current_database()"
    async with administrator(url) as admin:
        while (pid := await admin.fetchval(f"select pid from pg_stat_activity where {sleeps}")) is None:
            await turn()
    return int(pid)


@pytest.mark.parametrize("sleep", [sleep_in_a_transaction, sleep_alone])
@pytest.mark.parametrize("stopped", [False, True])
def test_an_event_loop_that_ends_while_a_statement_runs(
    postgres_url: str, opened: list[Any], sleep: Any, stopped: bool
) -> None:
    """Nobody closes the store: the event loop does when it ends, also if the server does not answer any more."""

    async def story() -> None:
        store = new_store(postgres_url)
        await store.open()
        left.append(asyncio.create_task(sleep(store)))
        left.append(await begun(postgres_url))
        if stopped:
            os.kill(left[1], signal.SIGSTOP)

    left: list[Any] = []
    try:
        run(story, opened)
        gc.collect()  # an error of what is still open
    finally:
        if stopped:
            os.kill(left[1], signal.SIGCONT)


@pytest.mark.parametrize("sleep", [sleep_in_a_transaction, sleep_alone])
async def test_a_caller_that_is_cancelled_waits_for_no_server_that_is_silent(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, sleep: Any
) -> None:
    """Its timeout would come late, and a lease would be lost before the next try to renew it."""
    monkeypatch.setattr(connections, "_CLOSE_WAIT", 10 * SOON)
    async with Proxy(postgres_url).running() as proxy:
        store = new_store(proxy.url)
        await store.open()
        sleeping = asyncio.create_task(sleep(store))
        await begun(postgres_url)
        proxy.gone = "silent"
        sleeping.cancel()
        async with asyncio.timeout(SOON):
            await asyncio.wait([sleeping])
        proxy.reset()
        await store.close()
