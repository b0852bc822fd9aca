"""The app: the declarations of a program, and the backend that runs it. The one file that wires all rooms."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.api.backend import CallerBackend
from penstock.api.components import component_of, count_declarations, foreign_tables, use_app
from penstock.api.crons.crons import Crons
from penstock.api.declaring import Declaring, check_says_access
from penstock.api.guests import Guests
from penstock.api.health import HealthFinding, findings, look
from penstock.api.identity.tokens import Tokens
from penstock.api.live import Watch
from penstock.api.outbox.declaring import check_outboxes, declare_outboxes
from penstock.api.outbox.outboxes import Outboxes
from penstock.api.pools.workpool import Workpool
from penstock.api.ratelimits import RateLimiter, check_rate_limit
from penstock.api.searches import declare_searches, drop_searches
from penstock.api.syncbackend import SyncApp
from penstock.api.tasks.tasks import ReactiveTasks, check_tasks, declare_tasks
from penstock.calls.run.ctxkinds import CONTEXTS
from penstock.calls.run.dispatch import Dispatch
from penstock.calls.run.engine import Engine
from penstock.calls.run.runner import FunctionCalls
from penstock.changes.searches import searches_of
from penstock.clock import Clock, SystemClock
from penstock.codec import CODEC_FIX, Codec
from penstock.config import Config, Password, check_settings, load_config, stray_variables
from penstock.crons.plan import CronPlan
from penstock.errors import DataError, DeclarationError
from penstock.files.file import FILE_FIELD, file_fields
from penstock.functions.component import Component
from penstock.functions.function import Function, QueryFunction
from penstock.functions.programs import Declaration, check_name, clashes, refuse_clashes
from penstock.functions.registry import AroundJobs, distinct, tables_of
from penstock.functions.scope import Only, Work
from penstock.identity.caller import Caller
from penstock.identity.providers import Provider, providers_of
from penstock.jobs.job import DEFAULT_POOL
from penstock.jobs.retry import Retry
from penstock.live.capture import live_interest
from penstock.observe.loglines import hear_records
from penstock.observe.logs import event
from penstock.observe.tracing import find_tracing
from penstock.pools.pool import LogLevel, PoolDefinition
from penstock.pools.rates import RateLimit
from penstock.schema.owned import travelling
from penstock.schema.table import Table, TableDefinition, definition_of
from penstock.services.live.capture import declare_live
from penstock.services.logbook import LogbookWriter
from penstock.services.service import Group, ServiceName, Services, name_services
from penstock.store.nouns.captures import identity_of
from penstock.store.nouns.pools import values_of
from penstock.store.nouns.rates import rate_text
from penstock.store.open import make_store
from penstock.store.push.migrate import push

if TYPE_CHECKING:
    from penstock.services.indexer import Indexer
    from penstock.services.live.live import LiveQueries
    from penstock.services.planner.planner import Planner
    from penstock.services.pruner import Pruner
    from penstock.services.relay.relay import Relay
    from penstock.services.scheduler import CronScheduler
    from penstock.services.worker.worker import Worker

R = TypeVar("R")
_COMPONENT = "component"  # the noun of its uses among the declarations of programs
_UNUSED = timedelta(hours=1)  # after which a start drops a search index that is declared no more
_CLASH = "If these are two programs, give each App a name=, and declare this in one of them."


class App(Declaring):
    """A program's declarations: its functions, its tables and its settings.

    Args:
        name: The name of the program, which tells it from other programs on its database. What it declares is stored
            with it.
        tables: More tables. The ones that the modules of its functions name are found by themselves.
        auth: The providers whose tokens say who calls: `OIDC` and `CustomJWT`. API keys need none.
        codec: Encrypts arguments, results and contexts of jobs, and fields marked `Encrypted`, such as `FernetCodec`.
        password: Gives the password of each new connection to PostgreSQL, in place of the one in the URL: for tokens
            that rotate. A function or a coroutine function that returns a str. Threads of penstock call it too.
        around_jobs: An async context manager around each attempt at a job or a run of a reactive task, such as a scope
            for error reports: called with the name of the function, and the `Work` of each of its jobs, one unless it
            takes batches. It cannot swallow errors. Not around workflows, and actions with ``runtime="process"``.
        **settings: Settings of `Config` that this program fixes; see there for settings that are left open.

    Attributes:
        sync: The same for programs that do not await: opens a backend, or shares one.
        guests: Its work in transactions of the user's own.
        crons: Its crons.
        cron: Decorates a mutation or an action that is run at the times of a schedule; see `Crons.cron`.
        tasks: Its reactive tasks.
        reactive_task: Decorates a handler that is run for rows of a table; see `ReactiveTasks.reactive_task`.
        outboxes: Its outboxes.
        outbox: Decorates a handler that gets the rows of a table, or messages, in their order; see `Outboxes.outbox`.
        default_database: Gives the URL of its database if no code names one, before the environment and project files
            are asked. A web framework sets it.

    Raises:
        ConfigError: There is no such setting, or it cannot have this value.
        DeclarationError: The name cannot be, the codec is none, or `password` is no function.
    """

    def __init__(
        self,
        *,
        name: str = "",
        tables: Iterable[type[Table]] = (),
        auth: Iterable[Provider] = (),
        codec: Codec | None = None,
        password: Password | None = None,
        around_jobs: AroundJobs | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        if name != "":
            check_name("An app", name)
        self.name = self.registry.program = name
        self._tables = list(tables)
        self.auth = providers_of(auth)
        if codec is not None and (isinstance(codec, type) or not isinstance(codec, Codec)):
            raise DeclarationError("codec= takes an object with encode and decode.", fix=CODEC_FIX)
        self.registry.codec = codec
        if password is not None and not callable(password):
            raise DeclarationError("password= takes a function that returns one.", fix="Put a fixed one into the URL.")
        self.registry.password, self.registry.around_jobs = password, around_jobs
        self._settings = settings
        self.default_database: Callable[[], str] | None = None
        self.pools: dict[str, Workpool] = {}
        self.rate_limits: dict[str, RateLimit] = {}
        self.guests = Guests(self.registry, self.rate_limits, self.config)
        self.sync = SyncApp(self.open)
        self.crons = Crons(self.registry)
        self.cron = self.crons.cron
        self.tasks = ReactiveTasks(self.registry, self.pools)
        self.reactive_task = self.tasks.reactive_task
        self.outboxes = Outboxes(self.guests, self.registry.topics)
        self.outbox = self.outboxes.outbox
        self.components: dict[str, Component] = {}
        self._used: list[tuple[str, App, tuple[int, ...]]] = []
        check_settings(settings)
        self.requires_access = bool(settings.get("require_access"))

    # ----- pools

    def workpool(
        self,
        name: str,
        *,
        max_parallelism: int = 10,
        default_retry: Retry | None = None,
        retry_actions_by_default: bool = False,
        status_ttl: timedelta | None = timedelta(days=1),
        key_parallelism: int | None = None,
        rate_limit: RateLimit | None = None,
        key_rate_limit: RateLimit | None = None,
        group: str | None = None,
        ageing: timedelta | None = None,
        log_level: LogLevel = "report",
    ) -> Workpool:
        """Declare a pool. Its limit holds over all machines.

        Args:
            name: Its name, in the database, in logs and on the command line.
            max_parallelism: How many of its jobs run at once; 0 starts none. A limit that was set while the program ran
                holds until the program declares another one than before.
            default_retry: The policy of actions that are enqueued with ``retry=True``; five attempts by default.
            retry_actions_by_default: Whether actions are retried unless they are enqueued with ``retry=False``.
            status_ttl: How long the status and the result of a finished job are kept; None for ever.
            key_parallelism: How many jobs with the same ``concurrency_key`` run at once; by default as many as of the
                pool. Keys take turns in any case.
            rate_limit: How many jobs start in a time, further attempts included: a `TokenBucket` or a `FixedWindow`.
            key_rate_limit: The same for jobs with the same ``concurrency_key``.
            group: Pools of one group lend each other their unused slots.
            ageing: How long a job waits until it is as urgent as one of the next higher priority; by default a higher
                priority always comes first.
            log_level: Its log events: with ``"report"`` one about once a minute; with ``"info"`` or
                ``"debug"`` also one for each move of a job; with ``"warning"`` or ``"error"`` neither.

        Raises:
            DeclarationError: There is a pool of this name already, or a value cannot be.
        """
        check_name("A pool", name)
        pool = Workpool(
            PoolDefinition(
                name,
                max_parallelism,
                Retry() if default_retry is None else default_retry,
                retry_actions_by_default,
                status_ttl,
                key_parallelism,
                rate_limit,
                key_rate_limit,
                group,
                ageing,
                log_level,
            ),
            self.guests,
        )
        if name in self.pools:
            raise DeclarationError(f"There are two pools called {name!r}.", fix="Give one of them another name.")
        self.pools[name] = pool
        return pool

    def rate_limit(self, name: str, policy: RateLimit) -> RateLimiter:
        """Declare a rate limit. Functions take tokens with the returned object, or with ``ctx.rate_limit``.

        Args:
            name: Its name.
            policy: A `TokenBucket` or a `FixedWindow`.

        Raises:
            DeclarationError: There is a rate limit of this name already, or the name or the policy cannot be.
        """
        check_rate_limit(name, policy)
        if name in self.rate_limits:
            raise DeclarationError(f"There are two rate limits called {name!r}.", fix="Give one of them another name.")
        self.rate_limits[name] = policy
        return RateLimiter(name, policy)

    def pool_definitions(self) -> list[PoolDefinition]:
        """The declarations of its pools."""
        return [pool.definition for pool in self.pools.values()]

    # ----- components

    def use(
        self,
        app: App,
        *,
        name: str,
        expose: Iterable[Function[Any, Any, Any, Any]] = (),
        http_prefix: str | None = None,
    ) -> Component:
        """Use another app as a component: a part with tables, functions and work of its own, all under a name.

        The component's ctx reaches its own tables, pools, topics, rate limits and locks only. This program calls it by
        the functions of the returned `Component`. A mutation of it that fails undoes its own writes alone, if its
        caller catches the error. An app may be used several times, under several names: each use has rows of its own.
        The settings, the codec and the providers are those of this program.

        Args:
            app: The app, which has to be fully declared.
            name: The name of this use, by which its rows and jobs are kept: lower-case letters, digits and
                underscores, at most 20.
            expose: Its public functions that clients may call, as ``comments/…``; none by default.
            http_prefix: The path below which its HTTP actions answer, such as ``"/comments"``; by default they do not.

        Returns:
            The use: ``comments[add]`` is its function `add`.

        Raises:
            DeclarationError: The name cannot be or is taken; a function to expose is not a public one of the app; the
                app has tables of other programs, or a name that is too long with the prefix.
        """
        used = use_app(self, app, name, expose, http_prefix)
        self._used.append((name, app, count_declarations(app)))
        return used

    def check_components(self) -> None:
        """Refuse apps that have declared something after they were used; `DeclarationError`."""
        for name, app, known in self._used:
            if count_declarations(app) != known:
                raise DeclarationError(
                    f"The app of component {name!r} has declared more since app.use(…).",
                    fix="Import all modules of the component before.",
                )

    def foreign_tables(self) -> dict[type[Table], str]:
        """The tables of its components as their apps declare them, each with the name of the component."""
        return foreign_tables(self.components.values(), self._tables)

    # ----- tables

    def definitions(self) -> list[TableDefinition]:
        """The definitions of its tables: the given ones, and all that the modules of its functions name or import.

        Raises:
            DeclarationError: Two of them have one name, a field cannot be stored, or is encrypted without a codec.
        """
        foreign = self.foreign_tables()
        reacted = [*self.tasks.tables(), *self.outboxes.tables()]
        for table in reacted:
            if table in foreign:
                raise DeclarationError(
                    f"A task or an outbox is about {table.__name__}, a table of component {foreign[table]!r}.",
                    fix="Declare the task or the outbox in the component.",
                )
        functions = (*self.registry, *self.registry.http, *self.outboxes.functions())
        named = tables_of(one for one in functions if one.component is None)
        inside = (twin for one in self.components.values() for twin in one.tables.values())
        tables = distinct((*self._tables, *(one for one in named if one not in foreign), *reacted, *inside))
        definitions = [definition_of(table) for table in tables]
        encrypted = [f"{one.name}.{name}" for one in definitions for name in one.ciphertext_columns]
        if encrypted and self.registry.codec is None:
            raise DeclarationError(f"The app has no codec to encrypt {', '.join(encrypted)}.", fix=CODEC_FIX)
        return definitions

    def work(self) -> Work:
        """The names of the work that it declares."""
        tasks = {one.task.name: one.task.pool for one in self.tasks}
        crons = [name for name, _function in self.crons.functions()]
        return Work([DEFAULT_POOL, *self.pools], tasks, [one.outbox.name for one in self.outboxes], crons)

    def declarations(self) -> list[Declaration]:
        """The declarations stored under the name of the program, to be compared with other programs'."""
        pools = sorted(self.pool_definitions(), key=lambda one: one.name)
        groups = {one.group: json.dumps([each.name for each in pools if each.group == one.group]) for one in pools}
        found = [
            *(("pool", one.name, json.dumps([*values_of(one).values()][1:])) for one in pools),
            *(("pool group", group, names) for group, names in groups.items() if group),
            *(("rate limit", name, rate_text(policy) or "") for name, policy in self.rate_limits.items()),
            *(("cron", name, function) for name, function in self.crons.functions()),
            *(("task", one.task.name, f"{one.function.name} {one.task.definition.name}") for one in self.tasks),
            *(("outbox", one.outbox.name, f"{one.function.name} {one.outbox.source}") for one in self.outboxes),
            *(("function", name, kind) for name, kind in self.registry.kinds().items()),
            *(("live", *identity_of(live_interest(one))) for one in self.definitions() if one.live),
            *(("search", one.name, one.digest) for one in searches_of(self.definitions())),
            *((_COMPONENT, name, "") for name in self.components),
            *((FILE_FIELD, one.name, one.form) for one in file_fields(self.definitions())),
        ]
        return [Declaration(*one, self.name) for one in found]

    def is_left(self, table: str, programs: Iterable[Declaration]) -> bool:
        """Whether a stored table is of a component that neither this program nor another one uses any more."""
        used = {
            *self.components,
            *(one.name for one in programs if one.noun == _COMPONENT and one.program != self.name),
        }
        return (component := component_of(table)) is not None and component not in used

    # ----- running

    def config(self, **settings: Any) -> Config:
        """The settings in force: those given here, then those of `App`, the environment and the project files.

        For the database `default_database` comes after `App`.

        Raises:
            ConfigError: There is no such setting, or it cannot have this value.
        """
        for variable, near in stray_variables(os.environ).items():
            event("config.unknown_variable", logging.WARNING, variable=variable, meant=near or "nothing known")
        given = {**self._settings, **{key: value for key, value in settings.items() if value is not None}}
        if given.get("database") is None and self.default_database is not None:
            given["database"] = self.default_database()
        return load_config(given)

    @asynccontextmanager
    async def open(
        self,
        database: str | None = None,
        *,
        services: Services = (),
        only: Only | None = None,
        push_schema: bool = True,
        clock: Clock | None = None,
        config: Config | None = None,
        **settings: Any,
    ) -> AsyncIterator[Backend]:
        """Run this app for the time of a block.

        Args:
            database: URL of its database; by default as the settings say.
            services: The services to run in this process: ``"all"``, or such as ``("worker",)``; none by default.
            only: The names of what these run, such as ``{"pools": ["sms"], "outboxes": []}``: ``pools``, or all but
                ``not_pools``; ``tasks``, ``outboxes`` and ``crons``. All of a kind by default.
            push_schema: Whether to bring the database's tables up to the declared ones.
            clock: The time; the machine's by default.
            config: All settings at once, instead of `settings`.
            **settings: Settings that differ here; see `Config`.

        Raises:
            ConfigError: `only` names something that the app does not declare.
            DatabaseUnavailable: The database cannot be reached.
            SchemaMismatch: Its tables do not fit, and changing them would lose or break data.
            ProgramClash: Another program on the database declares something of a name that this one declares.
        """
        backend = Backend(self, config or self.config(database=database, **settings), clock or SystemClock())
        await backend.start(services, push_schema=push_schema, only=only)
        try:
            yield backend
        finally:
            await backend.stop()


