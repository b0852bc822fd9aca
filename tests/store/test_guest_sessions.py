"""Penstock in a transaction of the user's own: what holds for every kind of connection that it takes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from typing import Any
from uuid import UUID

import pytest
from stage.guests import KINDS, Kind, Visit, face, tell

from penstock.errors import (
    ConfigError,
    ConstraintViolation,
    ContextError,
    PenstockError,
    UniqueViolation,
    ValueInvalid,
)
from penstock.store.guest.drivers import answer
from penstock.store.guest.session import guest_session
from penstock.store.session import Statement

LONG = "1 MB of %s $1 ?1 :p1 'ž' \\ " * 40_000
LITERALS = "'100% %s %(p1)s %%' , 'it''s $1 ?1 ? :p1', '-- $1'"
TOLD = ("100% %s %(p1)s %%", "it's $1 ?1 ? :p1", "-- $1")
ODD = "a%s %(p1)s $1 ?1 ? :x '\" \\ \u2028 žluťoučký 🐎"


class Colour(StrEnum):
    RED = "the colour red"


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def url(kind: Kind, request: pytest.FixtureRequest) -> str:
    """URL of an empty database of the kind that the connection leads to."""
    found: str = request.getfixturevalue(f"{kind.dialect}_url")
    return found


# ----- statements and values

POSTGRES_VALUES = Statement(
    "select $1::uuid, $2::timestamptz, $3::bytea, $4::text, $5::smallint, $6::bigint, $7::float8, $8::boolean,"
    " $9::text, $10::uuid[], $11::text[], $12::timestamptz[], $13::smallint[], $14::bytea[], $15::uuid[],"
    f" $4 || $4::text, {LITERALS} -- $1 %s"
)
SQLITE_VALUES = Statement(f"select ?, ?, ?, ?, ?, ?, ? || ?, 5 %?, {LITERALS} -- ? %s")


def values_of(dialect: str) -> tuple[Statement, list[Any], list[Any]]:
    """A statement, values for it, and the row that it gives."""
    point = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=2)))
    if dialect == "sqlite":
        values = [b"\0%s'\xff", ODD, -(2**63), 0.1, None, LONG]
        return SQLITE_VALUES, [*values, ODD, ODD, 3], [*values, ODD + ODD, 2, *TOLD]
    lists = [
        [UUID(int=1), None],
        ["x,{}\"'\\", None, "", "NULL", "%s"],
        [point],
        [-32768, 2, None],
        [b"\0'\xff"],
        [],
    ]
    values = [UUID(int=5), point, b"\0%s'\xff", ODD, -32768, -(2**63), 0.1, True, None, *lists]
    return POSTGRES_VALUES, values, [*values, ODD + ODD, *TOLD]


def test_statements_take_and_give_values_as_they_are(kind: Kind, url: str) -> None:
    async def story(visit: Visit) -> None:
        session = face(visit.connection)
        statement, values, row = values_of(kind.dialect)
        given = await answer(session.fetch(statement, values))
        assert [list(line) for line in given] == [row]
        times = [value for value in given[0] if isinstance(value, datetime)]
        assert [time.tzinfo for time in times] == [UTC] * len(times)
        (literals,) = await answer(session.fetch(Statement(f"select {LITERALS}")))
        assert tuple(literals) == TOLD
        mark = "?" if kind.dialect == "sqlite" else "$1::text"
        echo = Statement(f"select {mark}")
        for value, found in ((LONG, LONG), (Colour.RED, "the colour red")):
            assert [tuple(row) for row in await answer(session.fetch(echo, [value]))] == [(found,)]
        for refused in (["a\0b"], ["\ud800"]):
            with pytest.raises(ValueInvalid, match=r"NUL character|lone surrogate"):
                await answer(session.fetch(echo, refused))
            with pytest.raises(ValueInvalid, match=r"NUL character|lone surrogate"):
                await answer(session.execute(echo, [refused]))
        await answer(visit.run("create table entry (what text primary key, number integer)"))
        marks = "?, ?" if kind.dialect == "sqlite" else "$1, $2"
        insert = Statement(f"insert into entry (what, number) values ({marks})")
        assert await answer(session.execute(insert, ["a", -1])) == 1
        assert await answer(session.execute_many(insert, [])) is None
        assert await answer(session.execute_many(insert, [["b", 2], ["c", 3]])) is None
        assert await answer(session.execute(Statement("update entry set number = number + 1"))) == 3
        rows = await answer(session.fetch(Statement("select what, number from entry order by what")))
        assert [tuple(row) for row in rows] == [("a", 0), ("b", 3), ("c", 4)]
        assert await answer(session.fetch(Statement("update entry set number = 0"))) == []

    tell(kind, url, story)


def test_errors_of_the_driver_leave_as_penstocks_and_the_door_is_shut_then(kind: Kind, url: str) -> None:
    mark = "?" if kind.dialect == "sqlite" else "$1"
    other = "postgres" if kind.dialect == "sqlite" else "sqlite"

    async def story(visit: Visit) -> None:
        session = guest_session(visit.connection)
        assert (session.dialect, session.is_async) == (kind.dialect, kind.is_async)
        session.check_dialect(kind.dialect)
        with pytest.raises(ContextError, match=r"leads to .*, but the app uses .* to the database of the app"):
            session.check_dialect(other)
        if session.is_async:
            with pytest.raises(ContextError, match=r"is async.* Await"):
                session.check_sync()
        else:
            session.check_sync()
        await answer(visit.begin())
        await answer(visit.run("create table entry (what text primary key, number integer not null)"))
        await answer(visit.run("insert into entry values ('a', 1)"))
        await answer(visit.commit())
        for sql, error, text in (
            (f"insert into entry values ({mark}, 2)", UniqueViolation, "already holds this key"),
            (f"insert into entry (what) values ({mark} || 'b')", ConstraintViolation, "refused the row"),
            (f"insert into penstock_nowhere values ({mark})", ConfigError, "penstock migrate"),
        ):
            await answer(visit.begin())
            with pytest.raises(error, match=text) as caught:
                await answer(face(visit.connection).execute(Statement(sql), ["a"]))
            assert caught.value.__cause__ is not None
            assert not isinstance(caught.value.__cause__, PenstockError)
            await answer(visit.rollback())
        if kind.dialect == "postgres":  # a transaction on SQLite goes on after an error
            await answer(visit.begin())
            with pytest.raises(Exception, match="nowhere"):
                await answer(visit.run("select * from nowhere"))
            with pytest.raises(ContextError, match=r"has failed before.* Roll back"):
                await answer(face(visit.connection).fetch(Statement("select 1")))
            await answer(visit.rollback())
        assert await answer(face(visit.connection).fetch(Statement("select count(*) from entry where number = 1")))
        await shut(visit)

    async def shut(visit: Visit) -> None:
        session = face(visit.connection)
        await answer(session.fetch(Statement("select 1")))
        await answer(visit.close())
        with pytest.raises(ContextError, match=r"is not open|This Session has been permanently closed|released"):
            await answer(session.fetch(Statement("select 1")))
        if "Session" not in kind.name:  # a Session tells only when it is asked for its connection
            with pytest.raises(ContextError, match=r"is not open|released"):
                guest_session(visit.connection)

    tell(kind, url, story)
