"""Sessions on PostgreSQL that end while a statement is under way: it is refused, and its connection is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from penstock.clock import SystemClock
from penstock.config import Config
from penstock.errors import ContextError
from penstock.store.postgres.session import PostgresSession
from penstock.store.postgres.store import PostgresStore
from penstock.store.session import Statement

WITHOUT_END = "with recursive c(x) as (select 1 union all select x + 1 from c where x > 0) select count(*) as n from c"
NUMBERS = "select n from generate_series(1, 1000) as n"
ONE = Statement("select 1")
STEPS = ["execute", "prepare", "cursor", "fetch"]  # of a call of ctx.sql

Make = Callable[[PostgresSession], Awaitable[Any]]


class Slow:
    """A connection one of whose words, or of its statements' or cursors', is heard some time after it was answered.

    Args:
        thing: What the driver has given.
        word: The word that is slow.
        answered: Set when the answer is there.
        go_on: Whoever has asked goes on when this is set.
    """

    def __init__(self, thing: Any, word: str, answered: asyncio.Event, go_on: asyncio.Event) -> None:
        self._thing = thing
        self._word = word
        self._events = answered, go_on

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        return partial(self._ask, found, name) if name in STEPS else found

    async def _ask(self, ask: Callable[..., Awaitable[Any]], name: str, *args: Any) -> Any:
        answer = await ask(*args)
        answered, go_on = self._events
        if name == self._word:
            answered.set()
            await go_on.wait()
        return Slow(answer, self._word, *self._events) if name in {"prepare", "cursor"} else answer


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


@pytest.mark.parametrize("word", STEPS)
@pytest.mark.parametrize("writes", [False, True], ids=["in a snapshot", "in a transaction"])
async def test_a_call_of_several_steps_takes_none_after_its_transaction(
    postgres_url: str, word: str, writes: bool
) -> None:
    """A step has been answered, and the call has not heard it yet, when the function ends that has left it."""
    async with one_connection(postgres_url) as store:
        session = await (store.begin_write() if writes else store.begin_read())
        connection: Any = session._connection
        asked: list[str] = []
        before, answered, go_on = connection.get_server_pid(), asyncio.Event(), asyncio.Event()
        session._connection = Slow(connection, word, answered, go_on)
        left = asyncio.create_task(session.fetch_read_only(NUMBERS, (), 1000, 100_000))
        await answered.wait()
        await session.rollback()
        connection.add_query_logger(lambda record: asked.append(record.query))
        go_on.set()
        with pytest.raises(ContextError, match="has ended"):
            await left
        assert asked == []
        after = await store.begin_read()
        assert await server_process(after) != before
        await after.rollback()


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_statement_that_comes_while_its_transaction_ends_is_refused(postgres_url: str, end: str) -> None:
    async with one_connection(postgres_url) as store:
        session = await store.begin_write()
        before = await server_process(session)
        ending = asyncio.create_task(getattr(session, end)())
        await under_way(session)
        for call in (session.fetch(ONE), session.execute(ONE), session.fetch_read_only("select 1", (), 1, 100)):
            with pytest.raises(ContextError, match=r"This transaction has ended\."):
                await call
        await ending
        after = await store.begin_read()
        assert await server_process(after) == before, "its end was not disturbed"
        await after.rollback()
