"""Wake-ups on SQLite: within the process at once, between processes by looking at the file's version.

Owns one connection that only looks. SQLite counts the commits of others for each connection; reading that count
takes a few microseconds and no lock.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable

from penstock.changes.position import Position
from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.observe.logs import event as log_event
from penstock.store.nouns.changes import BACKSTOP, BY_ITSELF
from penstock.store.sql.queries import Query

_LOOK_EVERY = 0.03  # seconds; on a slow processor all looks take about 1 % of it
_AGAIN_AFTER = 0.5


class SqliteSignals:
    """See `store.Signals`."""

    def __init__(self, connect: Callable[[], Awaitable[sqlite3.Connection]], version: Query, clock: Clock) -> None:
        self._connect = connect
        self._version = version.statement.sql
        self._clock = clock
        self._events: set[asyncio.Event] = set()
        self.watched = set[str]()
        self._watcher: asyncio.Task[None] | None = None

    def notify(self) -> None:
        """Tell the services of this process that there is work; others see the commit."""
        for event in self._events:
            event.set()

    def wrote(self, tables: set[str]) -> None:
        if not self.watched.isdisjoint(tables):
            self.notify()

    def subscribe(self, event: asyncio.Event) -> None:
        self._events.add(event)
        if self._watcher is None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch())

    def unsubscribe(self, event: asyncio.Event) -> None:
        self._events.discard(event)

    def until_fed(self, reader: asyncio.Event, position: Position) -> float:  # noqa: ARG002 - each commit sets all events
        return BACKSTOP if self._watcher is not None else BY_ITSELF

    async def close(self) -> None:
        """Stop looking."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
            self._watcher = None

    async def _watch(self) -> None:
        while True:
            try:
                await self._look()
            except (PenstockError, sqlite3.Error) as error:
                log_event("signals.lost", logging.WARNING, error=error)
            self.notify()  # something may have been missed
            await self._clock.sleep(_AGAIN_AFTER)

    async def _look(self) -> None:
        connection = await self._connect()
        seen: int | None = None
        try:
            while True:
                version: int = connection.execute(self._version).fetchone()[0]
                if version != seen:
                    self.notify()
                seen = version
                await self._clock.sleep(_LOOK_EVERY)
        finally:
            connection.close()
