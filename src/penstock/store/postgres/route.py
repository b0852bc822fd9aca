"""The way to the database: to the server itself, or through a pooler that lends its connections for one transaction.

Owns the settings of a new connection, and finds out by itself whether a pooler such as PgBouncer stands in
between. Nothing of a session outlives its transaction there: neither settings, nor prepared statements, nor LISTEN.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from inspect import isawaitable
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from penstock.config import Password
from penstock.errors import ConfigError, DatabaseUnavailable
from penstock.observe.errortext import error_text
from penstock.store.postgres.errors import REFUSALS

Connection = Any  # asyncpg has no type information

_SETTINGS = {
    "application_name": "penstock",
    "timezone": "UTC",
    "default_transaction_isolation": "read committed",  # of statements that are a transaction of their own
    # A sequential scan reads every row, so under SERIALIZABLE it conflicts with every write: small tables would
    # conflict without need. Scans without an index still work.
    "enable_seqscan": "off",
    "jit": "off",
    # Values are spelled as triggers spell them, whatever the server's own settings are.
    "extra_float_digits": "1",
    "intervalstyle": "postgres",
    "datestyle": "ISO",
}
_SAME_PLANS = {"plan_cache_mode": "force_generic_plan"}
_KNOWN_TO_POOLERS = {"application_name", "timezone"}  # PgBouncer keeps these by client, and refuses all others
_IDLE_AT_LEAST = 60.0
_FIRST_OF_USERS = 16384  # types with a lower number come with PostgreSQL, and are the same on every server
_ARRAYS = (1000, 1001, 1005, 1007, 1009, 1016, 1022, 1115, 1182, 1185, 1187, 1231, 2951, 3807)
_WAIT_PART = 0.9  # of statement_timeout
_QUIET_PART, _PROBE_PART, _ANSWER_PART = 1 / 3, 1 / 9, 2 / 3  # of the setting `lease`


class _Connection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg has no type information
    """A connection that knows PostgreSQL's own types from those before it.

    asyncpg asks the server what an array is of, again on every connection and in three round trips. One takes longer
    than most later statements. If a new version of asyncpg asks in another way, it asks again.
    """

    _known: ClassVar[dict[int, Any]] = {}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.prepared: dict[str, Any] = {}  # statements with a name, by their SQL (see `kept`)

    async def _introspect_types(self, typeoids: Iterable[int], timeout: float | None) -> Any:  # noqa: ASYNC109 - its
        wanted, known = set(typeoids), self._known
        if not wanted <= known.keys():
            if not all(number < _FIRST_OF_USERS for number in wanted):
                return await super()._introspect_types(wanted, timeout)
            rows, _ = await super()._introspect_types(wanted.union(_ARRAYS), timeout)
            known.update((row["oid"], row) for row in rows)
        return list(known.values()), _NothingAsked


class _NothingAsked:
    """Stands for the statement that asked; a name says that it was not in the place of another one."""

    name = "known"


class Route:
    """The way to one database: it opens connections.

    A pooler may be known to stand in between (`pooled`) though it does not show. With `same_plans` each statement is
    planned once, whatever it is asked: planning one for a few rows takes longer than running it.
    """

    def __init__(
        self,
        url: str,
        statement_timeout: float,
        lease: float,
        password: Password | None = None,
        *,
        pooled: bool = False,
        same_plans: bool = False,
    ) -> None:
        self._url = url
        self._password = password
        self._servers = deque(servers(url))
        self._settings = _SETTINGS | _limits(statement_timeout) | (_SAME_PLANS if same_plans else {})
        self._probes = _probes(lease)
        self._is_known = pooled
        self.pooled = pooled  # whether a pooler stands in between; known once the first connection is open
        # Statements that each transaction through a pooler begins with, as no settings are kept.
        self.local_settings = _local(self._settings)

    async def open(self, wait: float, command_timeout: float | None) -> Connection:
        """One more connection, which may take `wait` seconds to open.

        Of several servers each has its part of that time, and the next call asks the next one. A machine that is gone
        does not answer, and would use up the time of the others.
        """
        server = self._servers[0]
        try:
            limits: dict[str, Any] = {"timeout": wait / len(self._servers), "command_timeout": command_timeout}
            if self._password is not None:
                limits["password"] = partial(_ask, self._password)
            return await self._open(server | limits)
        except REFUSALS:
            if server is self._servers[0]:
                self._servers.rotate(-1)
            raise

    async def _open(self, limits: Mapping[str, Any]) -> Connection:
        if not self.pooled:
            connection = await self._open_direct(limits)
            if connection is not None:
                return connection
        shared = {name: value for name, value in self._settings.items() if name in _KNOWN_TO_POOLERS}
        return await asyncpg.connect(
            self._url, server_settings=shared, statement_cache_size=0, connection_class=_Connection, **limits
        )

    async def _open_direct(self, limits: Mapping[str, Any]) -> Connection | None:
        """A connection to the server itself; None if it is found to lead to a pooler."""
        try:
            connection = await asyncpg.connect(
                self._url, server_settings=self._settings | self._probes, connection_class=_Connection, **limits
            )
        except asyncpg.ProtocolViolationError as error:
            if self._is_known or "startup parameter" not in str(error):
                raise
        else:
            if self._is_known or await _leads_to_server(connection):
                self._is_known = True
                return connection
        self._is_known = self.pooled = True
        return None


async def _ask(password: Password) -> str:
    """Ask a program for the password of one connection."""
    try:
        found = password()
        found = await found if isawaitable(found) else found
    except Exception as error:
        raise DatabaseUnavailable(
            f"The app's password= raised for a new connection to the database: {error_text(error)}.",
            fix="Check that whoever issues the token answers.",
        ) from error
    if not isinstance(found, str):
        raise ConfigError(
            f"The app's password= gave a {type(found).__name__}.", fix="Let it return the password as str."
        )
    return found


def servers(url: str) -> list[dict[str, Any]]:
    """The servers of a URL that names several, each as asyncpg takes it; nothing to add to a URL with one."""
    parts = urlsplit(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    hosts = (parts.netloc.rpartition("@")[2] or options.get("host", "")).split(",")
    if len(hosts) == 1 or options.get("target_session_attrs") == "prefer-standby":  # asyncpg has to compare them
        return [{}]
    ports = options.get("port", "").split(",")
    return [_server(host, ports[number % len(ports)]) for number, host in enumerate(hosts)]


def _server(host: str, port: str) -> dict[str, Any]:
    before, _, after = host.rpartition(":")
    if before and "]" not in after:  # which ends an address such as [::1]
        host, port = before, after
    return {"host": unquote(host).strip("[]"), "port": int(port) if port else None}


async def _leads_to_server(connection: Connection) -> bool:
    """Whether the server process that runs a statement is the one that greeted; a pooler greets by itself."""
    found: str | None = None
    try:
        # Without parameters nothing is prepared, which might collide with what others have prepared there.
        found = await connection.execute(f"select where pg_backend_pid() = {connection.get_server_pid()}")
    finally:
        if found != "SELECT 1":
            connection.terminate()
    return found == "SELECT 1"


def _limits(statement_timeout: float) -> dict[str, str]:
    """The server's limits on a running or waiting statement, and on an idle transaction, whose client may be gone.

    The limit on waiting is shorter, so that a statement that waits for a lock is distinguished from a slow one.
    """
    return {
        "lock_timeout": f"{max(1.0, statement_timeout * _WAIT_PART * 1000):.0f}",
        "statement_timeout": f"{statement_timeout * 1000:.0f}",
        "idle_in_transaction_session_timeout": f"{max(statement_timeout, _IDLE_AT_LEAST) * 1000:.0f}",
    }


def _probes(lease: float) -> dict[str, str]:
    """The settings by which the server notices that a client's machine was cut off, and releases its locks.

    That is before its lease has run out, so that its successor need not wait for its locks.
    """
    return {
        "tcp_keepalives_idle": f"{max(1, int(lease * _QUIET_PART))}",
        "tcp_keepalives_interval": f"{max(1, int(lease * _PROBE_PART))}",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": f"{max(1, int(lease * _ANSWER_PART * 1000))}",  # for an answer that nobody has got
    }


def _local(settings: Mapping[str, str]) -> str:
    # asyncpg turns jit off and on again for queries of its own, and would leave it off for all who come later.
    settings = {name: value for name, value in settings.items() if name != "jit"} | {"jit_above_cost": "-1"}
    return "; ".join(
        f"set local {name} = '{value}'" for name, value in settings.items() if name not in _KNOWN_TO_POOLERS
    )
