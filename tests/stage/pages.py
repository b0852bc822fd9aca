"""The pages of the documentation, and the code on them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
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
