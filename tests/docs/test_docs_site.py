"""The site that `make docs` builds: its sidebar, its API reference, and the blocks on its pages that do not run."""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stage.repository import Block

import penstock
from penstock import client, testing

yaml = pytest.importorskip("yaml", reason="myst-parser brings it, with the extra `docs`")

_ENTRY = re.compile(r"^(?:\w+ <)?(/?[\w/-]+)>?$", re.MULTILINE)
_DOCUMENTED = re.compile(r"^\.\. auto\w+:: (?:penstock\.)?([\w.]+)$", re.MULTILINE)
_PARSED: dict[str, Callable[[str], Any]] = {
    "ini": lambda text: configparser.ConfigParser().read_string(text),
    "json": lambda text: [json.loads(part) for part in re.split(r"\n(?=\{)", text)],
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
}
_RUNS = {"python"}  # test_docs_code
_COMMANDS = {"console"}  # test_docs_commands
_SHOWN = {
    "": "a drawing",
    "text": "an output, or a part of one",
    "mermaid": "a drawing; tests/house compare that of the states of jobs",
    "js": "tests/clients run such programs",
    "jsx": "tests/clients run such programs",
    "tsx": "tests/clients compile such programs",
    "nginx": "tests/recipes run it",
    "lua": "an editor's settings",
    "sql": "tests/flow run such statements",
    "py": "a program for packages that are not installed here, or a part of a recipe, which tests/recipes start",
    "ts": "a program for packages that are not installed here",
}


def test_every_page_is_in_the_sidebar(root: Path) -> None:
    index = (root / "docs" / "index.md").read_text("utf-8")
    listed = {entry for part in index.split(":::{toctree}")[1:] for entry in _ENTRY.findall(part.partition(":::")[0])}
    docs = root / "docs"
    files = [*docs.rglob("*.md"), *docs.rglob("*.rst")]
    pages = {str(path.relative_to(docs).with_suffix("")) for path in files if "_build" not in path.parts}
    decisions = {page for page in pages if page.startswith("decisions/") and page != "decisions/README"}
    assert sorted(pages - decisions - listed - {"index"}) == []
    assert sorted(page for page in listed - pages if not (root / f"{page[1:]}.md").exists()) == []


def test_every_public_name_is_in_the_api_reference(root: Path) -> None:
    pages = sorted((root / "docs" / "reference" / "api").glob("*.rst"))
    documented = [name for page in pages for name in _DOCUMENTED.findall(page.read_text("utf-8"))]
    rooms = {"testing": testing.__all__, "client": client.__all__}
    public = {*vars(penstock)["__all__"]} | {f"{room}.{one}" for room, names in rooms.items() for one in names}
    assert sorted(public - {*documented}) == []
    assert len(documented) == len(set(documented))


def test_a_block_runs_or_can_be_parsed_or_has_a_reason(blocks: dict[Path, list[Block]]) -> None:
    for page, found in blocks.items():
        for block in found:
            if parse := _PARSED.get(block.language):
                parse("\n".join(block.lines))
            assert block.language in {*_RUNS, *_COMMANDS, *_PARSED, *_SHOWN}, f"{page.name}:{block.first}"
