"""Wake-ups between processes by LISTEN and NOTIFY.

Owns one listening connection, which is watched and replaced when it breaks. Sends notifications outside any user's
transaction, at most one per pause: a NOTIFY inside a transaction would make all commits wait in one line.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from penstock.changes.position import Position
from penstock.clock import SystemClock
from penstock.observe.logs import event as log_event
from penstock.store.nouns.changes import BACKSTOP, BY_ITSELF
from penstock.store.postgres.access import run
from penstock.store.postgres.connections import Connections
from penstock.store.postgres.errors import translate
from penstock.store.postgres.route import Connection
from penstock.store.sql.queries import Query

_PAUSE = 0.005
_CHECK_EVERY = 10.0
_ASK_EVERY = 1.0  # seconds after which a writing process asks again which tables are watched
_LOOK_EVERY = 0.035  # seconds; on a slow processor all looks take 2 to 3 % of it
_LOOK_SELDOM = 0.1  # the same, after so many looks that saw nothing new
_QUIET_LOOKS = 300
_READS = 2 * BACKSTOP  # seconds for which a process that has looked at the feed counts as a reader
_RECONNECT_AFTER = 0.5
_LAST_WAIT = 1.0


class PostgresSignals:
    """See `store.Signals`. One of the connections sends notifications; one that is `direct` listens."""

    def __init__(self, connections: Connections, direct: Connections, queries: Mapping[str, Query]) -> None:
        self._queries = queries
        self._connections, self._channel = connections, connections.dialect.schema
        self._direct = direct
        self._clock = SystemClock()
        self.listening = False  # whether notifications are heard, as far as is known
        self.watched = set[str]()
        self._watched_elsewhere = set[str]()
        self._asked_at = -_ASK_EVERY
        self._asker: asyncio.Task[None] | None = None
        self._events: set[asyncio.Event] = set()
        self._readers: dict[asyncio.Event, tuple[float, int]] = {}  # each until when, and up to where it has looked
        self._looks, self._last, self._fed_at = False, 0, 0.0
        self._wanted = asyncio.Event()
        self._sent = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None

    def notify(self) -> None:
        self._set_all()
        self._wanted.set()
        self._sent.clear()
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send_loop())

    def wrote(self, tables: set[str]) -> None:
        is_watched = not tables.isdisjoint(self.watched | self._watched_elsewhere)
        if is_watched:
            self.notify()
        now = self._clock.monotonic()
        if now - self._asked_at >= _ASK_EVERY:
            self._asked_at = now
            self._asker = asyncio.get_running_loop().create_task(self._ask(set() if is_watched else tables))

    async def _ask(self, wrote: set[str]) -> None:
        """Learn which tables are watched; tell who does of what was just written."""
        try:
            rows = await run(self._connections, self._queries["watched"], {})
        except Exception as error:  # noqa: BLE001 - who watches looks by itself
            log_event("signals.send_failed", logging.WARNING, error=error)
        else:
            self._watched_elsewhere = {row[0] for row in rows}
            if not wrote.isdisjoint(self._watched_elsewhere):
                self.notify()

    def subscribe(self, event: asyncio.Event) -> None:
        self._events.add(event)
        if self._listener is None:
            self._listener = asyncio.get_running_loop().create_task(self._listen_loop())

    def unsubscribe(self, event: asyncio.Event) -> None:
        self._events.discard(event)
        self._readers.pop(event, None)

    def until_fed(self, reader: asyncio.Event, position: Position) -> float:
        """The seconds for which a reader of the change feed need not look.

        The looks of this process see writes before they commit. So the reader looks by itself while something may be
        about to come: writes since it looked before, recent writes, transactions that were open when it looked.
        """
        now = self._clock.monotonic()
        _, last = self._readers.get(reader, (0.0, None))
        self._readers[reader] = now + _READS, self._last
        if not self._looks or now - self._fed_at < _READS or self._last != last or position.seen.open:
            return BY_ITSELF
        return BACKSTOP

    async def close(self) -> None:
        """Send pending notifications, and stop listening and sending."""
        try:
            if self._sender is not None and not self._sender.done():
                await self._clock.wait(self._sent, _LAST_WAIT)
        finally:
            tasks = [task for task in (self._sender, self._listener, self._asker) if task is not None]
            self._sender = self._listener = self._asker = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _set_all(self, *_notification: Any) -> None:
        for event in self._events:
            event.set()

    async def _listen_loop(self) -> None:
        if self._direct.route.pooled:  # no notification comes through; services look by themselves
            log_event(
                "signals.polling", logging.WARNING, reason="database leads to a pooler, no direct_database is set"
            )
            return
        while True:
            try:
                await self._listen()
            except Exception as error:  # noqa: BLE001 - whatever it is, a process must not stay deaf
                log_event("signals.lost", logging.WARNING, error=error)
            self._set_all()  # something may have been missed
            await self._clock.sleep(_RECONNECT_AFTER)

    async def _listen(self) -> None:
        connection = await self._direct.connect()
        gone = asyncio.Event()
        connection.add_termination_listener(lambda _connection: gone.set())
        try:
            await connection.add_listener(self._channel, self._set_all)
            self.listening = True
            self._set_all()
            await self._look(connection, gone)
        except Exception as error:
            raise translate(error) from error
        finally:
            self.listening = self._looks = False
            connection.terminate()

    async def _look(self, connection: Connection, gone: asyncio.Event) -> None:
        """Look whether the connection is alive, and often at the change feed while somebody here reads it."""
        fed, quiet, ping = None, 0, self._queries["ping"].statement.sql
        checked_at = self._clock.monotonic()
        while True:
            if self._readers:
                # A sleep takes two thirds of the time of a wait.
                await self._clock.sleep(_LOOK_EVERY if quiet < _QUIET_LOOKS else _LOOK_SELDOM)
            else:
                await self._clock.wait(gone, BACKSTOP)
            if gone.is_set():
                return
            now = self._clock.monotonic()
            self._readers = {reader: one for reader, one in self._readers.items() if one[0] > now}
            if not self._readers:
                self._looks = False
                if now - checked_at >= _CHECK_EVERY:
                    await connection.fetchval(ping, timeout=_CHECK_EVERY)
                    checked_at = now
                continue
            if fed is None:  # not before: the first program on a database makes its tables only then
                fed = await connection.prepare(self._queries["fed"].statement.sql)
            last = await fed.fetchval(timeout=_CHECK_EVERY) or 0
            quiet = quiet + 1 if last == self._last else 0
            if last != self._last or not self._looks:
                self._looks, self._last, self._fed_at = True, last, now
                for reader in self._readers:
                    reader.set()

    async def _send_loop(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await run(self._connections, self._queries["notify"], {"channel": self._channel})
            except Exception as error:  # noqa: BLE001 - services also look by themselves; the next one tries again
                log_event("signals.send_failed", logging.WARNING, error=error)
            if not self._wanted.is_set():
                self._sent.set()
            await self._clock.sleep(_PAUSE)
