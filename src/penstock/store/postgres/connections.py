"""Connections to PostgreSQL: opened when needed, used again, dropped when broken.

Owns how connections are opened, ended and watched; `store.places` knows who gets one. asyncpg's own pool takes fifty
times as long to lend a connection, and lets nobody choose a free one, which ending lingering snapshots needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar

import asyncpg

from penstock.clock import SystemClock
from penstock.errors import DatabaseUnavailable
from penstock.store.places import Line
from penstock.store.postgres.errors import REFUSALS, is_connection_lost, translate
from penstock.store.postgres.route import Connection, Route
from penstock.store.session import not_open
from penstock.store.sql.dialect import Dialect

T = TypeVar("T")

_ANSWER_LATER = 5.0
_CLOSE_WAIT = 5.0
_LAST_WAIT = 1.0  # for connections that are being closed when the store closes, or the event loop ends
_WATCH_EVERY = 1.0
_LINGER = 0.005
TO_END = "rollback"  # a transaction that was left open, and that nobody may use
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0


class Watched(Protocol):
    """A session that may wait for an answer: the time since when, by `Connections.now`, and its `cut`."""

    asked_at: float | None

    def cut(self) -> None:
        """Cut its connection."""


class Connections:
    """At most `size` connections; callers that find none free wait in line.

    They wait for up to `wait` seconds, also for a database to come back.
    """

    def __init__(self, route: Route, *, size: int, wait: float, statement_timeout: float, dialect: Dialect) -> None:
        self.route = route
        self.dialect = dialect
        self.wait = wait
        self._clock = SystemClock()
        # The server stops a slow statement by itself; after these seconds one that does not answer at all is given up.
        self.answer_timeout = statement_timeout + _ANSWER_LATER
        self._line: Line[Connection] = Line(size, wait)
        self._lingering: dict[Connection, tuple[str, float]] = {}  # what was left open, and since when
        self._linger_timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[Any]] = set()
        self._closed = self._ended = False
        self._end: AsyncGenerator[None] | None = None
        self._watched: set[Watched] = set()
        self._watcher: asyncio.Task[None] | None = None
        self.now = self._clock.monotonic()  # at most a second old

    async def connect(self) -> Connection:
        """A connection of the caller's own, outside the count. Waits a while for a database that is starting."""
        return await self._connect(self.answer_timeout)

    async def _connect(self, command_timeout: float | None) -> Connection:
        deadline = self._clock.monotonic() + self.wait
        pause = _FIRST_PAUSE
        while True:
            try:
                return await self.route.open(self.wait, command_timeout)
            except REFUSALS as error:
                refused = isinstance(error, asyncpg.PostgresError) and not is_connection_lost(error)
                if refused or isinstance(error, asyncpg.ClientConfigurationError) or self._closed:
                    raise _refusal(error) from error
                if self._clock.monotonic() + pause > deadline:
                    raise _refusal(error) from error
            await self._clock.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def wait_for_server(self, attempt: int) -> bool:
        """Wait for a server that is away behind a pooler, at its n-th `attempt` in vain; False if it was enough."""
        pauses = [min(_FIRST_PAUSE * 2**number, _LONGEST_PAUSE) for number in range(attempt)]
        if sum(pauses) > self.wait:
            return False
        await self._clock.sleep(pauses[-1])
        return True

    async def acquire(self) -> Connection:
        """A connection, to be given back with `release`.

        Raises:
            ContextError: The store is not open.
            Overloaded: None was free in time.
            DatabaseUnavailable: The database cannot be reached.
        """
        while True:
            connection, left = await self.acquire_lingering()
            ended = not left
            try:
                ended = ended or await _roll_back(connection)
            finally:
                if not ended:
                    self.release(connection, broken=True)
            if ended:
                return connection

    async def acquire_lingering(self, wanted: str = "") -> tuple[Connection, str]:
        """Acquire a connection, with what its new holder has to end: how the transaction that was left open began.

        If one is free where what is `wanted` was left open, or nothing, it is that one.

        One that has done nothing may be used, so its time is not much older than its first statement.
        """
        connection = await self._acquire(lambda one: self._lingering.get(one, ("", 0.0))[0] == wanted)
        left, since = self._lingering.pop(connection, ("", 0.0))
        is_old = left and self._clock.monotonic() - since > _LINGER
        return connection, TO_END if is_old else left

    async def _acquire(self, fits: Callable[[Connection], bool]) -> Connection:
        if self._closed:
            raise not_open()
        try:
            connection = await self._line.take(fits)
        except BaseException:
            if self._closed:
                self._close_free()  # the connection given to a caller that had gone, when all others were dropped
            raise
        if connection is not None and not connection.is_closed():
            return connection
        self._lingering.pop(connection, None)
        try:
            if self._end is None:
                self._end = self._close_at_the_end()
                await anext(self._end)
            return await self._connect(None)  # its sessions are watched, which costs less than a timer each time
        except BaseException:
            self._line.give(None)
            raise

    def release(self, connection: Connection, *, broken: bool = False, left: str = "") -> None:
        """Give a connection back. A broken one is closed in a task of its own, so that no caller waits for its server.

        A transaction may be `left` open, named by how it began. Its next user ends it together with beginning, or uses
        it, which saves a round trip (see `acquire_lingering`); if nobody does within a moment, it is ended here.
        """
        if is_dropped():
            connection.terminate()
        if broken or self._closed or connection.is_closed():
            self._line.give(None)
            self._drop(connection)
            return
        if left:
            self._lingering[connection] = left, self._clock.monotonic()
            if self._linger_timer is None:
                self._linger_timer = asyncio.get_running_loop().call_later(_LINGER, self._end_left_open)
        self._line.give(connection)

    def watch(self, session: Watched) -> None:
        """Cut this session's connection if the server leaves a statement unanswered."""
        self._watched.add(session)
        if self._watcher is None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch())

    def unwatch(self, session: Watched) -> None:
        """Watch a session no more."""
        self._watched.discard(session)

    async def _watch(self) -> None:
        while True:
            self.now = self._clock.monotonic()
            for session in list(self._watched):
                if session.asked_at is not None and self.now - session.asked_at > self.answer_timeout:
                    session.cut()
            await self._clock.sleep(_WATCH_EVERY)

    def drop_free(self) -> None:
        """Drop all free connections: one of them was found broken, so the database has probably restarted."""
        for connection in self._line.drop_free():
            self._lingering.pop(connection, None)
            connection.terminate()

    async def close(self) -> None:
        """Close all free connections, and others as they are given back."""
        end, self._end = self._end, None
        await (self._close() if end is None else end.aclose())

    async def _close(self) -> None:
        self._closed = True
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        self._close_free()
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
            self._watcher = None
        if self._closing:
            _, late = await asyncio.wait([*self._closing], timeout=_LAST_WAIT)
            for task in late:
                task.cancel()
        while self._closing:
            await asyncio.wait([*self._closing])  # until their callbacks have run
        self._ended = True

    async def _close_at_the_end(self) -> AsyncGenerator[None]:
        """Close what a program leaves open: an event loop ends its generators after it has cancelled its tasks."""
        try:
            yield
        finally:
            await self._close()

    def _close_free(self) -> None:
        for connection in self._line.drop_free():
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        """Close a connection, so that its statement in the database is stopped too."""
        self._lingering.pop(connection, None)
        if self._ended:  # of a call that outlived the store
            connection.terminate()
        if not connection.is_closed():
            self._beside(_close(connection), lambda _: connection.terminate())

    def _beside(self, work: Coroutine[Any, Any, T], done: Callable[[asyncio.Task[T]], None]) -> None:
        """Run a task that need not be awaited, and `done` after it, also if the event loop ends before it has begun."""
        task = asyncio.get_running_loop().create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        task.add_done_callback(done)

    def _end_left_open(self) -> None:
        """End what was left open on connections that nobody uses: for a snapshot the server keeps deleted rows."""
        self._linger_timer = None
        for connection in self._line.take_free(self._lingering.__contains__):
            self._lingering.pop(connection, None)
            self._beside(_roll_back(connection), partial(self._release_ended, connection))
        if self._lingering:  # on their way to one who waited in line, and may go away
            self._linger_timer = asyncio.get_running_loop().call_later(_LINGER, self._end_left_open)

    def _release_ended(self, connection: Connection, ending: asyncio.Task[bool]) -> None:
        self.release(connection, broken=ending.cancelled() or ending.exception() is not None or not ending.result())


