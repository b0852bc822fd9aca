"""Leases of workers on SQLite.

One transaction of all processes writes at a time. So a lease whose row cannot be written in time is extended next to
the database; nobody takes over an extended lease.
"""

from __future__ import annotations

import asyncio
import os
from datetime import datetime, timedelta
from pathlib import Path

from penstock.clock import Clock
from penstock.errors import DatabaseBusy, DatabaseUnavailable
from penstock.store.nouns.jobs import Jobs
from penstock.store.nouns.leases import Leases
from penstock.store.nouns.noun import Access
from penstock.store.sql.dialect import SCHEMA
from penstock.store.sqlite.dialect import encode_datetime


class Extensions:
    """The files next to one database, such as ``app.db-lease-7``: each has the end of its lease, while needed."""

    def __init__(self, database: Path, schema: str) -> None:
        self._database = database
        self._name = "lease" if schema == SCHEMA else f"lease-{schema}"
        self._written: set[int] = set()

    def end(self, lease: int) -> datetime | None:
        """The time until which a lease is extended; None if it is not."""
        try:
            return datetime.fromisoformat(self._file(lease).read_text())
        except (FileNotFoundError, ValueError):  # no text: the machine has died since, and the worker with it
            return None
        except OSError as error:
            raise _unavailable(error) from error

    def write(self, lease: int, end: datetime) -> None:
        """Extend a lease, for all to see at once or not at all."""
        file = self._file(lease)
        draft = file.with_name(f"{file.name}-new")
        try:
            draft.write_text(encode_datetime(end))
            draft.replace(file)
        except OSError as error:
            raise _unavailable(error) from error
        self._written.add(lease)

    def forget(self, lease: int) -> None:
        """Remove this process's file of a lease: the database knows of its end, or it has none."""
        if lease in self._written:
            self.remove(lease)
            self._written.discard(lease)

    def remove(self, lease: int) -> None:
        """Remove the file of a lease, of any process."""
        try:
            self._file(lease).unlink(missing_ok=True)
        except OSError as error:
            raise _unavailable(error) from error

    def _file(self, lease: int) -> Path:
        return Path(f"{os.path.realpath(self._database)}-{self._name}-{lease}")


def _unavailable(error: OSError) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"A lease file next to the database cannot be written: {error}.", fix="Check the folder of the database."
    )


_PATIENCE_PART = 0.1  # of the time a lease holds: how long a renewal waits for the write lock


class SqliteLeases(Leases):
    """See `store.nouns.Leases`. A lease extended next to the database ends later than `list` says."""

    def __init__(self, access: Access, jobs: Jobs, extensions: Extensions, clock: Clock) -> None:
        super().__init__(access, jobs)
        self._extensions = extensions
        self._clock = clock

    async def renew(self, lease: int, ttl: timedelta, now: datetime, holder: str | None = None) -> bool:
        called_at = self._clock.now()
        try:
            async with asyncio.timeout(ttl.total_seconds() * _PATIENCE_PART):
                held = await super().renew(lease, ttl, now, holder)
        except (TimeoutError, DatabaseBusy):
            return await self._extend(lease, ttl, now - called_at)
        self._extensions.forget(lease)
        return held

    async def give_back(self, lease: int) -> None:
        await super().give_back(lease)
        self._extensions.remove(lease)  # which the store of another thread may have written

    async def _extend(self, lease: int, ttl: timedelta, offset: timedelta) -> bool:
        """Extend a lease next to the database; False if it was lost.

        A rescuer reads extensions after the end of the lease, so an extension counts if it was written before.
        `offset` is the difference of the caller's time and the clock's.

        Raises:
            DatabaseBusy: The lease has run out, so that only the database can tell whose it is.
        """
        rows = await self._look("expiry", lease=lease)
        if not rows:
            self._extensions.forget(lease)
            return False
        ends = self._access.time(rows[0]["expires_at"]), self._extensions.end(lease)
        end = max(moment for moment in ends if moment is not None)
        self._extensions.write(lease, self._clock.now() + offset + ttl)
        if self._clock.now() + offset < end:
            return True
        self._extensions.forget(lease)
        raise DatabaseBusy(
            f"Another process held the write lock of the database until lease {lease} expired.",
            fix="Find the process that writes for so long, or raise lease.",
        )

    def _is_extended(self, lease: int, now: datetime) -> bool:
        end = self._extensions.end(lease)
        return end is not None and now < end

    def _forget(self, lease: int) -> None:
        self._extensions.remove(lease)
