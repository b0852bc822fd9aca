"""Reads of watched queries on a standby of the database, the replica; on the primary while it cannot be used.

Owns when the replica may be read, and what a snapshot there shows. A tick shows all that was committed when it began,
wherever it is read. The primary says how far its log is flushed, and the snapshot is taken once that is replayed.

A standby does not say which transactions are open: `pg_current_snapshot()` lists none there. So they are found out
before the snapshot is taken. Transactions that end meanwhile count as open: their changes come twice, which does no
harm. `docs/decisions/reads-from-a-replica.md` says more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from penstock.changes.position import NOTHING, Position, Snapshot
from penstock.clock import SystemClock
from penstock.errors import ConfigError, DatabaseBusy, DatabaseUnavailable, PenstockError, TryAgain
from penstock.observe.logs import event as log_event
from penstock.store.postgres.access import run
from penstock.store.postgres.connections import Connections
from penstock.store.postgres.session import BEGIN_READ, PostgresSession
from penstock.store.sql.queries import Query

PATIENCE = 0.5  # seconds; ticks wait for a replica that is no further behind
_AGAIN_AFTER = 1.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.01
_FIX = "Let read_url lead to a standby of the database's own server, or leave it out."


class PostgresReplica:
    """See `store.Replica`.

    Args:
        connections: Those to the replica.
        primary: Those to the primary.
        begin_read: Begins a snapshot on the primary.
        queries: Those of the store.
    """

    def __init__(
        self,
        connections: Connections,
        primary: Connections,
        begin_read: Callable[[], Awaitable[PostgresSession]],
        queries: Mapping[str, Query],
    ) -> None:
        self._connections = connections
        self._primary = primary
        self._begin_read = begin_read
        self._queries = queries
        self._clock = SystemClock()
        self._is_used = False
        self._was_read = False  # since a tick failed: also by a late batch, after the replica was left
        self._timeline = 0  # of the primary, when the replica was found to follow it
        self._least = 0  # the place in the log that covers the last snapshot on the primary
        self._returning: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect. If the replica is away, it is used once it is there.

        Raises:
            ConfigError: It is no replica of this database.
        """
        try:
            await self._check()
        except TryAgain as error:
            self._leave(error)
        else:
            self._is_used = True

    async def close(self) -> None:
        """Release all connections."""
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.gather(self._returning, return_exceptions=True)
        await self._connections.close()

    async def begin(self, position: Position | None, since: int) -> PostgresSession:
        if self._is_used and position is not None:
            session = await self._begin_here(position, since)
            if session is not None:
                self._was_read = True
                return session
        session = await self._begin_read()
        try:
            ((self._least,),) = await session.fetch(self._queries["inserted"].statement)
        except BaseException:
            await session.rollback()
            raise
        return session

    def leave(self, error: Exception) -> bool:
        was_read, self._was_read = self._was_read, False
        if was_read and self._is_used:
            self._leave(error)
        return was_read

    async def behind(self) -> int | None:
        ((flushed, _),) = await run(self._primary, self._queries["flushed"], {})
        try:
            async with _patience():
                ((replayed,),) = await run(self._connections, self._queries["place"], {})
        except TryAgain:
            return None
        return None if replayed is None else max(0, flushed - replayed)

    # ----- steps

    async def _begin_here(self, position: Position, since: int) -> PostgresSession | None:
        """A snapshot on the replica; None if the primary is to be read this time."""
        ((flushed, timeline),) = await run(self._primary, self._queries["flushed"], {})
        if flushed < self._least:  # the last snapshot shows commits that are not durable, so a replica may lack them
            return None
        try:
            if timeline != self._timeline:
                raise DatabaseUnavailable("The primary is another one than before.")
            session = await self._catch_up(flushed, position.seen)
        except PenstockError as error:
            self._leave(error)
            return None
        shown = session.shown
        # Nobody can say which transactions older than a demand the snapshot shows, so all of them must have ended.
        if shown and shown.below(since) == Snapshot(since):
            return session
        await session.rollback()
        return None

    async def _catch_up(self, flushed: int, seen: Snapshot) -> PostgresSession:
        """A snapshot on the replica once it has replayed the log up to a place.

        Args:
            flushed: The place.
            seen: The last snapshot, whose open transactions, and all since, may have ended.

        Raises:
            TryAgain: The replica is too far behind, or away.
        """
        session: PostgresSession | None = None
        try:
            async with _patience():
                session = PostgresSession(
                    self._connections, await self._connections.acquire(), BEGIN_READ, lingers=True
                )
                end, running = await self._wait_for(session, flushed, seen)
                await session.begin(BEGIN_READ)
                (last,) = await _fetch(session, self._queries["shown"])
                session.shown = None if running is None else Snapshot(last, (*running, *range(end, last)))
                return session
        except BaseException:
            if session is not None:
                session.cut()
                await session.rollback()
            raise

    async def _wait_for(self, session: PostgresSession, flushed: int, seen: Snapshot) -> tuple[int, list[int] | None]:
        """Wait until the log is replayed up to a place; the transactions that have not ended then.

        They are the first that is unknown, and those before it that are open; None for these if there are too many.
        """
        query, pause = self._queries["replayed"], _FIRST_PAUSE
        args = query.args({"seen_end": seen.end, "seen_open": list(seen.open)})
        while True:
            replayed, end, running = await _fetch(session, query, args)
            if replayed >= flushed:
                return end, running
            await self._clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _check(self) -> None:
        """Raise unless it is a replica of this database, and follows the primary closely."""
        cluster = self._queries["cluster"]
        ((_, *here, timeline),) = await run(self._primary, cluster, {})
        async with _patience():
            ((stands_by, *there, followed),) = await run(self._connections, cluster, {})
        if self._connections.route.pooled:
            raise ConfigError("read_url leads to a pooler.", fix="Let it lead to the replica itself.")
        if not stands_by:
            raise ConfigError("read_url leads to a server that is no replica: it takes writes.", fix=_FIX)
        if here != there:
            raise ConfigError("read_url leads to a replica of another database.", fix=_FIX)
        if timeline != followed:
            raise DatabaseUnavailable("The replica is not known to follow the present primary.")
        ((flushed, _),) = await run(self._primary, self._queries["flushed"], {})
        await (await self._catch_up(flushed, NOTHING)).rollback()
        self._timeline = timeline

    def _leave(self, error: Exception) -> None:
        self._is_used = False
        self._connections.drop_free()
        log_event("live.replica_left", logging.WARNING, error=error)
        self._returning = asyncio.get_running_loop().create_task(self._return())

    async def _return(self) -> None:
        is_back = False
        while not is_back:
            await self._clock.sleep(_AGAIN_AFTER)
            with suppress(Exception):  # whatever it is, the primary is there
                await self._check()
                is_back = True
        self._is_used = True
        log_event("live.replica_back")


@asynccontextmanager
async def _patience() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(PATIENCE):
            yield
    except TimeoutError:
        raise DatabaseBusy(f"The replica is more than {PATIENCE:g} seconds behind, or does not answer.") from None


async def _fetch(session: PostgresSession, query: Query, args: Sequence[Any] = ()) -> Sequence[Any]:
    """The answer of a standby; it also says that it is one."""
    ((stands_by, *said),) = await session.fetch(query.statement, args)
    if not stands_by:
        raise DatabaseUnavailable("The server of read_url is no replica any more.")
    return said
