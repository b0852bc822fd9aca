"""Properties are tried on the same examples each time, and are in no hurry."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("rules", deadline=None, database=None, derandomize=True)
settings.load_profile("rules")
