"""Snapshots that stay open for a moment, so that separate calls can read one state of the database.

Owns their number and their end: each holds a connection, and keeps the database from removing old rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import ClassVar, TypeVar

from penstock.calls.run.engine import Engine
from penstock.errors import TryAgain
from penstock.store.session import Session, reading

R = TypeVar("R")

KEPT = 3.0  # seconds
_CONNECTIONS_EACH = 4  # so most connections are left for calls


class OutOfRetention(TryAgain):
    """The snapshot has been closed, or another process took it."""

    code: ClassVar[str] = "out_of_retention"


class Snapshot:
    """An open snapshot. Its calls run one after another; one that is cut off, or loses the database, ends it."""

    def __init__(self, session: Session, now: datetime) -> None:
        self._session = session
        self._now = now
        self._one_at_a_time = asyncio.Lock()
        self.failed = asyncio.Event()

    async def use(self, read: Callable[[Session, datetime], Awaitable[R]], savepoint: str) -> R:
        """Read in the snapshot, at its time, and release the savepoint that was set there.

        Raises:
            OutOfRetention: Another call has ended it.
        """
        async with self._one_at_a_time:
            if self.failed.is_set():
                raise OutOfRetention("Another call at this snapshot was cut off.")
            try:
                found = await read(self._session, self._now)
                await self._session.release(savepoint)
            except BaseException:
                self.failed.set()
                raise
            return found

    async def wait_for_calls(self) -> None:
        """Wait for the calls that began before."""
        async with self._one_at_a_time:
            pass


class Snapshots:
    """The snapshots of one process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pause = KEPT / max(1, engine.config.max_connections // _CONNECTIONS_EACH)
        self._next_at = 0.0  # by the monotonic clock
        self._coming: asyncio.Future[int] | None = None
        self._open: dict[int, Snapshot] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self) -> int:
        """Take a snapshot that shows what is committed now; its number. Callers that wait for it share it."""
        coming = self._coming
        if coming is None:
            coming = self._coming = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(self._keep(coming), name="penstock-snapshot")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(coming)

    def find(self, number: int) -> Snapshot:
        """The open snapshot of this number.

        Raises:
            OutOfRetention: It is not open in this process.
        """
        found = self._open.get(number)
        if found is None:
            raise OutOfRetention(f"The snapshot {number} is not open here.")
        return found

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self, coming: asyncio.Future[int]) -> None:
        clock, store = self._engine.clock, self._engine.store
        number = clock.seed()
        try:
            await clock.sleep(self._next_at - clock.monotonic())
            self._next_at = clock.monotonic() + self._pause
            self._coming = None  # a later caller may have committed what this snapshot does not show
            async with reading(store.begin_read) as session:
                await store.changes.end(session)  # PostgreSQL takes the snapshot at the first statement
                snapshot = self._open[number] = Snapshot(session, clock.now())
                coming.set_result(number)
                await clock.wait(snapshot.failed, KEPT)
                del self._open[number]
                await snapshot.wait_for_calls()
        except Exception as error:  # noqa: BLE001 - the callers handle it
            coming.set_exception(error)
        finally:
            self._open.pop(number, None)
            coming.cancel()
