"""Penstock in a transaction that SQLAlchemy or Django has begun: their states, and what they refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy
from django.db import transaction
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool
from stage.guests import INSERT, ONE, django_connection, library_url, sync_session

from penstock.errors import (
    ContextError,
)
from penstock.store.guest.session import guest_session
from penstock.store.session import Statement

# ----- SQLAlchemy


class Base(DeclarativeBase):
    pass


class Row(Base):
    __tablename__ = "entry"
    id: Mapped[int] = mapped_column(primary_key=True)


def test_a_session_whose_flush_has_failed_is_refused(sqlite_url: str) -> None:
    engine = sqlalchemy.create_engine(library_url(sqlite_url, "sqlite+pysqlite"), poolclass=NullPool)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Row(id=1))
        session.flush()
        session.connection().execute(sqlalchemy.text("insert into entry values (2)"))
        session.add(Row(id=2))
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            session.flush()
        with pytest.raises(ContextError, match=r"has failed before.* Roll back"):
            guest_session(session)
        session.rollback()
        assert sync_session(session).fetch(ONE) == [(1,)]


def test_connections_of_sqlalchemy_that_can_run_nothing_are_refused(sqlite_url: str) -> None:
    unknown = sqlalchemy.Connection.__new__(sqlalchemy.Connection)
    unknown.engine = sqlalchemy.create_mock_engine("mysql+pymysql://", lambda *_: None)  # type: ignore[assignment]
    with pytest.raises(ContextError, match=r"cannot work in a connection of SQLAlchemy over mysql\+pymysql"):
        guest_session(unknown)
    with pytest.raises(ContextError, match=r"sqlalchemy runs nothing on this connection: This session is not bound"):
        guest_session(Session())
    engine = sqlalchemy.create_engine(library_url(sqlite_url, "sqlite+pysqlite"), poolclass=NullPool)
    with engine.connect() as connection, connection.begin() as begun:
        begun.rollback()
        with pytest.raises(ContextError, match="SQLAlchemy runs nothing on this connection: Can't operate on closed"):
            sync_session(connection).fetch(ONE)
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text("select 1"))
        connection.invalidate()
        with pytest.raises(ContextError, match=r"has failed before.* Roll back"):
            guest_session(connection)


# ----- Django


@pytest.fixture(params=["sqlite_url", "postgres_url"])
def django_one(request: pytest.FixtureRequest) -> Iterator[Any]:
    connection = django_connection(request.getfixturevalue(request.param))
    yield connection
    connection.close()


def test_what_ran_in_an_atomic_block_goes_with_it(django_one: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "get_connection", lambda _=None: django_one)
    sync_session(django_one).execute(Statement("create table entry (id integer)"))
    with suppress(ZeroDivisionError), transaction.atomic():
        sync_session(django_one).execute(INSERT)
        raise ZeroDivisionError
    with transaction.atomic():
        sync_session(django_one).execute(INSERT)
        transaction.set_rollback(True)
        with pytest.raises(ContextError, match=r"Django connection has failed before.* Roll back"):
            sync_session(django_one).fetch(ONE)
    assert sync_session(django_one).fetch(Statement("select count(*) from entry")) == [(0,)]
    with transaction.atomic():
        sync_session(django_one).execute(INSERT)
    assert sync_session(django_one).fetch(Statement("select count(*) from entry")) == [(1,)]


def test_django_is_asked_where_it_lets_one(django_one: Any) -> None:
    async def story() -> None:
        session = sync_session(django_one)
        with pytest.raises(ContextError, match=r"Django runs nothing on this connection: .*async context"):
            session.fetch(ONE)

    asyncio.run(story())
    with ThreadPoolExecutor(1) as thread, pytest.raises(ContextError, match=r"created in thread|created in a thread"):
        thread.submit(guest_session, django_one).result()
