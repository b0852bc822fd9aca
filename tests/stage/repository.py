"""The repository: its releases, as wheels in environments of their own, and the pages of its documentation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
# Without a tag: the last commit whose own tables were others.
BEFORE_THE_FIRST_TAG = "3956aa68f72d184c4221ca5a18fd82bcf3c9f9ae"


def run(*command: str | Path, **options: Any) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def last_release() -> str:
    """The newest tag before the working tree, or the commit that stands for it."""
    tags = run("git", "tag", "--merged", "HEAD", "--list", "v*", "--sort=-version:refname", cwd=ROOT).split()
    return tags[0] if tags else BEFORE_THE_FIRST_TAG


def wheel_of(commit: str, folder: Path) -> Path:
    source = folder / "source"
    source.mkdir()
    archive = folder / "source.tar"
    run("git", "archive", "--output", archive, commit, cwd=ROOT)
    run("tar", "-x", "-f", archive, "-C", source)
    return build(source, folder, "wheel")


def build(source: Path, folder: Path, target: str) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", folder, cwd=source)
    (found,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return found


def install(wheel: Path, folder: Path, *extras: str) -> Path:
    """Make an environment with a wheel, what it requires and nothing else; the folder of its programs.

    Nothing is downloaded: packages are linked from the environment of the tests.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", python,
        "install", "--no-deps", "--no-index", wheel)  # fmt: skip
    (packages,) = folder.glob("lib/python*/site-packages")
    (metadata,) = packages.glob("penstock*-*.dist-info/METADATA")  # the first commits had another name
    lines = metadata.read_text("utf-8").splitlines()
    wanted = [Requirement(line.partition(": ")[2]) for line in lines if line.startswith("Requires-Dist: ")]
    for name in required(wanted, set(extras)):
        link(name, packages)
    return folder / "bin"


def required(wanted: list[Requirement], extras: set[str]) -> Iterator[str]:
    """Names of the distributions that some requirements ask for, and of those that these ask for."""
    found: set[tuple[str, str]] = set()
    left = [one for one in wanted if asked_for(one, extras)]
    while left:
        one = left.pop()
        name = canonicalize_name(one.name)
        fresh = {(name, extra) for extra in ("", *one.extras)} - found
        found |= fresh
        if fresh:
            own = [Requirement(text) for text in distribution(name).requires or ()]
            left += [another for another in own if asked_for(another, one.extras)]
    yield from {name for name, _ in found}


def asked_for(one: Requirement, extras: set[str]) -> bool:
    return one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def link(name: str, packages: Path) -> None:
    files = distribution(name).files or []
    tops = {file.parts[0] for file in files} - {"..", "__pycache__"}
    for top in tops:
        target = packages / top
        if not target.exists():
            target.symlink_to(Path(str(distribution(name).locate_file(top))))


def alone(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of this process without those that lead to other packages, and with some more."""
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}} | {
        **environment
    }


PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(path for path in (ROOT / "examples").rglob("*.md") if "node_modules" not in path.parts),
]

_FENCE = re.compile(r"^```(?P<language>\w*)$")
_FILE = re.compile(r"# (?P<name>\w+)\.py")


@dataclass(frozen=True)
class Block:
    """A piece of code on a page: its language, the number of its first line, and its lines."""

    language: str
    first: int
    lines: list[str]


def blocks_of(page: Path) -> Iterator[Block]:
    """All code on a page, in order, the code in its comments too."""
    language, first, lines = "", 0, list[str]()
    inside = False
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if fence and not inside:
            inside, language, first, lines = True, fence["language"], number + 1, []
        elif fence and inside:
            inside = False
            yield Block(language, first, lines)
        elif inside:
            lines.append(line)
    assert not inside, f"{page}: a code block is not closed"


def modules_of(page: Path) -> dict[str, str]:
    """The Python modules of a page, by name.

    A block that begins with ``# name.py`` belongs to that module, as do those after it; else it belongs to the
    page's own. In a module each line has the number that it has on the page, so tracebacks point there.
    """
    name = own_module(page)
    found: dict[str, list[str]] = {}
    for block in blocks_of(page):
        if block.language != "python":
            continue
        named = _FILE.fullmatch(block.lines[0]) if block.lines else None
        name = named["name"] if named else name
        text = found.setdefault(name, [])
        text += [""] * (block.first - 1 - len(text)) + block.lines
    return {name: "\n".join(lines) + "\n" for name, lines in found.items()}


def own_module(page: Path) -> str:
    """The name of a page's module."""
    return "_".join(page.relative_to(ROOT).with_suffix("").parts).lower().replace("-", "_")
