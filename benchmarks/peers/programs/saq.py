"""SAQ on Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis
from saq import Worker
from saq.queue.redis import RedisQueue

from benchmarks.peers.protocol import Peer, Ran, Work, serve

_CONCURRENCY = 100


class SaqPeer(Peer):
    """The worker runs in this process."""

    def __init__(self, url: str, work: Work) -> None:
        super().__init__(url, work)
        self._queue = RedisQueue(Redis.from_url(url))

    @asynccontextmanager
    async def opened(self, *, install: bool) -> AsyncIterator[None]:  # noqa: ARG002 - it has no tables
        """Connect."""
        await self._queue.connect()
        try:
            yield
        finally:
            await self._queue.disconnect()

    async def enqueue_one(self, number: int) -> None:
        """Store a job, whose result nobody asks for."""
        await self._queue.enqueue("nothing", number=number, ttl=-1)

    async def enqueue_many(self, count: int) -> None:
        """Store jobs, a hundred at once; there is no way to store many in one request."""
        for start in range(0, count, _CONCURRENCY):
            numbers = range(start, min(start + _CONCURRENCY, count))
            await asyncio.gather(*(self.enqueue_one(number) for number in numbers))

    async def left(self) -> int:
        """Jobs that wait, and those that are run."""
        return int(await self._queue.count("incomplete"))

    @asynccontextmanager
    async def worker(self, ran: Ran) -> AsyncIterator[None]:
        """Run jobs."""

        async def nothing(_ctx: Any, *, number: int) -> None:
            ran.one(number)

        worker = Worker(self._queue, functions=[("nothing", nothing)], concurrency=_CONCURRENCY)
        running = asyncio.create_task(worker.start())
        try:
            yield
        finally:
            await worker.stop()
            await asyncio.wait([running])


if __name__ == "__main__":
    serve(SaqPeer)
