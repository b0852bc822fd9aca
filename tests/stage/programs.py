"""Runs whole programs of the examples, as their users do."""

from __future__ import annotations

import os
from pathlib import Path

from stage.forks import Fork

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(name: str, database_url: str) -> str:
    """Run ``examples/name.py`` on a database to its end; what it has printed."""
    ours, theirs = os.pipe()
    with os.fdopen(ours) as printed:
        process = Fork(
            str(EXAMPLES / f"{name}.py"),
            [],
            folder=Path.cwd(),
            environment={**os.environ, "DATABASE_URL": database_url},
            files=(0, theirs, theirs),
        )
        os.close(theirs)
        said = printed.read()
    assert process.wait() == 0, said
    return said
