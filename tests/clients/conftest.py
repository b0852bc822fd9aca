"""Where the official clients find a server."""

from __future__ import annotations

import pytest


@pytest.fixture
def postgres_url(migrated_postgres_url: str) -> str:
    """URL of a database with penstock's own tables, as all of these tests need them."""
    return migrated_postgres_url


@pytest.fixture
def sqlite_url(migrated_sqlite_url: str) -> str:
    """The same, of a SQLite file."""
    return migrated_sqlite_url
