"""The promises of a store. Both stores keep them; `tests/conformance` checks them.

The promises of a verb stand in the class of its noun, in `store.nouns`; where the stores differ, it is an abstract
method there. A row is a tuple of values in the store's own form, which the dialect converts. Errors of a driver leave a
store only as errors of penstock's tree.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from penstock.changes.position import Position
from penstock.codec import Codec, Encryption
from penstock.schema.fields import Kind
from penstock.schema.table import TableDefinition
from penstock.store.nouns.api_keys import ApiKeys
from penstock.store.nouns.audit import Audit
from penstock.store.nouns.catalog import Catalog
from penstock.store.nouns.changes import Changes
from penstock.store.nouns.crons import Crons
from penstock.store.nouns.dashboard_sessions import DashboardSessions
from penstock.store.nouns.files import Files
from penstock.store.nouns.interests import Interests
from penstock.store.nouns.jobs import Jobs
from penstock.store.nouns.keys import Keys
from penstock.store.nouns.leases import Leases
from penstock.store.nouns.locks import Locks
from penstock.store.nouns.logbook import StoredLogbook
from penstock.store.nouns.migration_files import MigrationFiles
from penstock.store.nouns.noun import Access
from penstock.store.nouns.outboxes import Outboxes
from penstock.store.nouns.pools import Pools
from penstock.store.nouns.programs import Programs
from penstock.store.nouns.rates import Rates
from penstock.store.nouns.records import Records
from penstock.store.nouns.requests import Requests
from penstock.store.nouns.searches import Searches
from penstock.store.nouns.signing_keys import SigningKeys
from penstock.store.nouns.statistics import DatabaseStatistics
from penstock.store.nouns.tasks import TaskEnds, Tasks
from penstock.store.nouns.tokens import Tokens
from penstock.store.nouns.workflows import Workflows
from penstock.store.session import OpenTransaction, Session, reading
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.queries import Query


class Signals(Protocol):
    """Wake-ups between processes. Lost wake-ups only cost time: services also look by themselves."""

    watched: set[str]  # the tables that live queries of this process read

    def notify(self) -> None:
        """Tell the services of all processes that there is work; coalesced, after commit, never waits."""

    def wrote(self, tables: set[str]) -> None:
        """Tell live queries of any process that rows of tables were written, if they read one of these."""

    def subscribe(self, event: asyncio.Event) -> None:
        """Set an event at each wake-up."""

    def unsubscribe(self, event: asyncio.Event) -> None:
        """Set an event no longer."""

    def until_fed(self, reader: asyncio.Event, position: Position) -> float:
        """The seconds for which a reader of the change feed at this position need not look.

        Its event is set before that if anybody writes to the feed.
        """


class Replica(Protocol):
    """A standby of the database, on which watched queries are read."""

    async def begin(self, position: Position | None, since: int) -> Session:
        """A read-only snapshot that shows all that was committed before; on the primary if the replica cannot do it.

        Args:
            position: The position of the feed from which changes are read in it; None to read none.
            since: A transaction before which some may lack in the feed.
        """

    def leave(self, error: Exception) -> bool:
        """Read on the primary for a while, as a tick failed; False if nothing was read on the replica before."""

    async def behind(self) -> int | None:
        """The bytes of the primary's log that it has still to replay; None if it does not answer."""


class Store(ABC):
    """A database that remembers."""

    dialect: Dialect
    _queries: Mapping[str, Query]
    encryption: Encryption = Encryption()  # of arguments, results and contexts of jobs
    writers: int  # the number of write transactions that one process may have under way at once
    replica: Replica | None  # on which watched queries are read, if there is one
    jobs: Jobs
    rates: Rates
    pools: Pools
    interests: Interests[Any]
    changes: Changes
    searches: Searches
    tasks: Tasks
    leases: Leases
    catalog: Catalog
    signals: Signals

    def encrypt_with(self, codec: Codec | None) -> None:
        """Encrypt and decrypt with a codec."""
        found = self.encryption = Encryption(codec)
        self._access.encryption = self._calls.encryption = found
        encode = {**self.dialect.encode, Kind.ENCRYPTED: found.encrypt_value}
        decode = {**self.dialect.decode, Kind.ENCRYPTED: found.decrypt_value}
        self.dialect = replace(self.dialect, encode=encode, decode=decode)

    def _add_shared(self, access: Access, calls: Access, ends: TaskEnds) -> None:
        """Add the nouns that are made alike for both stores, once their `jobs` and `tasks` are there."""
        self._access, self._calls = access, calls
        self.keys = Keys(access)
        self.programs = Programs(access)
        self.crons = Crons(access, self.jobs)
        self.tokens = Tokens(access, calls, self.jobs)
        self.locks = Locks(access, calls)
        self.workflows = Workflows(access, self.jobs)
        self.migration_files = MigrationFiles(access)
        self.requests = Requests(access)
        self.api_keys = ApiKeys(access)
        self.signing_keys = SigningKeys(calls)
        self.audit = Audit(access)
        self.files = Files(calls)
        self.dashboard_sessions = DashboardSessions(access)
        self.logbook = StoredLogbook(access)
        self.outboxes = Outboxes(access)
        self.statistics = DatabaseStatistics(access)
        self.records = Records(access, self.jobs, self.tasks, ends)

    @abstractmethod
    async def open(self, *, look: bool = False, for_leases: bool = False) -> None:
        """Connect; to `look` only, the settings of the database stay too; `for_leases` only, once if that is enough.

        Raises `DatabaseUnavailable`.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release all connections; nothing may be under way."""

    @abstractmethod
    async def begin_read(self) -> Session:
        """A read-only snapshot. Raises `ContextError` if the store was closed, as `begin_write` does."""

    async def begin_single(self) -> Session:
        """A snapshot for a single statement: what comes after it may raise `NeedsTransaction`."""
        return await self.begin_read()

    @abstractmethod
    async def begin_write(self, queue: int | None = None) -> Session:
        """A serializable transaction.

        With a `queue`, one of so many `QUEUES` or `EVERY_QUEUE`, it waits there until those before it have ended. Its
        snapshot is of the time after.
        """

    async def synchronize(self, transaction: OpenTransaction | None = None) -> None:  # noqa: B027 - SQLite is here
        """Set the clock by the database's, asked in this transaction or one of its own, for all machines to agree."""

    async def ping(self) -> None:
        """Raise unless the database answers; calls may hold all connections that are for them."""
        async with reading(self._access.begin_read) as session:
            await session.fetch(self._queries["ping"].statement)

    def check_definition(self, definition: TableDefinition) -> None:  # noqa: B027 - PostgreSQL holds every table
        """Raise `DeclarationError` for a table that this store cannot hold."""
