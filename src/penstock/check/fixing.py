"""Writes fixes: only those after which the program compiles, and has its other findings and no new ones.

Owns which fixes hold. What a fix changes is the matter of its rule.
"""

from __future__ import annotations

import difflib
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from penstock.check.checker import Report, check
from penstock.check.finding import Edit, Finding, lines_of


class Fixer:
    """Tries fixes on a program."""

    def __init__(self, paths: Sequence[Path], report: Report, unsaved: Mapping[Path, str] | None = None) -> None:
        self._paths = paths
        self._unsaved = dict(unsaved or {})
        self._before = self._count(self._unsaved)
        self._given = {one.path: self._text(one.path) for one in report.findings if one.edits}
        self.texts = self._given  # the texts of the files with something to fix, and then with the fixes that hold
        self.held: list[Finding] = []  # the findings that these fix
        waiting = [[one for one in report.findings if one.edits]]
        while waiting:
            some = waiting.pop()
            if not self._try(some) and len(some) > 1:
                half = len(some) // 2
                waiting += [some[half:], some[:half]]

    def _text(self, path: Path) -> str:
        whole = path.resolve()
        return self._unsaved[whole] if whole in self._unsaved else path.read_bytes().decode()  # with its ends of lines

    def _try(self, some: list[Finding]) -> bool:
        """Keep these fixes if they hold together with the fixes kept so far."""
        wanted = [*self.held, *some]
        texts = {path: apply(text, (one for one in wanted if one.path == path)) for path, text in self._given.items()}
        holds = all(_compiles(path, text) for path, text in texts.items() if text != self.texts[path])
        after = self._count(self._unsaved | {path.resolve(): text for path, text in texts.items()}) if holds else None
        if after is None or after + Counter(map(_key, wanted)) != self._before:
            return False
        self.texts, self.held = texts, wanted
        return True

    def _count(self, texts: Mapping[Path, str]) -> Counter[tuple[Path, str]]:
        return Counter(map(_key, check(self._paths, unsaved=texts).findings))


def _key(finding: Finding) -> tuple[Path, str]:
    return finding.path, finding.code


def _compiles(path: Path, text: str) -> bool:
    """Whether Python takes a text: `ast.parse` alone lets an await stand in any function."""
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(text.removeprefix("\ufeff"), str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True


def apply(text: str, findings: Iterable[Finding]) -> str:
    """The text with these findings fixed; of two that overlap only the first is."""
    starts = [*accumulate(map(len, lines_of(text)), initial=0)]
    taken: list[tuple[int, int, str]] = []
    for finding in findings:
        edits = [_place(starts, one) for one in finding.edits]
        if not any(begin < other_end and other < end for begin, end, _ in edits for other, other_end, _ in taken):
            taken.extend(one for one in edits if one not in taken)
    for begin, end, new in sorted(taken, reverse=True):
        text = text[:begin] + new + text[end:]
    return text


def _place(starts: list[int], edit: Edit) -> tuple[int, int, str]:
    span = edit.span
    return starts[span.line - 1] + span.column, starts[span.end_line - 1] + span.end_column, edit.text


def difference(path: Path, before: str, after: str) -> str:
    """A fix as a patch."""
    return "".join(difflib.unified_diff(lines_of(before), lines_of(after), f"a/{path}", f"b/{path}"))
