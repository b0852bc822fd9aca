"""What PostgreSQL's own errors mean: whether to try again, and who has to do something about it."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from stage import ledger

from penstock.errors import ConfigError, DatabaseUnavailable, DataError, PenstockError
from penstock.store.postgres.errors import is_connection_lost, translate


def error_of(state: str, message: str) -> asyncpg.PostgresError:
    """The driver's error of an SQLSTATE."""
    return asyncpg.PostgresError.new({"C": state, "M": message, "S": "ERROR"})


@pytest.mark.parametrize(
    ("state", "message", "kind", "text"),
    [
        ("25006", "cannot execute INSERT in a read-only transaction", DatabaseUnavailable, "The database server only"),
        ("0A000", "cannot use serializable mode in a hot standby", DatabaseUnavailable, "The database server only"),
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


@pytest.fixture
def nobodys_url(postgres_url: str) -> str:
    """URL of the database for a role of PostgreSQL's own that has no rights on its tables."""
    return postgres_url + ("&" if "?" in postgres_url else "?") + "role=pg_monitor"


def test_a_right_that_is_missing_is_for_the_operator_to_grant(postgres_url: str, nobodys_url: str) -> None:
    async def story() -> None:
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

    asyncio.run(story())
