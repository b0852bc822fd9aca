"""The synchronous faces are those of the asynchronous classes.

Change the asynchronous ones. To write the others anew::

    PENSTOCK_WRITE_SYNC=1 python -m pytest tests/house/test_house_sync.py
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import pytest
from house.syncfaces import HELD, HINT, PACKAGE, PAGES, face, module_of, names_in, written

from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.run.bridge import Given
from penstock.transaction.scan import Scan


@pytest.mark.parametrize("path", PAGES)
def test_a_synchronous_face_is_that_of_its_class(path: str) -> None:
    text, file = written(path), PACKAGE / path
    if os.environ.get("PENSTOCK_WRITE_SYNC"):
        file.write_text(text, "utf-8")
        return
    assert file.read_text("utf-8") == text, HINT


def test_no_face_gives_what_is_to_be_awaited() -> None:
    """Such as an object of a class that has no face."""
    given = {(name, word, kind) for path in PAGES for name, word, kind in what_is_given(import_module(module_of(path)))}
    assert len(given) > 20
    awaited = {(name, word) for name, word, kind in given if kind is not JobCalls and is_awaited(kind)}
    assert {(name, word) for name, word in awaited if not word.startswith("_")} == set()
    assert is_awaited(Scan)


def what_is_given(module: ModuleType) -> Iterator[tuple[str, str, type]]:
    """The classes that the words of faces give: face, word, class."""
    for node in (one for one in ast.parse(inspect.getsource(module)).body if isinstance(one, ast.ClassDef)):
        for word, given in what_words_give(node):
            for name in names_in([ast.unparse(given)]):
                kind = getattr(module, name, None)
                if isinstance(kind, type) and kind is not Given:
                    yield node.name, word, kind


def what_words_give(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """The words of a face, each with the type that it gives, or with the class that makes it."""
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.returns is not None and one.name != "_reach":
            yield one.name, one.returns
        elif isinstance(one, ast.Assign) and isinstance(one.value, ast.Call) and "Given" in ast.unparse(one.value):
            yield ast.unparse(one.targets[0]), one.value.args[1] if one.value.args[1:] else one.value.func


def is_awaited(kind: type) -> bool:
    """Whether a class has words that are awaited."""
    words = [word for name, word in vars(kind).items() if inspect.isfunction(word) and not name.startswith("_")]
    return any(
        inspect.iscoroutinefunction(inspect.unwrap(word))
        or str(word.__annotations__.get("return")).startswith("Coroutine")
        for word in words
        if not word.__code__.co_qualname.startswith("waits.")  # which wraps what is awaited
    )


def test_each_rule_shows_in_a_face() -> None:
    source = """
class Scan(Generic[T]):
    rows: list[Groups]
    def now(self) -> int: ...
    @property
    def groups(self) -> Groups: ...
    @property
    def size(self) -> int: ...
    async def first(self, /, *more: int, on_lost: str = "") -> T | None: ...
    def put(self, items: Iterable[T], seconds: float | None = 1, *, loud: bool = True) -> Coroutine[Any, Any, None]: ...
    def _own(self) -> None: ...
"""
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.ClassDef)
    text = "\n".join(line for line in face(node, {}, HELD) if '"""' not in line)
    assert (
        text
        == """\
class SyncScan(Face[Scan[T]]):
    rows: list[SyncGroups]
    def __init__(self, twin: Scan[T], wait: Wait) -> None:
        super().__init__(twin, wait)
        self.rows = [SyncGroups(one, wait) for one in twin.rows]
    now = passes(Scan.now)
    groups = Given(Scan.groups, SyncGroups)
    size = Given[int](Scan.size)
    def first(self, /, *more: int) -> T | None:
        return self._wait(self._twin.first(*more))
    def put(self, items: Iterable[T], seconds: float, *, loud: bool=True) -> None:
        self._wait(self._twin.put(list(items), seconds, loud=loud))"""
    )


def test_a_word_that_only_waits_or_passes_is_not_written_again() -> None:
    source = """
class Groups:
    async def count(self, *columns: str) -> int: ...
    def fail(self, error: str) -> None: ...
"""
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.ClassDef)
    text = "\n".join(line for line in face(node, {}, HELD) if '"""' not in line)
    assert (
        text
        == """\
class SyncGroups(Face[Groups]):
    count = waits(Groups.count)
    fail = passes(Groups.fail)"""
    )
