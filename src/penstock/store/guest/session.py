"""Penstock as a guest in a transaction of the user's own, with any driver.

`guest_session` recognises a connection and checks it at the door. Its statements are part of the transaction that
is open there, and is committed or rolled back with it. A guest begins nothing, ends nothing, and sets no savepoint.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self, TypeVar, cast

from penstock.errors import ContextError, DataError, PenstockError
from penstock.store.guest.drivers import (
    AsyncpgDriver,
    DjangoDriver,
    Driver,
    Psycopg2Driver,
    PsycopgDriver,
    SqlalchemyDriver,
    SqliteDriver,
)
from penstock.store.guest.parameters import check_values, plain_result
from penstock.store.guest.refusals import driver_refused, is_of_a_driver, no_connection, postgres_meaning
from penstock.store.session import Row, Statement

_TRANSACTION = Statement("select txid_current()")
_NOTHING = Statement("delete from sqlite_sequence where false")  # which is there as penstock's tables are
_BEGIN, _ROLLBACK = Statement("begin"), Statement("rollback")
_TITLES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
_CORE = partial(SqlalchemyDriver, is_session=False, is_async=False)
_ASYNC_CORE = partial(SqlalchemyDriver, is_session=False, is_async=True)
_ORM = partial(SqlalchemyDriver, is_session=True, is_async=False)
_ASYNC_ORM = partial(SqlalchemyDriver, is_session=True, is_async=True)
# By module and name of the class of a connection, or of a class above it.
_DRIVERS: dict[str, Callable[[Any], Driver]] = {
    "psycopg.Connection": partial(PsycopgDriver, is_async=False),
    "psycopg.AsyncConnection": partial(PsycopgDriver, is_async=True),
    "psycopg2.extensions.connection": partial(Psycopg2Driver, is_async=False),
    "asyncpg.connection.Connection": AsyncpgDriver,
    "asyncpg.pool.PoolConnectionProxy": AsyncpgDriver,
    "sqlite3.Connection": partial(SqliteDriver, is_async=False),
    "aiosqlite.core.Connection": partial(SqliteDriver, is_async=True),
    "sqlalchemy.engine.base.Connection": _CORE,
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": _ASYNC_CORE,
    "sqlalchemy.orm.session.Session": _ORM,
    "sqlalchemy.orm.scoping.scoped_session": lambda scope: _ORM(scope()),
    "sqlalchemy.ext.asyncio.session.AsyncSession": _ASYNC_ORM,
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": lambda scope: _ASYNC_ORM(scope()),
    "django.db.backends.base.base.BaseDatabaseWrapper": DjangoDriver,
    "django.utils.connection.ConnectionProxy": DjangoDriver,
}

T = TypeVar("T")


class GuestRow(tuple[Any, ...]):  # noqa: SLOT001 - a tuple has no room for them
    """A row as penstock's own driver gives it: its values also by the names of its columns."""

    _names: Sequence[str]

    def __new__(cls, names: Sequence[str], values: Iterable[Any]) -> Self:
        """Values with the names of their columns."""
        row = super().__new__(cls, values)
        row._names = names
        return row

    def __getitem__(self, key: Any, /) -> Any:
        """The value of a place or of a name."""
        return super().__getitem__(self._names.index(key) if isinstance(key, str) else key)

    def keys(self) -> Sequence[str]:
        """The names."""
        return self._names


def guest_session(connection: Any) -> GuestSession:
    """Recognise a connection of the user's, and look whether statements can run on it now.

    Where no transaction is open, the driver acts as for any statement. psycopg, psycopg2, SQLAlchemy and sqlite3 begin
    one, which the user commits. In autocommit (asyncpg outside of a transaction, Django outside of
    ``atomic()``, psycopg with ``autocommit``, sqlite3 with ``isolation_level=None``) each statement commits by itself.
    """
    name = _name_of(connection)
    if name is None:
        raise no_connection(connection)
    try:
        driver = _DRIVERS[name](connection)
    except Exception as error:
        if is_of_a_driver(error):  # such as a Session that does not know its database
            raise driver_refused(name.partition(".")[0], error) from error
        raise
    return GuestSession(driver)


