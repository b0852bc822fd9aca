"""asyncpg by hand: a loop that claims jobs, runs them and settles them, with nothing else around it.

Its batches are those of penstock's worker. As penstock does, it keeps the state and the times of each job.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from benchmarks.peers.programs.penstock import WORKER_JOBS
from benchmarks.peers.protocol import POLL, Peer, Ran, serve

_TABLE = """
create table job (
    id bigint generated always as identity primary key,
    state text not null default 'ready',
    args text not null,
    enqueued_at timestamptz not null default now(),
    started_at timestamptz,
    finished_at timestamptz
) with (fillfactor = 80);
create index job_ready on job (id) where state = 'ready';
"""
_ENQUEUE = "insert into job (args) values ($1)"
_CLAIM = """
with due as materialized (
    select id from job where state = 'ready' order by id limit $1 for update skip locked
)
update job set state = 'running', started_at = now() from due where job.id = due.id returning job.id, job.args
"""
_SETTLE = "update job set state = 'success', finished_at = now() where id = any($1::bigint[]) and state = 'running'"
_LEFT = "select count(*) from job where state <> 'success'"


class BarePeer(Peer):
    """The loop has one connection, whoever enqueues another."""

    _connection: Any

    @asynccontextmanager
    async def opened(self, *, install: bool) -> AsyncIterator[None]:
        """Connect."""
        self._connection = await asyncpg.connect(self.url)
        try:
            if install:
                await self._connection.execute(_TABLE)
            yield
        finally:
            await self._connection.close()

    async def enqueue_one(self, number: int) -> None:
        """Store a job."""
        await self._connection.execute(_ENQUEUE, f'{{"number":{number}}}')

    async def enqueue_many(self, count: int) -> None:
        """Store jobs."""
        rows = ((f'{{"number":{number}}}',) for number in range(count))
        await self._connection.copy_records_to_table("job", records=rows, columns=["args"])

    async def left(self) -> int:
        """Jobs that are ready or running."""
        return int(await self._connection.fetchval(_LEFT))

    @asynccontextmanager
    async def worker(self, ran: Ran) -> AsyncIterator[None]:
        """Run jobs."""
        running = asyncio.create_task(self._loop(ran))
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait([running])

    async def _loop(self, ran: Ran) -> None:
        async def nothing(number: int) -> None:
            ran.one(number)

        connection = await asyncpg.connect(self.url)
        try:
            while True:
                jobs = await connection.fetch(_CLAIM, WORKER_JOBS)
                for job in jobs:
                    await nothing(**json.loads(job["args"]))
                await connection.execute(_SETTLE, [job["id"] for job in jobs])
                if not jobs:
                    await asyncio.sleep(POLL)
        finally:
            await connection.close()


if __name__ == "__main__":
    serve(BarePeer)
