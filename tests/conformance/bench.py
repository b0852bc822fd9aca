"""The bench on which a store is tested: a fresh database, the store opened on it, and short words for common steps.

Owns what all parts of the suite share. Leaves the promises themselves to one file per protocol.
"""

from __future__ import annotations

import asyncio
import builtins
import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Protocol, TypeVar
from uuid import UUID

import pytest

from penstock.clock import SystemClock, layout_uuid7
from penstock.config import Config
from penstock.errors import TryAgain
from penstock.jobs.filter import ALL_JOBS, JobFilter
from penstock.jobs.job import DEFAULT_POOL, Job, JobStatus, Kind, NewJob, Options, Outcome, Settlement
from penstock.jobs.order import rank
from penstock.jobs.retry import Retry
from penstock.jobs.settle import settle, settle_cancel
from penstock.jobs.states import JobEvent
from penstock.pools.pool import PoolDefinition
from penstock.schema.index import Index
from penstock.schema.table import Table, definition_of
from penstock.store.nouns.jobs import ABOVE_ALL, Claim, Room
from penstock.store.open import make_store
from penstock.store.session import Row, Session, Statement
from penstock.store.sql.statements import TableStatements
from penstock.store.store import Store

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
TTL = timedelta(seconds=30)
KEEP = timedelta(days=7)
AGAIN = Retry(max_attempts=3, initial_backoff=10.0)

_numbers = itertools.count(1)


class Note(Table, name="conformance_note"):
    title: str
    amount: int = 0

    by_title = Index("title", unique=True)


class StoreMaker(Protocol):
    def __call__(self, **settings: Any) -> Store:
        """A store with these settings; see `Config`."""


class Suite:
    """What every part of the suite needs to know of the store under test; a subclass says it.

    Attributes:
        one_writer: Whether transactions that write follow one another. If not, two may be open at once, and one of
            them is refused if they cannot be put in an order.
        slow: A statement that takes minutes unless it is stopped.
        delete_lease: A statement that deletes the lease of a number, whatever runs under it.
        new_database: Makes such a database, and gives its URL; a fixture of the subclass sets it.
    """

    one_writer: ClassVar[bool] = False
    slow: ClassVar[Statement]
    delete_lease: ClassVar[Statement]
    new_database: Callable[[], str]

    def make_database(self) -> StoreMaker:
        """A new database with penstock's own tables and that of notes, by way of what makes stores on it."""
        url = self.new_database()

        def make(**settings: Any) -> Store:
            return make_store(Config(database=url, **settings), SystemClock())

        return make


S = TypeVar("S", bound=Suite)


class Bench:
    """Stores on one database, and words for what tests do again and again."""

    def __init__(self, make: StoreMaker) -> None:
        self._make = make
        self._open: list[Store] = []
        self.store: Store

    async def start(self) -> None:
        self.store = await self.another()

    async def another(self, **settings: Any) -> Store:
        """One more store on the same database, as another process would have it."""
        store = self._make(**settings)
        await store.open()
        self._open.append(store)
        return store

    async def stop(self) -> None:
        for store in reversed(self._open):
            await store.close()

    # ----- rows

    @property
    def notes(self) -> TableStatements:
        return TableStatements(definition_of(Note), self.store.dialect)

    async def insert(self, session: Session, title: str, amount: int = 0) -> int:
        return await session.execute(self.notes.insert(), self.note(title, amount))

    def note(self, title: str, amount: int = 0) -> list[Any]:
        return self.notes.encode((title, NOW, title, amount))

    async def change(self, session: Session, title: str, amount: int) -> int:
        return await session.execute(self.notes.update(("amount",)), (amount, title))

    async def amount(self, session: Session, title: str) -> int | None:
        rows = await session.fetch(self.notes.get(), (title,))
        return None if not rows else int(rows[0][3])

    async def titles(self, session: Session) -> list[str]:
        scan = self.notes.scan((), ("id",), "asc", limit=100, indexed=True)
        return [row[0] for row in await session.fetch(scan, (100,))]

    async def kept(self) -> list[str]:
        """All titles that are committed."""
        return await self.reading(self.titles)

    async def reading(self, read: Callable[[Session], Awaitable[T]], store: Store | None = None) -> T:
        session = await (store or self.store).begin_read()
        try:
            return await read(session)
        finally:
            await session.rollback()

    async def writing(self, write: Callable[[Session], Awaitable[T]], store: Store | None = None) -> T:
        session = await (store or self.store).begin_write()
        try:
            result = await write(session)
            await session.commit()
        finally:
            await session.rollback()
        return result

    async def write_notes(self, **amounts: int) -> None:
        async def write(session: Session) -> None:
            for title, amount in amounts.items():
                await self.insert(session, title, amount)

        await self.writing(write)

    # ----- jobs

    async def enqueue(self, *jobs: NewJob, now: datetime = NOW) -> None:
        await self.writing(lambda session: self.store.jobs.enqueue(session, jobs, now))

    async def request_cancel(self, *ids: UUID, now: datetime = NOW) -> None:
        await self.writing(lambda session: self.store.jobs.request_cancel(session, ids, now))

    async def cancel_pending(self, now: datetime = NOW, limit: int = 100) -> list[UUID]:
        return await self.store.jobs.cancel_pending(now, limit, cancel(now))

    async def lease(self, now: datetime = NOW, ttl: timedelta = TTL) -> int:
        return await self.store.leases.take("conformance", ttl, now)

    async def claim(self, lease: int, limit: int = 100, now: datetime = NOW) -> list[Job]:
        claim: Claim = await self.store.jobs.claim(lease, limit, rooms(limit), now)
        return claim.jobs

    async def claim_one(self, lease: int, now: datetime = NOW) -> Job:
        (job,) = await self.claim(lease, now=now)
        return job

    async def running(self, *jobs: NewJob) -> tuple[int, list[Job]]:
        """Enqueue jobs and claim them; the lease and the jobs in the order of `jobs`."""
        await self.enqueue(*jobs)
        lease = await self.lease()
        claimed = {job.id: job for job in await self.claim(lease, len(jobs))}
        return lease, [claimed[job.id] for job in jobs]

    async def settle(self, lease: int, *settlements: Settlement) -> set[UUID]:
        return await self.store.jobs.settle(lease, settlements)

    async def retry(self, *ids: UUID, now: datetime = NOW) -> list[UUID]:
        return await self.store.jobs.retry(ids, now)

    async def recall(self, *ids: UUID, now: datetime = NOW) -> list[UUID]:
        """Let jobs wait for their on_complete again that has raised for the last time."""
        return await self.store.jobs.recall(ids, now)

    async def matching(
        self, where: JobFilter = ALL_JOBS, limit: int = 100, now: datetime = NOW, below: UUID = ABOVE_ALL
    ) -> list[UUID]:
        return await self.reading(lambda session: self.store.jobs.matching(session, where, limit, now, below))

    async def find(self, job_id: UUID, now: datetime = NOW) -> JobStatus | None:
        return await self.reading(lambda session: self.store.jobs.find(session, job_id, now))

    async def status(self, job_id: UUID, now: datetime = NOW) -> JobStatus:
        status = await self.find(job_id, now)
        assert status is not None, f"job {job_id} is unknown"
        return status

    async def state(self, job_id: UUID, now: datetime = NOW) -> str:
        return (await self.status(job_id, now)).state.value

    async def list(self, state: str | None = None, limit: int = 100, now: datetime = NOW) -> builtins.list[JobStatus]:
        return await self.reading(lambda session: self.store.jobs.list(session, JobFilter(state=state), limit, now))

    async def count(self, now: datetime = NOW) -> dict[str, int]:
        counts = await self.reading(lambda session: self.store.jobs.count(session, now))
        return {place: count for place, count in counts.items() if count}


