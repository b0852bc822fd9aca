"""A snapshot of a single statement, which needs no transaction: one round trip instead of two.

A caller that reads more, or meets an error, is told to begin again in a transaction.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, NoReturn

from penstock.changes.readset import RangeRead
from penstock.errors import DatabaseBusy, DatabaseUnavailable, PenstockError
from penstock.store.postgres.connections import Connections
from penstock.store.postgres.session import BEGIN_READ, PostgresSession
from penstock.store.session import NeedsTransaction, Row, Statement, call_after_end


class SingleStatement:
    """Runs one statement of penstock's own on a managed table, by itself. Views of users may have code of their own."""

    __slots__ = ("_connections", "_ended", "_used")
    passed = False

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._used = self._ended = False

    async def fetch(self, statement: Statement, args: Sequence[Any] = ()) -> Sequence[Row]:
        """Run a statement; its rows."""
        if self._ended:
            raise call_after_end()
        if self._used or not statement.reads or statement.of is None or not statement.of.managed:
            raise NeedsTransaction
        self._used = True
        connection = await self._connections.acquire()
        session = PostgresSession(self._connections, connection, BEGIN_READ, lingers=False)
        try:
            return await session.fetch(statement, args)
        except DatabaseBusy:  # it took too long, and would again
            raise
        except DatabaseUnavailable as error:
            self._connections.drop_free()
            raise NeedsTransaction(lasts=False) from error
        except PenstockError as error:
            raise NeedsTransaction(lasts=False) from error
        finally:
            session.end_alone()

    def fetch_range(
        self, _read: RangeRead, statement: Statement, args: Sequence[Any]
    ) -> Coroutine[Any, Any, Sequence[Row]]:
        """Run a statement that reads rows of a range."""
        return self.fetch(statement, args)

    async def rollback(self) -> None:
        """End: nothing is open."""
        self._ended = True

    async def _refuse(self, *_: object) -> NoReturn:
        raise call_after_end() if self._ended else NeedsTransaction()

    execute = execute_many = fetch_read_only = change = savepoint = release = rollback_to = commit = refuse_trigger = (
        _refuse
    )
