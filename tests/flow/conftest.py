"""Where stories begin, and what hypothesis tries in them."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from stage.examples import LONG, examples
from stage.migrated import postgres_url, sqlite_url

__all__ = ["postgres_url", "sqlite_url"]

settings.register_profile(
    "story",
    deadline=None,
    database=None,
    derandomize=not LONG,
    max_examples=examples(150),
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
