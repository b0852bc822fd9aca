"""Each test of a recipe has a copy of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from recipes.running import Recipe


@pytest.fixture
def recipe(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Recipe]:
    """The recipe that the test's module names as `RECIPE`."""
    found = Recipe(request.module.RECIPE, tmp_path)
    yield found
    found.close()
