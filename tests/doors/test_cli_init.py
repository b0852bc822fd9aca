"""`penstock init` writes a project that passes its own tests and checks, and serves, on either store."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

from penstock.distribution import requirement

if TYPE_CHECKING:
    from doors.cli_fixtures import Console

pytest_plugins = ("doors.cli_fixtures",)


@pytest.mark.long
def test_a_new_project_runs_at_once(console: Console, empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = console.ok("init", "My Seats")
    folder = console.folder / "My Seats"
    assert len(written.out.splitlines()) == 10
    assert "cd 'My Seats' && penstock dev" in written.err
    again = console("init", "My Seats")
    assert (again.code, "nothing was written" in again.err) == (1, True)

    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    assert (project["name"], project["dependencies"]) == (
        "my-seats",
        [requirement("dashboard", "migrations", "postgres")],
    )
    assert "Docker and CI cannot read that" in written.err, "these tests run on a working tree"
    assert (folder / "README.md").read_text("utf-8").startswith("# my-seats\n\n```console\n$ python3")
    yaml = importlib.import_module("yaml")
    compose = yaml.safe_load((folder / "compose.yaml").read_text("utf-8"))
    assert compose["services"]["app"]["environment"]["DATABASE_URL"].startswith("postgresql://app:app@database/")
    steps = yaml.safe_load((folder / ".github/workflows/ci.yml").read_text("utf-8"))["jobs"]["test"]["steps"]
    assert {"penstock check", "pytest"} < {step.get("run") for step in steps}

    monkeypatch.chdir(folder)
    console.folder = folder
    assert console.ok("check").err.strip() == "Checked 3 files: nothing to say."
    server = {} if empty_database_url.startswith("sqlite") else {"TEST_DATABASE_URL": empty_database_url}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    shutil.copy(folder / "tests/test_app.py", folder / "tests/test_again.py")
    environment = {**os.environ, **server}
    tested = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout
    assert "2 passed" in tested.stdout, "each on a database of its own"

    monkeypatch.setenv("DATABASE_URL", empty_database_url)
    console.ok("migrate")
    console.ok("run", "add", "text=three more words")
    assert "three more words" in {note["text"] for note in console.ok("run", "notes").json}
