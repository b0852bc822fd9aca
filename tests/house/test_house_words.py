"""The words of the source: functions are verbs or nouns, and docstrings and comments say nothing twisted."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

_MOST = 0.02  # of all functions
_IRREGULAR = """
begun born borne bought broken brought built caught chosen dealt done drawn driven fallen fed felt fled flown
forgotten fought found frozen given gone got grown heard held hidden hung hurt kept knit known laid led left lent lit
lost made meant met overdue paid risen said sat seen sent shaken shown slept sold sought spent spoken stolen struck
stuck sung sunk swept sworn taken taught thought thrown told torn undone unknown unread unseen untold withdrawn woken
won worn written
"""
_NO_PARTICIPLES = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed", "succeed"})
_ALLOWED = {
    "arrived": "public: `Gate` of penstock.testing",
    "cancelled": "public: `ActionCtx` and `ActionWork`",
    "completed": "the field of the event workpool.report that it sums up",
    "fixed": "public: `Retry.fixed`",
    "held": "public: exported from penstock.migrations",
    "known": "public: the word in filters",
    "lost": "public: `Lock.lost`",
    "patched": "public: `WorkflowCtx`, and its body",
    "passed": "the column of an outbox that it reads",
    "watched_values": "public: the ctx of a reactive task",
}

_COMMENT = re.compile(r"(?m)^(?:.*  |\s*)# (.*)$")
_STARTS = re.compile(r"(The same|What|Who|Whoever|Whose|Of these|Of those|Those|That which)\b")
_WORDS = re.compile(r"(?i)\b(anew|beside|mends?|of\s(which|whom)|such\sas\sare|those\s(that|which|who)|whoever)\b")
# Migrations that were released are never edited.
_MIGRATIONS = re.compile(r"store/(\w+/)?migrations/")

Definition = ast.FunctionDef | ast.AsyncFunctionDef


def is_participle(name: str) -> bool:
    first = name.strip("_").partition("_")[0].lower()
    return first in _IRREGULAR.split() or (first.endswith("ed") and len(first) > 3 and first not in _NO_PARTICIPLES)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Definition) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text


@pytest.fixture(scope="module")
def said(root: Path, trees: dict[str, ast.Module]) -> list[tuple[str, str]]:
    """The docstrings and comments of the files, each with its place."""
    source = root / "src"
    found = [(f"{name}:{line}", text) for name, tree in trees.items() for line, text in docstrings(tree)]
    found += [(name, comment) for name in trees for comment in _COMMENT.findall((source / name).read_text("utf-8"))]
    for path in sorted((source / "penstock").rglob("*.sql")):
        name = path.relative_to(source).as_posix()
        if not _MIGRATIONS.search(name):
            lines = path.read_text("utf-8").splitlines()
            found += [(f"{name}:{number}", line.partition("--")[2]) for number, line in enumerate(lines, 1)]
    return found


def test_functions_are_named_by_what_they_do_or_give(trees: dict[str, ast.Module]) -> None:
    names = [node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, Definition)]
    participles = [name for name in names if is_participle(name)]
    assert len(participles) / len(names) < _MOST
    assert set(participles) == set(_ALLOWED), "name a function by a verb, or by the noun that it returns"


def test_docstrings_begin_with_the_act_or_the_thing(trees: dict[str, ast.Module]) -> None:
    found = {f"{path}:{line}" for path, tree in trees.items() for line, text in docstrings(tree) if _STARTS.match(text)}
    assert not found


def test_docstrings_and_comments_say_what_a_colleague_would(said: list[tuple[str, str]]) -> None:
    assert not [f"{place}: {match[0]}" for place, text in said for match in _WORDS.finditer(text)]
