"""The source of penstock as text and as syntax trees, read once."""

from __future__ import annotations

import ast
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def trees() -> dict[str, ast.Module]:
    """The modules of penstock, by their path in ``src``."""
    source = ROOT / "src"
    return {
        path.relative_to(source).as_posix(): ast.parse(path.read_text("utf-8"), str(path))
        for path in sorted(source.rglob("*.py"))
    }


@pytest.fixture(scope="session")
def files() -> list[Path]:
    """Every file of the repository that git would commit; outside of git, every file that is no tool's own."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    git = shutil.which("git")
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False) if git else None
    if listed and listed.returncode == 0 and listed.stdout:
        paths = [ROOT / name for name in listed.stdout.splitlines()]
    else:
        paths = [
            path
            for path in ROOT.rglob("*")
            if not any(part.startswith((".", "__pycache__", "node_modules")) for part in path.parts[len(ROOT.parts) :])
        ]
    return [path for path in paths if path.is_file()]
