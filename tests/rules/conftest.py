"""Properties are in no hurry."""

from __future__ import annotations

from hypothesis import settings
from stage.examples import LONG, examples

settings.register_profile("rules", deadline=None, database=None, derandomize=not LONG, max_examples=examples(100))
settings.load_profile("rules")
