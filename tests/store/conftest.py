"""Where the conformance suite begins: on copies of a database that has its tables, which would be made each time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from conformance.bench import Note
from stage.databases import Databases, make_tables


@pytest.fixture(scope="session")
def suite_template(databases: Databases) -> Iterator[str]:
    """Name of a PostgreSQL database with the tables of the suite."""
    with databases.template(Note) as name:
        yield name


@pytest.fixture
def suite_databases(databases: Databases, suite_template: str) -> Iterator[Callable[[], str]]:
    """Makes PostgreSQL databases with the tables of the suite and nothing in them, each known by its URL."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(databases.one(suite_template))


@pytest.fixture(scope="session")
def suite_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the tables of the suite."""
    file = tmp_path_factory.mktemp("suite") / "suite.db"
    make_tables(f"sqlite:///{file}", Note)
    return file


@pytest.fixture
def suite_files(suite_file: Path, tmp_path: Path) -> Callable[[], str]:
    """Makes SQLite files with the tables of the suite and nothing in them, each known by its URL."""
    made: list[Path] = []

    def make() -> str:
        made.append(tmp_path / f"{len(made)}.db")
        shutil.copy(suite_file, made[-1])
        return f"sqlite:///{made[-1]}"

    return make
