"""Time and chance have one door, and tests wait for nothing but events."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_DOOR = "penstock/clock.py"
_MODULES = {"time", "random"}
_NAMES = {
    "asyncio.sleep",
    "date.today",
    "datetime.date.today",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.now",
    "datetime.utcnow",
    "os.urandom",
    "secrets.randbits",
    "uuid.uuid1",
    "uuid.uuid4",
}
_SLEEPS = {"asyncio.sleep", "time.sleep", "sleep"}


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of an expression, or nothing if it is not of that form."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def imported(tree: ast.Module) -> Iterator[str]:
    """Modules that a module imports, and names it takes from them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_time(tree: ast.Module) -> set[str]:
    """How a module tells time or takes chances by itself."""
    found = {name for name in imported(tree) if name.partition(".")[0] in _MODULES or name in _NAMES}
    return found | {name for node in ast.walk(tree) if isinstance(node, ast.expr) and (name := dotted(node)) in _NAMES}


def sleeps(tree: ast.Module) -> list[int]:
    """Lines on which a module sleeps for a time that is written there. A sleep of 0 only lets others run."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and dotted(node.func) in _SLEEPS
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and node.args[0].value != 0
    ]


def test_only_the_clock_knows_time_and_chance(trees: dict[str, ast.Module]) -> None:
    assert {path: found for path, tree in trees.items() if path != _DOOR and (found := own_time(tree))} == {}


def test_tests_do_not_sleep(test_trees: dict[str, ast.Module]) -> None:
    assert {path: lines for path, tree in test_trees.items() if (lines := sleeps(tree))} == {}


def test_these_rules_would_notice() -> None:
    guilty = ast.parse("import random\nfrom time import monotonic\nnow = datetime.now()\nawait asyncio.sleep(1)")
    assert own_time(guilty) == {"random", "time", "time.monotonic", "datetime.now", "asyncio.sleep"}
    assert sleeps(ast.parse("await asyncio.sleep(0)\ntime.sleep(0.1)\nclock.sleep(5)")) == [2]
