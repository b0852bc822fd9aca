"""The PostgreSQL store: its parts put together."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from penstock.clock import Clock, SystemClock
from penstock.config import Config, Password
from penstock.errors import ConfigError
from penstock.store.nouns.leases import Leases
from penstock.store.nouns.pools import Pools
from penstock.store.nouns.rates import Rates
from penstock.store.postgres.access import PostgresAccess
from penstock.store.postgres.catalog import PostgresCatalog
from penstock.store.postgres.changes import PostgresChanges
from penstock.store.postgres.connections import Connections
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.postgres.errors import translate
from penstock.store.postgres.heads import Heads
from penstock.store.postgres.interests import PostgresInterests
from penstock.store.postgres.jobs import PostgresGates, PostgresJobs
from penstock.store.postgres.replica import PATIENCE, PostgresReplica
from penstock.store.postgres.route import Connection, Route
from penstock.store.postgres.searches import PostgresSearches
from penstock.store.postgres.session import BEGIN_READ, BEGIN_WRITE, PostgresSession, SingleStatement, begin
from penstock.store.postgres.signals import PostgresSignals
from penstock.store.postgres.tasks import PostgresTaskEnds, PostgresTasks
from penstock.store.session import OpenTransaction, Row, Session, reading
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.queries import load_queries
from penstock.store.store import Store

_OLDEST = 13
_ON_REPLICA = 3  # a tick, a late batch, and a look whether the replica is back
_FOR_SERVICES = 4  # one to claim, one to settle, one for planner and relay, one to notify


class PostgresStore(Store):
    """See `store.Store`. PostgreSQL 13 and newer."""

    catalog: PostgresCatalog
    signals: PostgresSignals

    def __init__(self, url: str, config: Config, clock: Clock, password: Password | None = None) -> None:
        self._clock = clock
        self.dialect: Dialect = POSTGRES.in_schema(config.schema)
        self._queries = load_queries("store", self.dialect)
        self.writers = config.max_connections
        timing: dict[str, Any] = {"wait": config.database_wait, "dialect": self.dialect}
        timing["statement_timeout"] = config.statement_timeout
        pooled, limits = bool(config.direct_database), (config.statement_timeout, config.lease, password)
        route = Route(url, *limits, pooled=pooled)
        self._connections = Connections(route, size=config.max_connections, **timing)
        # Services have connections of their own: no number of calls may keep a worker from renewing its lease.
        for_services = Connections(Route(url, *limits, pooled=pooled, same_plans=True), size=_FOR_SERVICES, **timing)
        self._for_services = for_services
        self._direct = self._connections
        if config.direct_database:
            self._direct = Connections(Route(config.direct_database, *limits), size=1, **timing)
        access = PostgresAccess(for_services)
        self.rates = Rates(access)
        heads = Heads(clock)
        ends = PostgresTaskEnds(access)
        self.jobs = PostgresJobs(access, for_services, PostgresGates(access, self.rates), heads, ends)
        self.pools = Pools(access, heads.after)
        self.leases = Leases(access, self.jobs)
        self.catalog = PostgresCatalog(self._connections, self._direct)
        self.searches = PostgresSearches(access)
        self.interests = PostgresInterests(access, self.catalog)
        self.changes = PostgresChanges(access)
        self.tasks = PostgresTasks(access, self.changes, self.jobs, ends, clock)
        self._add_shared(access, PostgresAccess(self._connections), ends)
        self.signals = PostgresSignals(for_services, self._direct, self._queries)
        self.replica: PostgresReplica | None = None
        if config.read_url:
            there = Connections(Route(config.read_url, *limits), size=_ON_REPLICA, **timing | {"wait": PATIENCE})
            self.replica = PostgresReplica(
                there, for_services, partial(begin, self._connections, BEGIN_READ), self._queries
            )

    async def open(self, *, look: bool = False, for_leases: bool = False) -> None:  # noqa: ARG002 - it sets nothing of the database
        """Connect, and set the clock by the database's; for leases only, one connection is enough."""
        if for_leases:
            await self.synchronize()
            return
        connection = await self._connections.acquire()
        self._connections.release(connection)
        try:
            _check_version(connection)
            if self._direct is not self._connections:
                await self._check_direct()
            await self.synchronize()
            if self.replica is not None:
                await self.replica.open()
        except BaseException:
            await self.close()
            raise

    async def _check_direct(self) -> None:
        """Refuse a `direct_database` that leads to another pooler, or to another database."""
        direct = await self._identity_by(self._direct)
        if self._direct.route.pooled:
            raise ConfigError(
                "direct_database leads to a pooler, as database does.",
                fix="Let it lead to the PostgreSQL server itself.",
            )
        if direct != await self._identity_by(self._connections):
            raise ConfigError(
                "direct_database and database lead to different databases.",
                fix="Let both lead to the same one: database through the pooler, direct_database past it.",
            )

    async def _identity_by(self, connections: Connections) -> list[Row]:
        connection = await connections.connect()
        try:
            return list(await connection.fetch(self._queries["identity"].statement.sql))
        except Exception as error:
            raise translate(error) from error
        finally:
            connection.terminate()

    async def close(self) -> None:
        async with AsyncExitStack() as parts:
            for part in (self._direct, self._connections, self._for_services, self.catalog, self.signals):
                parts.push_async_callback(part.close)
            if self.replica is not None:
                parts.push_async_callback(self.replica.close)

    async def begin_read(self) -> PostgresSession:
        return await begin(self._connections, BEGIN_READ)

    async def begin_single(self) -> Session:
        return await self.begin_read() if self._connections.route.pooled else SingleStatement(self._connections)

    async def begin_write(self, queue: int | None = None) -> PostgresSession:
        return await begin(self._connections, BEGIN_WRITE, queue)

    async def synchronize(self, transaction: OpenTransaction | None = None) -> None:
        """Set the clock by the database's, to within the time of a round trip, so that all machines agree."""
        if not isinstance(self._clock, SystemClock):
            return
        if transaction is not None:
            await self._set_clock(self._clock, transaction)
            return
        async with reading(self._access.begin_read) as session:
            await self._set_clock(self._clock, session)

    async def _set_clock(self, clock: SystemClock, transaction: OpenTransaction) -> None:
        before = clock.steady()
        rows = await transaction.fetch(self._queries["time"].statement)
        after = clock.steady()
        clock.set(rows[0][0], (before + after) / 2, within=(after - before) / 2)


def _check_version(connection: Connection) -> None:
    if connection.get_server_version().major < _OLDEST:
        raise ConfigError("This PostgreSQL is older than version 13.", fix="Upgrade the database.")
