"""PgQueuer on asyncpg and uvloop, with batches of 1000."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.peers.protocol import COUNTERS, Peer, Ran, serve

_BATCH = 1000
_CONNECTIONS = 10
_BUMP = "update counter set count = count + 1 where id = $1"


class PgQueuerPeer(Peer):
    """Enqueues over one connection; the worker has a pool, which handlers share for their transactions."""

    works = ("drain", "transactions")
    _connection: Any
    _queries: Queries

    @asynccontextmanager
    async def opened(self, *, install: bool) -> AsyncIterator[None]:
        """Connect."""
        self._connection = await asyncpg.connect(self.url)
        try:
            self._queries = Queries(AsyncpgDriver(self._connection))
            if install:
                await self._queries.install()
            yield
        finally:
            await self._connection.close()

    async def enqueue_one(self, number: int) -> None:
        """Store a job."""
        await self._queries.enqueue("job", str(number).encode())

    async def enqueue_many(self, count: int) -> None:
        """Store jobs in one statement."""
        await self._queries.enqueue(["job"] * count, [str(number).encode() for number in range(count)], [0] * count)

    async def left(self) -> int:
        """Jobs that have ended leave the table."""
        return int(await self._connection.fetchval("select count(*) from pgqueuer"))

    @asynccontextmanager
    async def worker(self, ran: Ran) -> AsyncIterator[None]:
        """Run jobs."""
        async with asyncpg.create_pool(self.url, min_size=_CONNECTIONS, max_size=_CONNECTIONS) as pool:
            worker = PgQueuer(AsyncpgPoolDriver(pool))

            async def nothing(job: Job) -> None:
                ran.one(int(job.payload or b""))

            async def bump(job: Job) -> None:
                number = int(job.payload or b"")
                async with pool.acquire() as connection, connection.transaction():
                    await connection.execute(_BUMP, number % COUNTERS)
                ran.one(number)

            worker.entrypoint("job")(nothing if self.work == "drain" else bump)
            running = asyncio.create_task(worker.run(batch_size=_BATCH))
            try:
                yield
            finally:
                worker.shutdown.set()
                await running


if __name__ == "__main__":
    serve(PgQueuerPeer)
