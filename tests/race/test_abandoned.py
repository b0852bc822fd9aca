"""Calls whose function is gone while the database still works on them, and snapshots that nobody has ended.

They are cut off, and harm nobody after them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from programs import ledger
from stage.databases import administrator, connected
from stage.waits import until

from penstock import App, MutationCtx, QueryCtx, Table
from penstock.clock import SystemClock
from penstock.config import Config
from penstock.errors import CallTimeout, ContextError
from penstock.store.postgres.session import PostgresSession
from penstock.store.postgres.store import PostgresStore
from penstock.store.session import Statement
from penstock.sync import MutationCtx as SyncMutationCtx
from penstock.sync import QueryCtx as SyncQueryCtx
from penstock.testing import TestApp

WITHOUT_END = "with recursive c(x) as (select 1 union all select x + 1 from c where x > 0) select count(*) as n from c"


class Note(Table):
    text: str


app = App()
cut_off: list[str] = []
watched: list[str] = []  # the PostgreSQL database in which a call waits for the other one's statement before it fails
RUNNING = (
    "select exists (select from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() "
    "and state = 'active' and query like 'with recursive%' and query_start < clock_timestamp() - interval '0.2 s')"
)


async def fail_soon() -> None:
    for _ in range(50):
        await SystemClock().sleep(0)
    for url in watched:
        await until(partial(is_running, url))
    raise ValueError("one of two calls failed")


async def is_running(url: str) -> bool:
    async with connected(url) as connection:
        return bool(await connection.fetchval(RUNNING))


async def never_ends(ctx: QueryCtx) -> None:
    try:
        await ctx.sql(WITHOUT_END)
    except BaseException as error:
        cut_off.append(type(error).__name__)
        raise


@app.mutation
async def fail_beside_a_read(ctx: MutationCtx) -> None:
    """Fail while a statement is under way in the same transaction."""
    await ctx.db.insert(Note(text="never stored"))
    await asyncio.gather(never_ends(ctx), fail_soon())


@app.query
async def fail_in_a_query(ctx: QueryCtx) -> None:
    """Fail while a statement is under way in the same snapshot."""
    await asyncio.gather(never_ends(ctx), fail_soon())


@app.mutation
async def go_on_after_a_failure(ctx: MutationCtx) -> int:
    """Catch what a sub-transaction raised that left a statement under way."""
    with pytest.raises(ValueError, match="one of two"):
        await ctx.run_mutation(fail_beside_a_read)
    await ctx.db.insert(Note(text="stored"))
    return (await ctx.sql("select count(*) as n from note"))[0]["n"]  # type: ignore[no-any-return]


@app.query
def read_without_end(ctx: SyncQueryCtx) -> None:
    """Read for ever in a thread."""
    ctx.sql(WITHOUT_END)


@app.mutation
def write_without_end(ctx: SyncMutationCtx) -> None:
    """Hold the transaction for ever in a thread."""
    ctx.db.insert(Note(text="never stored"))
    ctx.sql(WITHOUT_END)


@app.mutation
async def add(ctx: MutationCtx, text: str) -> int:
    """Insert a note; how many there are, asked by SQL, which forbids writing for a moment."""
    await ctx.db.insert(Note(text=text))
    return (await ctx.sql("select count(*) as n from note"))[0]["n"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("function", [fail_beside_a_read, fail_in_a_query])
async def test_a_statement_that_its_function_left_behind_is_cut_off(database_url: str, function: Any) -> None:
    cut_off.clear()
    async with TestApp(app, database_url) as backend:
        run = backend.run_query if function is fail_in_a_query else backend.run_mutation
        for attempt in range(1, 4):
            with pytest.raises(ValueError, match="one of two"):
                await run(function)
            assert await backend.run_mutation(add, text="after it") == attempt
        await until(lambda: cut_off.count(ContextError.__name__) == 3)
        assert len(cut_off) <= 4  # a query that is found to need a snapshot begins again


async def test_a_sub_transaction_that_left_a_statement_behind_is_undone_alone_where_it_can_be(
    sqlite_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncpg runs one statement at a time on a connection: all is undone, and the caller is told of the misuse."""
    async with TestApp(app, sqlite_url) as backend:
        assert await backend.run_mutation(go_on_after_a_failure) == 1
    monkeypatch.setattr(f"{__name__}.watched", [postgres_url])
    async with TestApp(app, postgres_url) as backend:
        with pytest.raises(ContextError, match="was misused"):
            await backend.run_mutation(go_on_after_a_failure)
        assert await backend.run_mutation(add, text="after it") == 1


