"""Migration files as they lie in `migrations/`: their steps, as SQL that Alembic's operations write.

A file has a function for each step that it needs: `expand`, `contract` and `down`; and a list `backfills`.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path

import sqlalchemy.dialects.postgresql
import sqlalchemy.dialects.sqlite
from alembic.migration import MigrationContext
from alembic.operations import Operations

from penstock.dataclass import dataclass
from penstock.errors import ConfigError
from penstock.migrations.operations import Backfill, Relax
from penstock.store.sql.dialect import Dialect

Piece = str | Relax
_NAME = re.compile(r"\d{4}_\w+")
_TRANSACTION = re.compile(r"(begin|commit)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class MigrationFile:
    """A file of `migrations/`, loaded."""

    name: str
    title: str
    steps: dict[str, Callable[[], None]] = field(default_factory=dict)
    backfills: Sequence[Backfill] = ()

    def pieces(self, step: str, dialect: Dialect) -> list[Piece]:
        """The statements of a step."""
        pieces: list[Piece] = []
        if step not in self.steps:
            return pieces
        given = sqlalchemy.dialects.sqlite if dialect.name == "sqlite" else sqlalchemy.dialects.postgresql
        context = MigrationContext.configure(
            dialect=given.dialect(paramstyle="named"),  # one that does not double percent signs
            opts={"as_sql": True, "penstock": dialect, "pieces": pieces},
        )
        context.impl.static_output = lambda text: pieces.append(text.rstrip().rstrip(";"))  # type: ignore[method-assign]
        with Operations.context(context):
            self.steps[step]()
        return [piece for piece in pieces if isinstance(piece, Relax) or not _TRANSACTION.match(piece)]


def load_files(folder: Path) -> list[MigrationFile]:
    """The files of a folder, in order; none if there is no such folder."""
    return [_load(path) for path in sorted(folder.glob("*.py")) if _NAME.fullmatch(path.stem)]


def _load(path: Path) -> MigrationFile:
    try:
        found = runpy.run_path(str(path), run_name=f"penstock_migration_{path.stem}")
    except Exception as error:
        raise ConfigError(f"{path} cannot be loaded: {error}") from error
    steps = {name: step for name, step in found.items() if name in {"expand", "contract", "down"}}
    title = (found["__doc__"] or path.stem).strip().splitlines()[0]
    return MigrationFile(path.stem, title, steps, found.get("backfills", ()))
