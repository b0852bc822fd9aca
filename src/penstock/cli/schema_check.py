"""``penstock migrate --check``: says for CI what is pending, what has drifted, and which statements are unsafe.

Changes nothing. Owns the exit status. Leaves the comparison to `cli.migrate`, and the rules to `store/push/locks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.migration import files_with_progress
from penstock.clock import SystemClock
from penstock.config import Config
from penstock.errors import SchemaMismatch
from penstock.store.open import make_store
from penstock.store.push.locks import hazards
from penstock.store.push.migrate import Plan

if TYPE_CHECKING:
    from penstock.migrations.files import MigrationFile

PENDING, DRIFT, UNSAFE = 3, 4, 5


@dataclass(frozen=True, slots=True)
class Checked:
    """The findings of a check, each a sentence."""

    pending: Sequence[str]
    drift: Sequence[str]
    unsafe: Sequence[str]

    @property
    def status(self) -> int:
        """The exit status: that of the gravest kind of finding."""
        return UNSAFE if self.unsafe else DRIFT if self.drift else PENDING if self.pending else 0

    def show(self) -> None:
        """Print the findings."""
        for kind, found in asdict(self).items():
            for one in found:
                click.echo(f"{kind}: {one}")


async def check_files(config: Config, files: Sequence[MigrationFile]) -> tuple[list[str], list[str], bool]:
    """Migration files that are pending; unsafe statements of those that are not done; and whether any is not."""
    store = make_store(config, SystemClock())
    try:
        found = await files_with_progress(store, files)
    finally:
        await store.close()
    left = [(file, now) for file, now in found if now is None or now.step != "done"]
    pending = [f"migration file {file.name}" for file, now in left if now is None or now.step != "contract"]
    unsafe = [
        f"{file.name}, {step}(): {' '.join(sql.split())}: {why}"
        for file, _now in left
        for step in ("expand", "contract")
        if store.dialect.schemas
        for sql, why in hazards([str(piece) for piece in file.pieces(step, store.dialect)], step)
    ]
    return pending, unsafe, bool(left)


def checked(plan: Plan | SchemaMismatch, news: Sequence[str], files: tuple[list[str], list[str], bool]) -> Checked:
    """The findings: those of a plan, or of its refusal, and those about files.

    Columns that are not declared any more are no drift while a migration file is under way that may need them.
    """
    pending, unsafe, under_way = files
    if isinstance(plan, SchemaMismatch):
        problems: list[dict[str, Any]] = plan.facts["problems"]
        return Checked(pending, [f"{one['what']} {one['fix']}" for one in problems], unsafe)
    pending = [*pending, *(f"penstock's own {name}" for name, _ in plan.migrations)]
    pending += [" ".join(sql.split()) for sql in plan.sql]
    return Checked([*pending, *news], () if under_way else plan.notes, unsafe)
