"""asyncpg's COPY of the rows that penstock stores for jobs, into its own table; it runs no jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg

from benchmarks.peers.programs.penstock import app, nothing, pool
from benchmarks.peers.protocol import Peer, Ran, serve
from penstock import Config
from penstock.clock import SystemClock
from penstock.jobs.order import rank

_COLUMNS = ("id", "pool", "function", "kind", "args", "priority", "rank", "run_at", "options", "attempt", "enqueued_at")


class BareCopyPeer(Peer):
    """Stores jobs, as penstock would."""

    _connection: Any

    @asynccontextmanager
    async def opened(self, *, install: bool) -> AsyncIterator[None]:
        """Connect, after penstock has made its tables."""
        if install:
            async with app.open(config=Config(database=self.url)):
                pass
        self._connection = await asyncpg.connect(self.url)
        try:
            yield
        finally:
            await self._connection.close()

    async def enqueue_one(self, number: int) -> None:
        """It stores no single jobs."""
        raise NotImplementedError

    async def enqueue_many(self, count: int) -> None:
        """Store jobs."""
        clock = SystemClock()
        now, options = clock.now(), '{"keep": 86400.0}'
        rows = (
            (
                UUID(int=clock.uuid7()),
                pool.name,
                nothing.name,
                "action",
                f'{{"number":{number}}}',
                0,
                rank(now),
                now,
                options,
                0,
                now,
            )
            for number in range(count)
        )
        await self._connection.copy_records_to_table(
            "ready_job", schema_name="penstock", records=rows, columns=_COLUMNS
        )

    async def left(self) -> int:
        """Jobs that are stored."""
        return int(await self._connection.fetchval("select count(*) from penstock.ready_job"))

    def worker(self, ran: Ran) -> AbstractAsyncContextManager[None]:
        """It runs no jobs."""
        raise NotImplementedError


if __name__ == "__main__":
    serve(BareCopyPeer)