def is_dropped() -> bool:
    """Whether the caller's coroutine is being closed from outside: it can await nothing."""
    return isinstance(sys.exception(), GeneratorExit)


async def _roll_back(connection: Connection) -> bool:
    """End what is open on a connection; whether the connection can still be used."""
    try:
        async with asyncio.timeout(_CLOSE_WAIT):
            await connection.execute("rollback")
    except REFUSALS:
        return False
    return True


async def _close(connection: Connection) -> None:
    with contextlib.suppress(*REFUSALS):
        await connection.close(timeout=_CLOSE_WAIT)


def _refusal(error: BaseException) -> BaseException:
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        name = error.args[0].split('"')[1:2] or ["NAME"]  # the quotes are of another kind in some languages
        return DatabaseUnavailable(
            f"The database server refused the connection: {error}.",
            fix=f"Make the database with createdb {name[0]}, or check the database URL.",
        )
    meant = translate(error)
    if isinstance(meant, DatabaseUnavailable) or not isinstance(error, asyncpg.PostgresError):
        return DatabaseUnavailable(
            f"Cannot connect to the database: {str(error) or 'it did not answer in time'}.",
            fix="Check that it runs, and the database URL.",
        )
    return DatabaseUnavailable(f"The database refused the connection: {error}.", fix="Check the database URL.")
