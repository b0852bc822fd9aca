"""Runs whole programs of the examples, as their users do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(name: str, database_url: str) -> str:
    """Run ``examples/name.py`` on a database to its end; what it has printed."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        env={**os.environ, "DATABASE_URL": database_url},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
