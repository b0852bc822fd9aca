"""The name under which penstock is installed, its version, and what a new project requires to get the same one."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import penstock
from penstock.distribution import NAME, install, requirement

ROOT = Path(__file__).parents[2]
HERE = "file:///srv/my%20pen$tock"
SOURCES: dict[str, tuple[dict[str, Any] | None, str]] = {
    "a registry": (None, "==9.9"),
    "a folder that is edited": ({"url": HERE, "dir_info": {"editable": True}}, f" @ {HERE}"),
    "a commit, in a folder": (
        {"url": "ssh://git@host/a", "vcs_info": {"vcs": "git", "commit_id": "c0"}, "subdirectory": "python"},
        " @ git+ssh://git@host/a@c0#subdirectory=python",
    ),
    "an archive": (
        {"url": "https://host/a.whl", "archive_info": {"hash": "sha256=ab", "hashes": {"sha256": "ab"}}},
        " @ https://host/a.whl#sha256=ab",
    ),
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_new_project_requires_what_is_installed_here(tmp_path: Path, source: str) -> None:
    given, wanted = SOURCES[source]
    folder = tmp_path / "penstock_backend-9.9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 9.9\n", "utf-8")
    if given is not None:
        (folder / "direct_url.json").write_text(json.dumps(given), "utf-8")
    text = "from penstock.distribution import requirement; print(requirement('dashboard', 'postgres'))"
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"}
    told = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == f"penstock-backend[dashboard,postgres]{wanted}"
    parsed = Requirement(told.stdout.strip())
    assert (parsed.name, parsed.extras) == (NAME, {"dashboard", "postgres"})


def test_the_name_the_version_and_the_hint_are_those_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["name"] == NAME
    assert penstock.__version__ == version(NAME) == project["version"]
    assert install("lsp") == "pip install 'penstock-backend[lsp]'"
    assert requirement("lsp").startswith("penstock-backend[lsp] @ file://"), "the tests run on a working tree"


def test_a_source_tree_that_is_not_installed_has_a_version_too() -> None:
    text = "import penstock, penstock.distribution as d; print(penstock.__version__, d.requirement('lsp'))"
    command = [sys.executable, "-S", "-c", text]
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0+unknown", "penstock-backend[lsp]"]
