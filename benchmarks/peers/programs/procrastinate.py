"""Procrastinate on psycopg's pool: jobs deleted when they end, which its docs advise for many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import procrastinate

from benchmarks.peers.protocol import COUNTERS, Peer, Ran, Work, serve

_CONCURRENCY = 10
_BUMP = "update counter set count = count + 1 where id = %(id)s"


class ProcrastinatePeer(Peer):
    """The worker runs in this process, on the same pool."""

    works = ("drain", "transactions")

    def __init__(self, url: str, work: Work) -> None:
        super().__init__(url, work)
        self._ran = Ran()
        connector = procrastinate.PsycopgConnector(conninfo=url, min_size=_CONCURRENCY, max_size=_CONCURRENCY)
        self._app = procrastinate.App(connector=connector)
        self._task = self._app.task(name="job")(self._nothing if work == "drain" else self._bump)

    @asynccontextmanager
    async def opened(self, *, install: bool) -> AsyncIterator[None]:
        """Connect."""
        async with self._app.open_async():
            if install:
                await self._app.schema_manager.apply_schema_async()
            yield

    async def enqueue_one(self, number: int) -> None:
        """Store a job."""
        await self._task.defer_async(number=number)

    async def enqueue_many(self, count: int) -> None:
        """Store jobs in one statement."""
        await self._task.batch_defer_async(*({"number": number} for number in range(count)))

    async def left(self) -> int:
        """Jobs that have ended are deleted."""
        row = await self._app.connector.execute_query_one_async("select count(*) as left from procrastinate_jobs")
        return int(row["left"])

    @asynccontextmanager
    async def worker(self, ran: Ran) -> AsyncIterator[None]:
        """Run jobs."""
        self._ran = ran
        running = asyncio.create_task(
            self._app.run_worker_async(
                concurrency=_CONCURRENCY, delete_jobs="always", install_signal_handlers=False, listen_notify=True
            )
        )
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait([running])

    async def _nothing(self, number: int) -> None:
        self._ran.one(number)

    async def _bump(self, number: int) -> None:
        async with self._app.connector.pool.connection() as connection, connection.transaction():
            await connection.execute(_BUMP, {"id": number % COUNTERS})
        self._ran.one(number)


if __name__ == "__main__":
    serve(ProcrastinatePeer)
