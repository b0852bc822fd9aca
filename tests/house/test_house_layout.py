"""How the source is laid out: rooms, names, lengths, docstrings."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

_FORBIDDEN = re.compile(r"(?i)(^|_|[a-z])(utils?|helpers?|common|manager|misc)(_|$|s$)")
_LONGEST_FILE = 600
_LONGEST_FUNCTION = 40  # lines of code, its docstring not counted
_LONG_FUNCTIONS_ALLOWED: dict[str, int] = {}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.Module) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


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


def test_the_rule_of_names_would_notice() -> None:
    assert all(map(_FORBIDDEN.search, ("utils", "job_utils", "helpers", "common", "JobManager", "WorkerManager")))
    assert not any(map(_FORBIDDEN.search, ("commit", "commands", "comments", "management_of")))


def test_every_module_tells_its_duty(trees: dict[str, ast.Module]) -> None:
    silent = [path for path, tree in trees.items() if tree.body and not ast.get_docstring(tree)]
    assert not silent


def test_files_are_short_enough_to_be_read(root: Path) -> None:
    long = {
        path: lines
        for path, lines in (
            (file.relative_to(root / "src").as_posix(), len(file.read_text("utf-8").splitlines()))
            for file in sorted((root / "src").rglob("*.py"))
        )
        if lines > _LONGEST_FILE
    }
    assert not long, "a room that should become a folder"


def test_functions_are_short_stories(trees: dict[str, ast.Module]) -> None:
    lengths = [lines_of(function) for tree in trees.values() for function in functions(tree)]
    assert statistics.median(lengths) <= 8
    assert statistics.quantiles(lengths, n=10)[-1] <= 35


def test_a_long_function_is_allowed_by_name(trees: dict[str, ast.Module]) -> None:
    long = {
        f"{path}:{function.name}": lines_of(function)
        for path, tree in trees.items()
        for function in functions(tree)
        if lines_of(function) > _LONG_FUNCTIONS_ALLOWED.get(f"{path}:{function.name}", _LONGEST_FUNCTION)
    }
    assert not long


def test_allowances_are_still_needed(trees: dict[str, ast.Module]) -> None:
    lengths = {f"{path}:{one.name}": lines_of(one) for path, tree in trees.items() for one in functions(tree)}
    assert not [name for name in _LONG_FUNCTIONS_ALLOWED if lengths.get(name, 0) <= _LONGEST_FUNCTION]
