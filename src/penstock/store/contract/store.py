"""The promises of a store. Both stores keep them; `tests/conformance` checks them.

The promises of a verb stand in the class of its noun, in `store.nouns`; where the stores differ, it is an abstract
method there. A row is a tuple of values in the store's own form, which the dialect converts. Errors of a driver leave a
store only as errors of penstock's tree.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from penstock.changes.position import Position
from penstock.schema.table import TableDefinition
from penstock.store.contract.schema import Catalog
from penstock.store.contract.session import OpenTransaction, Session
from penstock.store.nouns.api_keys import ApiKeys
from penstock.store.nouns.changes import Changes
from penstock.store.nouns.crons import Crons
from penstock.store.nouns.interests import Interests
from penstock.store.nouns.jobs import Jobs
from penstock.store.nouns.keys import Keys
from penstock.store.nouns.leases import Leases
from penstock.store.nouns.locks import Locks
from penstock.store.nouns.outboxes import Outboxes
from penstock.store.nouns.pools import Pools
from penstock.store.nouns.programs import Programs
from penstock.store.nouns.rates import Rates
from penstock.store.nouns.records import Records
from penstock.store.nouns.requests import Requests
from penstock.store.nouns.tasks import Tasks
from penstock.store.nouns.tokens import Tokens
from penstock.store.sql.dialect import Dialect


class Signals(Protocol):
    """Wake-ups between processes. Lost wake-ups only cost time: services also look by themselves.

    Attributes:
        watched: The tables that live queries of this process read.
    """

    watched: set[str]

    def notify(self) -> None:
        """Tell the services of all processes that there is work; coalesced, after commit, never waits."""

    def wrote(self, tables: set[str]) -> None:
        """The same after rows of tables were written, if live queries of any process read one of these."""

    def subscribe(self, event: asyncio.Event) -> None:
        """Set an event at each wake-up."""

    def unsubscribe(self, event: asyncio.Event) -> None:
        """Set an event no longer."""

    def until_fed(self, reader: asyncio.Event, position: Position) -> float:
        """The seconds for which a reader of the change feed at this position need not look.

        Its event is set before that if anybody writes to the feed.
        """


class Store(Protocol):
    """A database that remembers.

    Attributes:
        writers: The number of write transactions that one process may have under way at once.
    """

    dialect: Dialect
    writers: int
    jobs: Jobs
    keys: Keys
    rates: Rates
    pools: Pools
    programs: Programs
    crons: Crons
    interests: Interests[Any]
    changes: Changes
    tasks: Tasks
    records: Records
    outboxes: Outboxes
    leases: Leases
    requests: Requests
    api_keys: ApiKeys
    tokens: Tokens
    locks: Locks
    catalog: Catalog
    signals: Signals

    async def open(self, *, look: bool = False) -> None:
        """Connect; to `look` only, the settings of the database stay too. Raises `DatabaseUnavailable`."""

    async def close(self) -> None:
        """Release all connections; nothing may be under way."""

    async def begin_read(self) -> Session:
        """A read-only snapshot. Raises `ContextError` if the store was closed, as `begin_write` does."""

    async def begin_write(self, queue: int | None = None) -> Session:
        """A serializable transaction.

        Args:
            queue: One of so many `QUEUES`, in which it waits until those before it have ended; or `EVERY_QUEUE`. Its
                snapshot is of the time after.
        """

    async def synchronize(self, transaction: OpenTransaction | None = None) -> None:
        """Set the clock by the database's, so that all machines on it agree on the time.

        Args:
            transaction: The transaction to ask in; one of its own by default.
        """

    async def ping(self) -> None:
        """Raise unless the database answers."""

    def check_definition(self, definition: TableDefinition) -> None:
        """Raise `DeclarationError` for a table that this store cannot hold."""
