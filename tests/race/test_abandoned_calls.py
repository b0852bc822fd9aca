"""Calls whose function is gone while the database still works on them: they are cut off, and harm nobody after them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import asyncpg
import pytest
from stage.waits import until

from penstock import App, MutationCtx, QueryCtx, Table
from penstock.clock import SystemClock
from penstock.errors import CallTimeout, ContextError
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
    connection = await asyncpg.connect(url)
    try:
        return bool(await connection.fetchval(RUNNING))
    finally:
        await connection.close()


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

        async def all_are() -> bool:
            return len(cut_off) == 3

        await until(all_are)
        assert set(cut_off) == {ContextError.__name__}


async def test_a_sub_transaction_that_left_a_statement_behind_is_undone_alone(sqlite_url: str) -> None:
    async with TestApp(app, sqlite_url) as backend:
        assert await backend.run_mutation(go_on_after_a_failure) == 1


async def test_a_sub_transaction_that_left_a_statement_behind_cannot_be_undone_alone(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncpg runs one statement at a time on a connection: all is undone, and the caller is told of the misuse."""
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