@pytest.mark.parametrize("function", [read_without_end, write_without_end])
async def test_a_function_in_a_thread_that_takes_too_long_holds_nobody_up(database_url: str, function: Any) -> None:
    async with app.open(database_url, call_timeout=1.0, threads=1) as backend:
        for attempt in range(1, 3):
            with pytest.raises(CallTimeout):
                await backend.dispatch.call(function.name, None, "{}")
            assert await backend.run_mutation(add, text="after it") == attempt


Make = Callable[[PostgresSession], Awaitable[Any]]


@asynccontextmanager
async def one_connection(url: str) -> AsyncIterator[PostgresStore]:
    """A store that has one connection for calls."""
    store = PostgresStore(url, Config(database=url, max_connections=1), SystemClock())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def server_process(session: PostgresSession) -> int:
    return int((await session.fetch(Statement("select pg_backend_pid()")))[0][0])


async def under_way(session: PostgresSession) -> None:
    while session.asked_at is None:
        await SystemClock().sleep(0)


CALLS: dict[str, Make] = {
    "fetch": lambda session: session.fetch(Statement(WITHOUT_END)),
    "execute": lambda session: session.execute(Statement(WITHOUT_END)),
    "ctx.sql": lambda session: session.fetch_read_only(WITHOUT_END, (), 10, 1000),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("writes", [False, True], ids=["in a snapshot", "in a transaction"])
async def test_a_statement_is_refused_whose_transaction_is_undone(postgres_url: str, call: Make, writes: bool) -> None:
    async with one_connection(postgres_url) as store:
        session = await (store.begin_write() if writes else store.begin_read())
        before = await server_process(session)
        left = asyncio.ensure_future(call(session))
        await under_way(session)
        await session.rollback()
        with pytest.raises(ContextError, match=r"has ended, so the call was stopped\. Await all calls"):
            await left
        after = await store.begin_read()
        assert await server_process(after) != before, "what may still be under way is nobody's any more"
        await after.rollback()


_OPEN = (
    "select count(*) from pg_stat_activity where datname = current_database()"
    " and application_name = 'penstock' and backend_xmin is not null and state = 'idle in transaction'"
)


async def none_is_open(admin: Any) -> bool:
    return bool(await admin.fetchval(_OPEN) == 0)


async def test_an_idle_backend_soon_holds_no_snapshot_nor_does_a_caller_in_line_who_goes_away(
    postgres_url: str,
) -> None:
    async with ledger.app.open(postgres_url, max_connections=1) as backend, administrator(postgres_url) as admin:
        await asyncio.gather(*(backend.run_query(ledger.accounts) for _ in range(10)))
        await until(lambda: none_is_open(admin))
        store: Any = backend.engine.store
        session = await store.begin_read()
        waiting = asyncio.create_task(store.begin_read())
        await until(lambda: bool(store._connections._line._waiting))
        await session.rollback()  # which hands its connection to the one who waits
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await until(lambda: none_is_open(admin))
        for _ in range(3):
            await (await store.begin_read()).rollback()  # which is left to the next user
            connection = await store._connections.acquire()
            await connection.execute("create table if not exists beside (number int)")  # no snapshot is open
            store._connections.release(connection)
        await (await store.begin_read()).rollback()
        acquiring = asyncio.create_task(store._connections.acquire())
        await SystemClock().sleep(0)
        acquiring.cancel()
        await asyncio.gather(acquiring, return_exceptions=True)
        assert await backend.run_query(ledger.accounts) == 0, "who is cancelled meanwhile gives it back"
