"""The synchronous faces are those of the asynchronous classes. To write them anew::

PENSTOCK_WRITE_SYNC=1 python -m pytest tests/house/test_house_sync.py
"""

from __future__ import annotations

import ast
import os

import pytest
from house.syncfaces import HELD, HINT, PACKAGE, PAGES, face, written


@pytest.mark.parametrize("path", PAGES)
def test_a_synchronous_face_is_that_of_its_class(path: str) -> None:
    text, file = written(path), PACKAGE / path
    if os.environ.get("PENSTOCK_WRITE_SYNC"):
        file.write_text(text, "utf-8")
        return
    assert file.read_text("utf-8") == text, HINT


def test_each_rule_shows_in_a_face() -> None:
    source = """
class Scan(Generic[T]):
    rows: list[Groups]
    def now(self) -> int: ...
    @property
    def groups(self) -> Groups: ...
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
class SyncScan(Generic[T]):
    rows: list[SyncGroups]
    def __init__(self, twin: Scan[T], wait: Wait) -> None:
        self._twin, self._wait = twin, wait
        self.rows = [SyncGroups(one, wait) for one in twin.rows]
    def now(self) -> int:
        return self._twin.now()
    @property
    def groups(self) -> SyncGroups:
        return SyncGroups(self._twin.groups, self._wait)
    def first(self, /, *more: int) -> T | None:
        return self._wait(self._twin.first(*more))
    def put(self, items: Iterable[T], seconds: float, *, loud: bool=True) -> None:
        self._wait(self._twin.put(list(items), seconds, loud=loud))"""
    )
