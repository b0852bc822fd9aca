"""Where stories begin, and what hypothesis tries in them."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from stage.examples import LONG, examples

settings.register_profile(
    "story",
    deadline=None,
    database=None,
    derandomize=not LONG,
    max_examples=examples(150),
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture
def postgres_url(migrated_postgres_url: str) -> str:
    """URL of a database with penstock's own tables, as all of these tests need them."""
    return migrated_postgres_url


@pytest.fixture
def sqlite_url(migrated_sqlite_url: str) -> str:
    """The same, of a SQLite file."""
    return migrated_sqlite_url
