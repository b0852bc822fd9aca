"""What PostgreSQL's own errors mean: whether to try again, and who has to do something about it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import asyncpg
import pytest
from programs import ledger

from penstock.errors import ConfigError, ContextError, DatabaseUnavailable, DataError, PenstockError, ValueInvalid
from penstock.store.postgres.errors import had_no_effect, is_connection_lost, translate


def error_of(state: str, message: str) -> asyncpg.PostgresError:
    """The driver's error of an SQLSTATE."""
    return asyncpg.PostgresError.new({"C": state, "M": message, "S": "ERROR"})


@pytest.mark.parametrize(
    ("state", "message", "kind", "text"),
    [
        (
            "25006",
            "cannot execute INSERT in a read-only transaction",
            DatabaseUnavailable,
            "The database server is read-only",
        ),
        (
            "0A000",
            "cannot use serializable mode in a hot standby",
            DatabaseUnavailable,
            "The database server is read-only",
        ),
        ("0A000", "cannot do this", DataError, "The database refused a statement: cannot do this"),
        ("57P01", "terminating connection", DatabaseUnavailable, "The connection to the database was lost"),
        ("42501", "permission denied for table entry", ConfigError, "may not do this: permission denied for table"),
    ],
)
def test_an_error_means_what_its_state_says(state: str, message: str, kind: type[PenstockError], text: str) -> None:
    error = error_of(state, message)
    meant = translate(error)
    assert (type(meant), text in str(meant)) == (kind, True)
    assert is_connection_lost(error) == (kind is DatabaseUnavailable), "another connection may do what this one cannot"


def test_what_the_driver_refuses_is_a_value_or_a_misuse_or_a_connection_that_is_gone(postgres_url: str) -> None:
    """Each is raised by asyncpg itself; what it says of a value quotes that, whatever words it is made of."""

    async def story() -> None:
        kinds: dict[str, type[PenstockError]] = {}
        connection = await asyncpg.connect(postgres_url)
        busy = asyncio.ensure_future(connection.execute("select pg_sleep(600)"))
        await asyncio.wait([busy], timeout=0)
        kinds["busy"] = await refusal(connection.execute("select 1"))
        connection.terminate()
        await asyncio.wait([busy])
        kinds["gone"] = await refusal(connection.execute("select 1"))
        connection = await asyncpg.connect(postgres_url)
        kinds["a value"] = await refusal(connection.fetch("select $1::int", "is closed"))
        kinds["a large value"] = await refusal(connection.fetch("select $1::int", 2**63))
        kinds["a broken text"] = await refusal(connection.fetch("select $1::text", "\ud800"))
        kinds["a type"] = await refusal(connection.fetch("select ($1::record)::text", (1, 2)))
        kinds["too few values"] = await refusal(connection.fetch("select $1::int"))
        await connection.close()
        assert kinds == {
            "busy": ContextError,
            "gone": DatabaseUnavailable,
            "a value": ValueInvalid,
            "a large value": ValueInvalid,
            "a broken text": ValueInvalid,
            "a type": ValueInvalid,
            "too few values": ContextError,
        }

    async def refusal(call: Awaitable[object]) -> type[PenstockError]:
        with pytest.raises((asyncpg.InterfaceError, asyncpg.DataError)) as caught:
            await call
        meant = translate(caught.value)
        assert isinstance(meant, PenstockError)
        assert had_no_effect(caught.value) or isinstance(meant, ValueInvalid)
        assert is_connection_lost(caught.value) == isinstance(meant, DatabaseUnavailable)
        return type(meant)

    asyncio.run(story())


@pytest.fixture
def nobodys_url(postgres_url: str) -> str:
    """URL of the database for a role of PostgreSQL's own that has no rights on its tables."""
    return postgres_url + ("&" if "?" in postgres_url else "?") + "role=pg_monitor"


async def test_a_right_that_is_missing_is_for_the_operator_to_grant(postgres_url: str, nobodys_url: str) -> None:
    async with ledger.app.open(postgres_url) as backend:
        await backend.run_mutation(ledger.enter, what="x")
    async with ledger.app.open(nobodys_url, push_schema=False) as backend:
        for call in (
            backend.run_mutation(ledger.enter, what="x"),
            backend.run_query(ledger.entries, what="x"),
        ):
            with pytest.raises(ConfigError, match=r"may not do this: permission denied.* Grant it the right"):
                await call
    with pytest.raises(ConfigError, match=r"may not do this: permission denied.* Grant it the right"):
        async with ledger.app.open(nobodys_url):
            pass
