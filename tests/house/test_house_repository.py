"""What lies beside the source: paths, hosts, commands, versions."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from stage.needs import program
from stage.repository import last_release

# Written in pieces, so that this file holds none of them itself.
_MACHINE = re.compile(
    "|".join(rf"(?<![\w.]){re.escape(part)}\b" for part in ("/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/"))
)
_HOSTS = "py+pi. python+hosted. npm+js. crates+.io proxy.+golang artifact+ory".replace("+", "").split()
_REGISTRIES = re.compile("|".join(map(re.escape, _HOSTS)))
# Where SQL has a value. Texts that only look like SQL, which tests of hostile input have, stand between other signs.
_NUMBERED = re.compile(
    r"(?:[=(,<>|+*/-]|\b(?:select|limit|offset|values|where|and|or|not|in|like|when|then|else)\b)\s*\?\d",
    re.IGNORECASE,
)
_TEXT = re.compile(r"(\.(cfg|css|html|in|ini|js|json|md|py|sh|sql|toml|txt|ya?ml))?")
# Words that would install the package of a stranger, which has the name of the import.
_INSTALLERS = r"(?:pip3?|pipx|uv|poetry|pdm|conda|npm|yarn|pnpm)\W+(?:pip |tool )?(?:install|add|i)\b"
_STRANGER = re.compile(
    rf"""(?<![\w./-])penstock\[                       # with extras; ./penstock[…] is a folder
    | {_INSTALLERS}(?:\s+-\S+)*\s+['"`]*penstock(?![\w/.-])
    | ['"]?(?<![\w./-])penstock\s*(?:[=~<>!]=\s*['"]?[\d$.{{]|\ @\ )
    | (?:version|distribution|metadata|package_name)\s*[(=]\s*['"][p]enstock['"]
    | pypi/[p]enstock\b
    | ^\s*"?name"?\s*[=:]\s*"penstock"\s*,?$""",
    re.VERBOSE | re.MULTILINE,
)


def test_no_file_names_a_machine_or_a_registry_or_installs_what_is_not_ours_or_numbers_a_question_mark(
    files: list[Path], root: Path
) -> None:
    """Python's sqlite3 refuses a list of values for numbered question marks from 3.14 on, and says nothing before."""
    found = []
    for path in files:
        if not _TEXT.fullmatch(path.suffix):
            continue
        try:
            lines = path.read_text("utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        rules = [("/", _MACHINE), ("", _REGISTRIES), ("pen" + "stock", _STRANGER)]
        rules += [("?", _NUMBERED)] if path.suffix in {".md", ".py", ".sql"} else []
        for word, rule in rules:
            found += [f"{path.relative_to(root)}: {line}" for line in lines if word in line and rule.search(line)]
    assert not found


def test_every_make_target_has_a_line_of_help(root: Path) -> None:
    text = (root / "Makefile").read_text("utf-8")
    phony = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)[0].split()
    helped = re.findall(r"^([a-z-]+):.*## \S", text, re.MULTILINE)
    assert sorted(phony) == sorted(helped)


def pinned(root: Path) -> dict[str, Version]:
    lines = (root / "requirements-dev.txt").read_text("utf-8").splitlines()
    found = (re.match(r"([\w.-]+)==([^\s;]+)", line) for line in lines)
    return {canonicalize_name(match[1]): Version(match[2]) for match in found if match}


def required(root: Path) -> Iterator[Requirement]:
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    texts = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for extra in project["project"]["optional-dependencies"].values():
        texts += extra
    yield from map(Requirement, texts)


def test_the_pinned_versions_are_those_the_project_allows(root: Path) -> None:
    versions = pinned(root)
    assert not [str(one) for one in required(root) if canonicalize_name(one.name) not in versions]
    assert not [str(one) for one in required(root) if versions[canonicalize_name(one.name)] not in one.specifier]


def test_the_folders_of_tests_that_are_told_of_hold_tests(root: Path) -> None:
    told = re.findall(r"^\| `(tests/\w+)` \|", (root / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)
    assert len(told) > 3
    assert not [folder for folder in told if not any((root / folder).glob("test_*.py"))]


def test_migrations_that_were_released_are_as_they_were(root: Path) -> None:
    program("git")
    release = last_release() if (root / ".git").exists() else "none"
    if subprocess.run(["git", "cat-file", "-e", release], cwd=root, capture_output=True, check=False).returncode:
        pytest.skip("there is no history of the repository")
    listed = git(root, "ls-tree", "-r", "--name-only", release, "src/penstock/store").splitlines()
    released = [name for name in listed if "/migrations/" in name]
    assert len(released) >= 3
    assert [
        name for name in released if git(root, "show", f"{release}:{name}") != (root / name).read_text("utf-8")
    ] == []


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout
