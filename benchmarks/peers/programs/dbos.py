"""DBOS: workflows on one of its queues, enqueued by its client; transactions are steps of its datasource."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import sqlalchemy
from dbos import DBOS, DBOSClient, DBOSConfig, EnqueueOptions, SQLAlchemyDatasource

from benchmarks.peers.protocol import COUNTERS, POLL, STEPS, Peer, Ran, Work, serve

_JOB: EnqueueOptions = {"queue_name": "jobs", "workflow_name": "job", "app_version": "1"}
_CONNECTIONS = 20
_BUMP = sqlalchemy.text("update counter set count = count + 1 where id = :id")
_LEFT = sqlalchemy.text("select count(*) from dbos.workflow_status where status in ('ENQUEUED', 'PENDING', 'DELAYED')")


class DbosPeer(Peer):
    """Workflows run on threads and loops of DBOS's own, in this process."""

    works = ("drain", "transactions", "flows", "action_flows")
    _client: DBOSClient
    _flow: Any

    def __init__(self, url: str, work: Work) -> None:
        super().__init__(url, work)
        self._engine = sqlalchemy.create_engine(
            sqlalchemy.make_url(url).set(drivername="postgresql+psycopg"), pool_size=_CONNECTIONS
        )

    @asynccontextmanager
    async def opened(self, *, install: bool) -> AsyncIterator[None]:
        """Connect. DBOS makes its tables and its queue when it is launched."""
        if install:
            await self._launch()
            DBOS.destroy(destroy_registry=True)
        self._client = DBOSClient(system_database_url=self.url)
        try:
            yield
        finally:
            self._client.destroy()
            self._engine.dispose()

    async def enqueue_one(self, number: int) -> None:
        """Store a job."""
        self._client.enqueue(_JOB, number)

    async def start_one(self, number: int) -> None:
        """Start a workflow in this process."""
        await DBOS.start_workflow_async(self._flow, number)

    async def enqueue_many(self, count: int) -> None:
        """Store jobs in one transaction; there is no way to store many in one statement."""
        with self._engine.begin() as connection:
            for number in range(count):
                self._client.enqueue_in_transaction(connection, _JOB, number)

    async def left(self) -> int:
        """Workflows that have not come to an end."""
        with self._engine.connect() as connection:
            return int(connection.execute(_LEFT).scalar_one())

    @asynccontextmanager
    async def worker(self, ran: Ran) -> AsyncIterator[None]:
        """Run jobs."""
        self._declare(ran)
        await self._launch()
        try:
            yield
        finally:
            DBOS.destroy()

    def _declare(self, ran: Ran) -> None:
        if self.work == "drain":

            @DBOS.workflow(name="job")
            async def nothing(number: int) -> None:
                ran.one(number)

        elif self.work == "action_flows":
            self._flow = _flow_of_steps(ran)
        else:
            source = SQLAlchemyDatasource.create(self.url, engine=self._engine)

            @source.transaction(isolation_level="READ COMMITTED")
            def bump(number: int) -> None:
                source.sql_session().execute(_BUMP, {"id": number % COUNTERS})

            @DBOS.workflow(name="job")
            def bump_one(number: int) -> None:
                for _ in range(STEPS if self.work == "flows" else 1):
                    bump(number)
                ran.one(number)

    async def _launch(self) -> None:
        config: DBOSConfig = {
            "name": "benchmark",
            "system_database_url": self.url,
            "sys_db_pool_size": _CONNECTIONS,
            "application_version": "1",
            "log_level": "ERROR",
        }
        at_once = _CONNECTIONS if self.work in {"transactions", "flows"} else None  # more would wait for connections
        DBOS(config=config)
        DBOS.launch()
        await DBOS.register_queue_async("jobs", polling_interval_sec=POLL, worker_concurrency=at_once)


def _flow_of_steps(ran: Ran) -> Any:
    """Declare a workflow of steps without effect."""

    # Its first step tells that it has begun; the last one could not be told from the end of a drain.
    @DBOS.step()
    async def begin(number: int) -> None:
        ran.one(number)

    @DBOS.step()
    async def go_on(number: int) -> None:
        pass

    @DBOS.workflow(name="job")
    async def flow(number: int) -> None:
        await begin(number)
        for _ in range(STEPS - 1):
            await go_on(number)

    return flow


if __name__ == "__main__":
    serve(DbosPeer)