def is_connection(given: object) -> bool:
    """Whether penstock can work in a connection of this kind, in any state."""
    return _name_of(given) is not None


def _name_of(connection: object) -> str | None:
    names = (f"{cls.__module__}.{cls.__qualname__}" for cls in type(connection).__mro__)
    return next((name for name in names if name in _DRIVERS), None)


class GuestSession:
    """The transaction that is open on a connection of the user's, as the verbs of a store take one."""

    def __init__(self, driver: Driver) -> None:
        self.dialect = driver.dialect
        self.is_async = driver.is_async
        self._driver = driver
        with self._meaning():
            driver.check()

    def check_dialect(self, expected: str) -> None:
        """Raise `ContextError` unless the connection leads to a database of the app's dialect."""
        if self.dialect != expected:
            raise ContextError(
                f"The {self._driver.name} connection leads to {_TITLES[self.dialect]}, but the app uses "
                f"{_TITLES[expected]}.",
                fix="Pass a connection to the database of the app.",
            )

    def check_sync(self) -> None:
        """Raise `ContextError` if the connection is async, where nobody awaits."""
        if self.is_async:
            raise ContextError(
                f"The {self._driver.name} connection is async, but this call is not awaited.",
                fix="Await the call of penstock, or pass a sync connection.",
            )

    async def check_transaction(self) -> None:
        """Raise `ContextError` where each statement commits by itself."""
        if self.dialect == "postgres":
            (first,), (second,) = [(await self.fetch(_TRANSACTION))[0] for _ in range(2)]
            is_open = first == second
        else:
            await self.execute(_NOTHING)  # sqlite3 begins with a statement that writes
            try:
                await self.execute(_BEGIN)
            except DataError:  # one is open
                is_open = True
            else:
                await self.execute(_ROLLBACK)
                is_open = False
        if not is_open:
            raise ContextError(
                f"The {self._driver.name} connection commits each statement by itself.",
                fix="Open a transaction first. In Django, leave out atomic = False, or use atomic().",
            )

    async def fetch(self, statement: Statement, args: Sequence[Any] = ()) -> Sequence[Row]:
        """Run a statement; its rows, as penstock's own driver gives them."""
        check_values(args)
        with self._meaning():
            self._driver.check()
            names, rows = await self._driver.fetch(statement.sql, args)
        return [GuestRow(names, map(plain_result, row)) for row in rows]

    async def execute(self, statement: Statement, args: Sequence[Any] = ()) -> int:
        """Run a statement; the number of rows it changed."""
        check_values(args)
        with self._meaning():
            self._driver.check()
            return await self._driver.execute(statement.sql, args)

    async def execute_many(self, statement: Statement, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each of many rows."""
        for row in rows:
            check_values(row)
        with self._meaning():
            self._driver.check()
            if rows:
                await self._driver.execute_many(statement.sql, rows)

    @contextmanager
    def _meaning(self) -> Iterator[None]:
        """Let errors of the driver leave as penstock's."""
        try:
            yield
        except PenstockError:
            raise
        except Exception as error:
            meant = _meaning_of(self._driver, error)
            if meant is error:
                raise
            raise meant from error


def _meaning_of(driver: Driver, error: Exception) -> BaseException:
    if driver.dialect == "postgres":
        return postgres_meaning(driver.name, error)
    lite = importlib.import_module("penstock.store.guest.lite")  # it loads sqlite3, which not every Python has
    return cast("BaseException", lite.sqlite_meaning(driver.name, error))


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that awaits nothing but the transaction of a sync connection, and so never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    work.close()
    raise ContextError("Code on a sync connection awaited something else.", fix="Await only the transaction there.")
