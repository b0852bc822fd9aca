"""A labelled set of right and wrong programs: what is told of those that are wrong, and of no other line.

A line that a rule is to name ends with ``# expect: PEN003``, one that is wrong and not found with ``# missed: PEN003``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.check.checker import check

SETS = Path(__file__).parent / "labelled"
_EXPECT = re.compile(r"# expect: (PEN\d+(?:, PEN\d+)*)")


def expected(folder: Path) -> set[tuple[str, int, str]]:
    """The file, line and rule of each label."""
    return {
        (file.name, number, code)
        for file in folder.rglob("*.py")
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        for found in _EXPECT.finditer(line)
        for code in found[1].split(", ")
    }


def told(folder: Path) -> set[tuple[str, int, str]]:
    """The file, line and rule of each finding."""
    return {(one.path.name, one.span.line, one.code) for one in check([folder]).findings}


@pytest.mark.parametrize("folder", sorted(SETS.iterdir()), ids=lambda one: one.name)
def test_each_label_is_told_and_nothing_else(folder: Path) -> None:
    labels, findings = expected(folder), told(folder)
    assert findings - labels == set(), "told of lines that are right"
    assert labels - findings == set(), "not told of lines that are wrong"
