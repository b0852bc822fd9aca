"""The pages of recipes: what they show is in the program that `tests/recipes` starts, and the index names each."""

from __future__ import annotations

import json
import re
from pathlib import Path

from stage.repository import Block

_NAMED = re.compile(r"\((?:\.\./)+(examples/recipes/\w+|(?:examples|deploy)/[\w/]+)/[\w/.@-]+\)")
_SHOWN = {"py", "nginx", "yaml", "toml", "text", "ini"}
_MOST_WORDS = 6000


def recipes(root: Path) -> list[Path]:
    return sorted((root / "docs" / "recipes").glob("*.md"))


def text_of(file: Path) -> str:
    """The text of a file; of a notebook the code of its cells."""
    text = file.read_text("utf-8", errors="ignore")
    if file.suffix != ".ipynb":
        return text
    return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])


def bare(code: str) -> str:
    """Code without the spaces in which a part of it differs from the whole."""
    return "".join(code.split())


def test_what_a_recipe_shows_is_in_its_program(root: Path, blocks: dict[Path, list[Block]]) -> None:
    for page in recipes(root):
        folders = [root / path for path in _NAMED.findall(page.read_text("utf-8"))]
        files = [file for folder in folders for file in sorted(folder.rglob("*"))]
        texts = [bare(text_of(file)) for file in files if file.is_file()]
        for block in blocks[page]:
            shown = bare("\n".join(block.lines))
            assert block.language not in _SHOWN or any(shown in text for text in texts), f"{page.name}:{block.first}"
        assert folders, f"{page.name} names no program"


def test_the_index_names_each_recipe_and_they_stay_short(root: Path) -> None:
    index = (root / "docs" / "recipes.md").read_text("utf-8")
    assert [page.name for page in recipes(root) if f"(recipes/{page.name})" not in index] == []
    words = sum(len(page.read_text("utf-8").split()) for page in recipes(root))
    assert words < _MOST_WORDS
