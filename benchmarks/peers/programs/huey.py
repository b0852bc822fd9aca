"""Huey on SQLite: one worker thread, which its handlers' brevity suits best; every commit synced, as SQLite does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from huey import SqliteHuey

from benchmarks.peers.protocol import POLL, Peer, Ran, Work, serve


class HueyPeer(Peer):
    """The consumer runs in threads of this process."""

    def __init__(self, url: str, work: Work) -> None:
        super().__init__(url, work)
        self._huey = SqliteHuey("jobs", filename=url.removeprefix("sqlite:///"), results=False, fsync=True)
        self._ran = Ran()
        self._task = self._huey.task(name="job")(self._nothing)

    @asynccontextmanager
    async def opened(self, *, install: bool) -> AsyncIterator[None]:  # noqa: ARG002 - its tables are made anyway
        """Connect."""
        try:
            yield
        finally:
            self._huey.storage.close()

    async def enqueue_one(self, number: int) -> None:
        """Store a job."""
        self._task(number)

    async def enqueue_many(self, count: int) -> None:
        """Store jobs; there is no way to store many at once."""
        for number in range(count):
            self._task(number)

    async def left(self) -> int:
        """Jobs leave the table when they are taken."""
        return len(self._huey)

    @asynccontextmanager
    async def worker(self, ran: Ran) -> AsyncIterator[None]:
        """Run jobs."""
        self._ran = ran
        consumer = self._huey.create_consumer(
            workers=1, periodic=False, initial_delay=POLL, max_delay=POLL, check_worker_health=False
        )
        consumer.start()
        try:
            yield
        finally:
            consumer.stop(graceful=True)

    def _nothing(self, number: int) -> None:
        self._ran.one(number)


if __name__ == "__main__":
    serve(HueyPeer)
