"""Wake-ups on SQLite: within the process at once, between processes by looking at the file's version.

Owns one connection that only looks. SQLite counts the commits of others for each connection; reading that count
takes a few microseconds and no lock. Where the kernel tells of writes to the log, there is a look after each of them.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

from penstock.changes.position import Position
from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.observe.logs import event as log_event
from penstock.store.nouns.changes import BACKSTOP, BY_ITSELF
from penstock.store.sql.queries import Query
from penstock.store.sqlite.filewatch import FileWatch

_LOOK_EVERY = 0.03  # seconds; on a slow processor all looks take about 1 % of it
# Where the kernel tells of writes to the log: seconds from one look to the next. A write comes before its commit shows.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.25
_LONGEST_REST = 0.004  # seconds from one look to the next while somebody writes again and again
_AGAIN_AFTER = 0.5


class SqliteSignals:
    """See `store.Signals`."""

    def __init__(
        self, path: Path, connect: Callable[[], Awaitable[sqlite3.Connection]], version: Query, clock: Clock
    ) -> None:
        self._log = Path(f"{path}-wal")
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
        connection, log, seen = await self._connect(), None, 0
        rest = pause = _FIRST_PAUSE
        try:
            while True:
                version: int = connection.execute(self._version).fetchone()[0]
                if version != seen:
                    self.notify()
                if log is None and (log := self._watch_log()) is None:
                    await self._clock.sleep(_LOOK_EVERY)
                elif log.changed.is_set():  # its commit shows a little later
                    log.listen()
                    await self._clock.sleep(rest)
                    rest, pause = min(rest * 2, _LONGEST_REST), _FIRST_PAUSE
                else:
                    pause = _LONGEST_PAUSE if version != seen else min(pause * 2, _LONGEST_PAUSE)
                    rest = _FIRST_PAUSE
                    await self._clock.wait(log.changed, pause)
                seen = version
        finally:
            if log is not None:
                log.close()
            connection.close()

    def _watch_log(self) -> FileWatch | None:
        try:
            return FileWatch(self._log)
        except OSError:  # the looks go on
            return None
