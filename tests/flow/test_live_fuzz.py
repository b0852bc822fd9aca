"""Every live answer equals the query run afresh: a differential fuzz, see `flow.livefuzz`.

`make test-long` tries 100,000 batches of changes, with new seeds each time. ``TESTS_LIVE_SEED=127`` tries a seed again.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from flow.livefuzz import Fuzz
from stage.needs import LONG

from penstock.clock import SystemClock

_PARTS = 10 if LONG else 1  # on each store
_SEEDS, _BATCHES = (40, 50) if LONG else (4, 16)
_ONE = os.environ.get("TESTS_LIVE_SEED")

NewDatabase = Callable[[], AbstractContextManager[str]]


@pytest.fixture(params=["sqlite", "postgres"])
def new_database(request: pytest.FixtureRequest, tmp_path: Path) -> NewDatabase:
    """Makes databases with penstock's own tables, one after another."""

    @contextmanager
    def file() -> Iterator[str]:
        yield f"sqlite:///{shutil.copy(template, tmp_path / 'fuzz.db')}"
        for left in tmp_path.glob("fuzz.db*"):
            left.unlink()

    if request.param == "sqlite":
        template: Path = request.getfixturevalue("sqlite_template")
        return file
    databases, name = request.getfixturevalue("databases"), request.getfixturevalue("postgres_template")
    made: NewDatabase = lambda: databases.one(name)  # noqa: E731 - a name of its own tells nothing
    return made


@pytest.mark.parametrize("part", range(_PARTS))
def test_whoever_writes_and_watches_each_answer_is_that_of_the_query_run_afresh(
    new_database: NewDatabase, part: int
) -> None:
    first = SystemClock().seed() % 10**9 * _SEEDS if LONG else part * _SEEDS
    for seed in [int(_ONE)] if _ONE else range(first, first + _SEEDS):
        with new_database() as url:
            try:
                asyncio.run(Fuzz(seed, url).run(_BATCHES))
            except BaseException as error:
                error.add_note(f"seed {seed}: TESTS_LIVE_SEED={seed} tries it again")
                raise