class Backend(CallerBackend):
    """A running app.

    Attributes:
        app: The app.
        config: The settings in force.
        tokens: Verifies the tokens of callers.
    """

    def __init__(self, app: App, config: Config, clock: Clock) -> None:
        self.app = app
        self.config = config
        reactive = [one.__declared__.sql_name for one in (*app.tasks.tables(), *app.outboxes.tables())]
        store = make_store(config, clock, app.registry.codec, app.registry.password)
        self.engine = Engine(store, app.registry, config, clock, app.rate_limits, reactive)
        self.runner = FunctionCalls(self.engine, CONTEXTS)
        self.dispatch = Dispatch(self.runner)
        self.tokens = Tokens(self.engine, app.auth)
        self._live: LiveQueries | None = None
        self.services = Group([], self.engine.store.signals)
        self._writer = LogbookWriter(self.engine)

    async def start(self, services: Services = (), *, push_schema: bool = True, only: Only | None = None) -> None:
        """Open the database, bring its tables up to date, and start services."""
        services = name_services(services)
        self.engine.scope = self.app.work().narrow(only or {})
        self.engine.journal.follow((pool.definition for pool in self.app.pools.values()), find_tracing())
        self.app.check_components()
        self._check_functions()
        self.engine.statements.foreign = self.app.foreign_tables()
        definitions, crons = self.app.definitions(), self.app.crons.plans(self.job_calls)
        store, self.engine.statements.tables = self.engine.store, tuple(one.name for one in definitions)
        self.engine.statements.ruled = any(one.rules is not None for one in definitions)
        for definition in definitions:
            store.check_definition(definition)
        await store.open()
        try:
            if push_schema:
                with suppress(DataError):  # a new database has no declarations yet
                    refuse_clashes(self.app.declarations(), await store.programs.list())
                await push(store, definitions)
            if owned := [one for one in definitions if not one.managed]:
                await self._look_at(owned)
            if push_schema or services:
                await self.declare(crons)
        except BaseException:
            await store.close()
            raise
        needed = [name for name in services if name != "indexer" or any(one.searches for one in definitions)]
        self.services = Group([self.make_service(name) for name in needed], store.signals)
        hear_records()
        with self.engine.journal.book.attach():
            self.services.start()
            self._writer.start()
        if self.engine.practices is not None:
            self.engine.practices.listen(on=True)
        self.app.guests.attach(self.runner)

    async def _look_at(self, owned: Sequence[TableDefinition]) -> None:
        """Read how the tables of other programs are stored."""
        statements, catalog = self.engine.statements, self.engine.store.catalog
        stored = await catalog.read_tables([one.name for one in owned])
        statements.travelling = {one.name: travelling(one, stored.get(one.name)) for one in owned}
        statements.generated = {
            name: frozenset(key for key, one in found.columns.items() if one.generated)
            for name, found in stored.items()
        }

    def _check_functions(self) -> None:
        for function in self.app.registry:
            function.signature  # noqa: B018 - what cannot be checked is refused now
            if self.config.require_access:
                check_says_access(function)
        for function in (*self.app.registry, *self.app.registry.http):
            if function.rate_limit is not None and function.rate_limit not in self.app.rate_limits:
                raise DeclarationError(
                    f"{function.name}: there is no rate limit {function.rate_limit!r}.",
                    fix=f"Write app.rate_limit({function.rate_limit!r}, …).",
                )

    async def check(self, besides: Collection[str] = (), *, tells: bool = True) -> None:
        """Raise the errors that `declare` would raise, and write nothing.

        Args:
            besides: Tables that are left out.
            tells: Whether to log slow declarations, as `declare` does.

        Raises:
            DeclarationError: The changes of a table cannot be captured.
            ProgramClash: Another program declares one of the names.
        """
        refuse_clashes(self.app.declarations(), await self.engine.store.programs.list())
        await check_tasks(self.engine, self.app.tasks, besides)
        await check_outboxes(self.engine, self.app.outboxes, besides, tells=tells)

    async def declare(self, crons: Sequence[CronPlan]) -> None:
        """Store the app's declarations in the database, with its tables, and have its changes captured.

        Raises:
            DeclarationError: The changes of a table cannot be captured; nothing was written.
        """
        store, ours = self.engine.store, self.app.declarations()
        await self.check()
        known = await store.programs.register(self.app.name, ours)
        for one, other in clashes(ours, known):  # with programs without a name, as others are refused
            told: dict[str, Any] = {"noun": one.noun, "name": one.name, "program": one.program, "other": other.program}
            event("program.clash", logging.WARNING, **told, fix=_CLASH)
        await store.pools.declare(self.app.pool_definitions())
        await store.programs.declare(self.app.registry.kinds())
        await store.crons.declare(crons, self.engine.clock.now())
        await declare_tasks(self.engine, self.app.tasks)
        await declare_outboxes(self.engine, self.app.outboxes)
        searches, now = searches_of(self.app.definitions()), self.engine.clock.now()
        await declare_searches(self.engine, searches, now)
        others = {(one.name, one.spec) for one in known if one.noun == "search" and one.program != self.app.name}
        await drop_searches(store, searches, {one.name for one in self.app.definitions()}, others, now - _UNUSED)
        kept = {(one.name, one.spec) for one in known if one.noun == "live" and one.program != self.app.name}
        await declare_live(store, self.app.definitions(), now, kept)

    async def health(self) -> list[HealthFinding]:
        """The findings that an operator has to act on, the worst first: what is wrong, where, and the next step."""
        return findings(await look(self.engine, self.app.definitions(), self.app.work(), self.app.outboxes))

    @property
    def live_queries(self) -> LiveQueries:
        """The watched queries of this process; the service begins to run when they are first asked for."""
        if self._live is None:
            from penstock.services.live.live import LiveQueries  # noqa: PLC0415 - see `make_service`

            self._live = LiveQueries(self.runner, self.app.definitions())
            self._live.start()
        return self._live

    def _watch(self, function: QueryFunction[Any, ..., R, Any], arguments: dict[str, Any], caller: Caller) -> Watch[R]:
        return Watch(self.live_queries.view(caller), function, arguments)

    async def stop(self) -> None:
        """Stop services, then close the database. Running calls and jobs have the grace time to end."""
        self.app.guests.detach(self.runner)
        self.engine.begin_stop()
        try:
            if self._live is not None:
                await self._live.close()
            await self.dispatch.snapshots.close()
            await self.tokens.close()
            await self.services.stop(self.engine.services_left())
        finally:
            try:
                await self.engine.close()
            finally:
                await self.runner.locks.close(self.engine.grace_left)
                try:
                    await self._writer.stop(self.engine.services_left())
                finally:  # an event loop that ends has cancelled it
                    self.engine.journal.book.close()
                    await self.engine.store.close()

    async def kill(self) -> None:
        """End at once, leaving jobs and leases as they are, as a crash does."""
        self.app.guests.detach(self.runner)
        await self.runner.locks.abandon()
        if self._live is not None:
            await self._live.kill()
        await self.dispatch.snapshots.close()
        await self.tokens.close()
        await self.services.kill()
        await self._writer.kill()
        self.engine.journal.book.close()
        await self.engine.abandon()
        await self.engine.store.close()

    def make_service(self, name: ServiceName) -> Worker | CronScheduler | Planner | Relay | Indexer | Pruner:
        """A service of this backend, not yet started; imported here, as most programs that import an app run none."""
        here, scope = f"{socket.gethostname()}:{os.getpid()}", self.engine.scope
        if name == "scheduler":
            from penstock.services.scheduler import CronScheduler  # noqa: PLC0415

            return CronScheduler(self.runner, self.app.crons.scope(scope))
        if name == "worker":
            from penstock.services.worker.worker import Worker  # noqa: PLC0415

            pools = [pool for pool in self.app.pools if scope.runs_pool(pool)]
            return Worker(self.runner, here, self.config.worker_jobs, pools)
        if name == "planner":
            from penstock.services.planner.planner import Planner  # noqa: PLC0415

            return Planner(self.runner, here)
        if name == "relay":
            from penstock.services.relay.relay import Relay  # noqa: PLC0415

            outboxes = [one for one in self.app.outboxes if scope.runs("outboxes", one.outbox.name)]
            return Relay(self.runner, here, outboxes)
        if name == "indexer":
            from penstock.services.indexer import Indexer  # noqa: PLC0415

            return Indexer(self.runner, here, searches_of(self.app.definitions()))
        from penstock.services.pruner import Pruner  # noqa: PLC0415

        return Pruner(self.runner)
