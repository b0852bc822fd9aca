"""Jobs and messages in the user's own transactions: pools enqueue, cancel and find there, and outboxes send.

An app that is not open works there as well, without a connection of its own: with settings, a clock and statements.
`store/guest` recognises connections and runs statements on them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from penstock.api.holding import NOWHERE
from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.run.attempts import Attempts
from penstock.calls.run.engine import Engine
from penstock.clock import SystemClock
from penstock.config import Config
from penstock.errors import ContextError
from penstock.functions.registry import Registry
from penstock.jobs.filter import JobFilter
from penstock.jobs.job import NewJob
from penstock.pools.rates import RateLimit
from penstock.store.guest.session import GuestSession, finish, guest_session, is_connection
from penstock.store.open import make_store
from penstock.store.session import OpenTransaction

T = TypeVar("T")

_SAME_TIME_FOR = 60.0
_PIECE = 5_000  # jobs


class Guests:
    """The user's own transactions, as one app works in them."""

    component: str | None = None  # the name under which another app uses this one, if one does

    def __init__(self, registry: Registry, rate_limits: Mapping[str, RateLimit], config: Callable[[], Config]) -> None:
        self._registry = registry
        self._rate_limits = rate_limits
        self._config = config
        self._open: list[Attempts] = []
        self._homes: dict[str, _Home] = {}

    def attach(self, runner: Attempts) -> None:
        """Use the settings and the clock of a backend from now on."""
        self._open.append(runner)

    def detach(self, runner: Attempts) -> None:
        """Stop using them."""
        if runner in self._open:
            self._open.remove(runner)

    def calls(self, connection: Any) -> GuestCalls:
        """Jobs in the transaction that is open on a connection; `ContextError` if it is none, or can run nothing."""
        if not is_connection(connection):
            raise ContextError(
                f"{type(connection).__name__} is neither a ctx nor a backend, nor a connection that penstock can work "
                "in.",
                fix="Pass the ctx of the function, the backend, or an open connection of psycopg, psycopg2, asyncpg, "
                "SQLAlchemy, Django, sqlite3 or aiosqlite.",
            )
        session = guest_session(connection)
        return GuestCalls(self._home(session), session)

    def _home(self, session: GuestSession) -> _Home:
        fitting = [runner for runner in self._open if runner.engine.store.dialect.name == session.dialect]
        if fitting:
            return _Home(fitting[-1])
        if self.component is not None and not self._open:
            raise ContextError(
                f"This pool or outbox is of an app that is the component {self.component!r} here, so its work would be "
                "no program's.",
                fix="Take the pool of its use: comments[pool], with comments = app.use(…). Send to a topic by the "
                'outboxes of the program: app.outboxes.send(connection, "comments/topic", …).',
            )
        if self._open:
            session.check_dialect(self._open[-1].engine.store.dialect.name)
        home = self._homes.get(session.dialect)
        if home is None:
            home = self._homes[session.dialect] = self._new_home(session)
        return home

    def _new_home(self, session: GuestSession) -> _Home:
        config = self._config()
        if config.database == Config().database:  # no database is set: the connection leads to it
            config = replace(config, database=NOWHERE[session.dialect])
        clock = SystemClock()
        store = make_store(config, clock, self._registry.codec, self._registry.password)
        session.check_dialect(store.dialect.name)
        return _Home(Attempts(Engine(store, self._registry, config, clock, self._rate_limits)), clock)


class _Home:
    """The parts of an app that a guest needs: of an open backend, or made for this with a clock of their own."""

    def __init__(self, runner: Attempts, clock: SystemClock | None = None) -> None:
        self.runner = runner
        self._clock = clock
        self._set_at: float | None = None

    async def set_clock(self, session: GuestSession) -> None:
        """Now and then set the clock by the database's, which the workers follow."""
        if self._clock is None:
            return
        now = self._clock.monotonic()
        if self._set_at is None or now - self._set_at > _SAME_TIME_FOR:
            await self.runner.engine.store.synchronize(session)
            self._set_at = now


class _Transaction:
    """A transaction of the user's own, in the words of `transaction.Transaction` that jobs and messages need.

    All is stored at once.
    """

    def __init__(self, runner: Attempts, inside: OpenTransaction) -> None:
        self.store = runner.engine.store
        self.now = runner.now()
        self.wakes = False
        self.committed: list[Callable[[], None]] = []
        self.cancels: Sequence[UUID] = ()
        self.keyed: list[NewJob] = []
        self.fetch = inside.fetch
        self.execute = inside.execute
        self.execute_many = inside.execute_many

    async def enqueue(self, jobs: Iterable[NewJob]) -> None:
        made = list(jobs)  # first, as no savepoint would undo the stored ones if a later one cannot be made
        for start in range(0, len(made), _PIECE):
            await self.store.jobs.enqueue(self, made[start : start + _PIECE], self.now)

    async def send(self, topic: str, payload: str, key: str | None, trace: str | None) -> bool:
        return await self.store.outboxes.send(self, topic, payload, key, trace)

    async def find_runs(self, runs: Sequence[UUID], most: int) -> dict[UUID, bool]:
        return await self.store.workflows.find_unfinished(runs, most, self, alone=True)

    async def find_keyed_runs(self, function: str, key: str) -> set[UUID]:
        return {*await self.store.workflows.find_keyed(function, key, self, alone=True)}

    async def cancel_all(self, where: JobFilter) -> int:
        return await self.store.jobs.request_cancel_all(self, where, self.now)


class GuestCalls(JobCalls):
    """Jobs in one of the user's own transactions. On a sync connection calls return their results at once."""

    __slots__ = ("_home", "_session", "_transaction")

    def __init__(self, home: _Home, session: GuestSession) -> None:
        super().__init__(home.runner, None, self._run)
        self._home = home
        self._session = session
        self._transaction = _Transaction(home.runner, session)

    @property
    def in_transaction(self) -> bool:
        """True, always."""
        return True

    def now(self) -> datetime:
        """The time of the call."""
        return self._transaction.now

    async def enqueue(self, job: NewJob) -> None:
        """Store a job now, in the transaction."""
        await self._transaction.enqueue([job])

    async def write(self, verb: Callable[[Any], Awaitable[T]]) -> T:
        """Run a writing step in the transaction."""
        return await verb(self._transaction)

    async def read(self, verb: Callable[[Any], Awaitable[T]], _jobs: Iterable[UUID] | None = None, /) -> T:
        """Run a reading step in the transaction."""
        return await verb(self._transaction)

    async def cancel(self, uuids: Iterable[UUID]) -> None:
        """Ask in the transaction for jobs to be canceled."""
        await self._transaction.store.jobs.request_cancel(self._transaction, list(uuids), self.now())

    def _run(self, call: Coroutine[Any, Any, Any]) -> Any:
        begun = self._begin(call)
        return begun if self._session.is_async else finish(begun)

    async def _begin(self, call: Coroutine[Any, Any, Any]) -> Any:
        try:
            await self._home.set_clock(self._session)
            self._transaction.now = self._home.runner.now()
        except BaseException:
            call.close()
            raise
        return await call