T = TypeVar("T")


class Killed(BaseException):
    """The process is no more."""


@contextmanager
def killed_before(noun: Any, query: str) -> Iterator[None]:
    """Run a block in a process that is killed before it runs a query of a noun."""
    queries = noun._queries

    class Queries(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            if name == query:
                raise Killed
            return super().__getitem__(name)

    noun._queries = Queries(queries)
    try:
        with pytest.raises(Killed):
            yield
    finally:
        noun._queries = queries


def story(test: Callable[[S, Bench], Awaitable[None]]) -> Callable[[S], None]:
    """Make a plain test of a story that is told on a bench of its own."""

    def run(suite: S) -> None:
        bench = Bench(suite.make_database())

        async def main() -> None:
            try:
                await bench.start()
                await test(suite, bench)
            finally:
                await bench.stop()

        asyncio.run(main())

    run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
    return run


def new_job(
    kind: Kind = "mutation",
    *,
    delay: float = 0.0,
    priority: int = 0,
    retry: Retry | None = None,
    now: datetime = NOW,
    args: str = "{}",
    pool: str = DEFAULT_POOL,
    on_complete: str | None = None,
    concurrency_key: str | None = None,
    key: str | None = None,
    until_start: bool = False,
    keep: float | None = None,
) -> NewJob:
    """A job that may run after a delay in seconds; later ones have greater ids.

    One with a concurrency key, which may be empty, or with a key passes the gate of its pool.
    """
    return NewJob(
        id=UUID(int=layout_uuid7(int(now.timestamp() * 1000), next(_numbers))),
        function="conformance:function",
        kind=kind,
        args=args,
        run_at=now + timedelta(seconds=delay),
        rank=rank(now + timedelta(seconds=delay), priority),
        pool=pool,
        priority=priority,
        options=Options(
            retry=retry,
            concurrency_key=concurrency_key or None,
            key=key,
            until_start=None if key is None else until_start,
            keep=keep,
        ),
        on_complete=on_complete,
        concurrency_key="" if concurrency_key is None and key is not None else concurrency_key,
    )


def definitions(limits: Mapping[str, int]) -> list[PoolDefinition]:
    return [PoolDefinition(name, limit) for name, limit in limits.items()]


def rooms(limit: int) -> list[Room]:
    return [Room(DEFAULT_POOL, limit)]


def cancel(now: datetime = NOW) -> Callable[[list[Job]], list[Settlement]]:
    """Decides about canceled jobs as a worker does."""
    return lambda jobs: [settle_cancel(job, now, KEEP) for job in jobs]


def ended(job: Job, event: JobEvent = JobEvent.RETURNED, *, now: datetime = NOW, **facts: Any) -> Settlement:
    """What is to be written about an attempt that has ended this way."""
    return settle(job, Outcome(event, **facts), now, 0.5, KEEP)


def lose(now: datetime = NOW) -> Callable[[list[Job]], list[Settlement]]:
    """Decides about lost jobs as a worker does."""
    return lambda jobs: [ended(job, JobEvent.LOST, now=now, error="WorkerLost: gone") for job in jobs]


def ids(jobs: Iterable[Job | NewJob]) -> list[UUID]:
    return [job.id for job in jobs]


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def values(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in rows]


async def patiently(work: Callable[[], Awaitable[Any]]) -> None:
    """Do something again until it is no longer refused for a while."""
    while True:
        try:
            await work()
        except TryAgain:
            continue
        return
