"""The databases of tests that need penstock's own tables; a folder's conftest imports these fixtures."""

from __future__ import annotations

import pytest

__all__ = ["postgres_url", "sqlite_url"]


@pytest.fixture
def postgres_url(migrated_postgres_url: str) -> str:
    """URL of a database with penstock's own tables."""
    return migrated_postgres_url


@pytest.fixture
def sqlite_url(migrated_sqlite_url: str) -> str:
    """The same, of a SQLite file."""
    return migrated_sqlite_url
