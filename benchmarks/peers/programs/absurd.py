"""Absurd on its async client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import absurdctl
import psycopg
from absurd_sdk import AsyncAbsurd

from benchmarks.peers.protocol import POLL, Peer, Ran, serve

_CONCURRENCY = 100


class AbsurdPeer(Peer):
    """Enqueues over one connection; the worker has another."""

    _connection: psycopg.AsyncConnection[Any]
    _absurd: AsyncAbsurd

    @asynccontextmanager
    async def opened(self, *, install: bool) -> AsyncIterator[None]:
        """Connect. Its schema comes with its command line tool, which would run it with psql."""
        self._connection = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
        try:
            self._absurd = AsyncAbsurd(self._connection, queue_name="jobs")
            if install:
                await self._connection.execute(absurdctl.BUNDLED_SCHEMA_SQL)
                await self._absurd.create_queue()
            yield
        finally:
            await self._connection.close()

    async def enqueue_one(self, number: int) -> None:
        """Store a job."""
        await self._absurd.spawn("job", {"number": number}, queue="jobs")

    async def enqueue_many(self, count: int) -> None:
        """Store jobs in one transaction; there is no way to store many in one statement."""
        async with self._connection.transaction():
            for number in range(count):
                await self.enqueue_one(number)

    async def left(self) -> int:
        """Tasks that have not come to an end."""
        cursor = await self._connection.execute(
            "select count(*) from absurd.t_jobs where state not in ('completed', 'failed', 'cancelled')"
        )
        row = await cursor.fetchone()
        return int(row[0]) if row else 0

    @asynccontextmanager
    async def worker(self, ran: Ran) -> AsyncIterator[None]:
        """Run jobs."""
        worker = AsyncAbsurd(self.url, queue_name="jobs")

        async def nothing(params: Any, _ctx: Any) -> None:
            ran.one(params["number"])

        worker.register_task("job")(nothing)
        running = asyncio.create_task(worker.start_worker(concurrency=_CONCURRENCY, poll_interval=POLL))
        try:
            yield
        finally:
            worker.stop_worker()
            await running
            await worker.close()


if __name__ == "__main__":
    serve(AbsurdPeer)
