"""Celery on Redis: the solo pool, which is the fastest for handlers this brief; acknowledged late, no results."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from celery import Celery
from celery.worker import WorkController

from benchmarks.peers.protocol import Peer, Ran, Work, serve

_PREFETCH = 1000
_QUEUE = "celery"


class CeleryPeer(Peer):
    """The worker runs in a thread of this process."""

    def __init__(self, url: str, work: Work) -> None:
        super().__init__(url, work)
        self._ran = Ran()
        self._app = Celery("benchmark", broker=f"redis+socket://{url.removeprefix('unix://')}", set_as_current=False)
        self._app.conf.update(
            task_ignore_result=True,
            task_acks_late=True,
            task_store_errors_even_if_ignored=False,
            worker_prefetch_multiplier=_PREFETCH,
            worker_enable_remote_control=False,
            worker_send_task_events=False,
        )

        @self._app.task(name="job")
        def nothing(number: int) -> None:
            self._ran.one(number)

        self._task = nothing

    @asynccontextmanager
    async def opened(self, *, install: bool) -> AsyncIterator[None]:  # noqa: ARG002 - it has no tables
        """Connections are opened when first used."""
        yield

    async def enqueue_one(self, number: int) -> None:
        """Store a job."""
        self._task.apply_async((number,), retry=False)

    async def enqueue_many(self, count: int) -> None:
        """Store jobs over one connection; there is no way to store many in one request."""
        with self._app.producer_pool.acquire(block=True) as producer:
            for number in range(count):
                self._task.apply_async((number,), producer=producer, retry=False)

    async def left(self) -> int:
        """Jobs that wait, and those that are not acknowledged."""
        with self._app.connection_for_read() as connection:
            client = connection.default_channel.client
            return int(client.llen(_QUEUE)) + int(client.hlen("unacked"))

    @asynccontextmanager
    async def worker(self, ran: Ran) -> AsyncIterator[None]:
        """Run jobs."""
        self._ran = ran
        worker = WorkController(
            app=self._app, pool_cls="solo", concurrency=1, without_gossip=True, without_mingle=True,
            without_heartbeat=True, loglevel="ERROR",
        )  # fmt: skip
        thread = threading.Thread(target=worker.start, daemon=True)
        thread.start()
        try:
            yield
        finally:
            worker.stop()
            thread.join(10)


if __name__ == "__main__":
    serve(CeleryPeer)
