"""Where races begin."""

from __future__ import annotations

import pytest


@pytest.fixture
def database_url(migrated_url: str) -> str:
    """URL of a database with penstock's own tables, once on each store: stories begin there."""
    return migrated_url
