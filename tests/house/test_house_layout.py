"""How the source is laid out: rooms, names, lengths, docstrings."""

from __future__ import annotations

import ast
import re
import statistics
from pathlib import Path

_FORBIDDEN = re.compile(r"(?i)(^|_|[a-z])(utils?|helpers?|common|manager|misc)(_|$|s$)")
_LONGEST_FILE = 600
_LONGEST_FUNCTION = 40  # lines of code, its docstring not counted

Function = ast.FunctionDef | ast.AsyncFunctionDef


def lines_of(function: Function) -> int:
    """Lines from ``def`` to the end, without the docstring."""
    first = function.body[0]
    documented = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    spent = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (function.end_lineno or 0) - function.lineno + 1 - spent


def test_rooms_have_an_empty_init(root: Path) -> None:
    package = root / "src" / "penstock"
    with_names = {package, package / "client", package / "migrations", package / "testing"}
    full = [path for path in package.rglob("__init__.py") if path.parent not in with_names and path.read_text("utf-8")]
    assert not full


def test_no_name_says_nothing(trees: dict[str, ast.Module]) -> None:
    parts = {part.removesuffix(".py") for path in trees for part in path.split("/")}
    classes = {node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    assert not [name for name in sorted(parts | classes) if _FORBIDDEN.search(name)]


def test_files_and_functions_are_short_enough_to_be_read(trees: dict[str, ast.Module], root: Path) -> None:
    files = {path: len((root / "src" / path).read_text("utf-8").splitlines()) for path in trees}
    assert not [path for path, lines in files.items() if lines > _LONGEST_FILE], "a room that should become a folder"
    functions = [
        (lines_of(node), f"{path}:{node.name}")
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, Function)
    ]
    assert not [name for lines, name in functions if lines > _LONGEST_FUNCTION]
    lengths = [lines for lines, _ in functions]
    assert statistics.median(lengths) <= 8
    assert statistics.quantiles(lengths, n=10)[-1] <= 35
