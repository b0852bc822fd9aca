"""Writes the changes that mend findings into the text of a file."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from penstock.check.finding import Edit, Finding


def fixed(text: str, findings: Iterable[Finding]) -> tuple[str, int]:
    """The text with these findings mended, and how many were; of two that overlap the first is."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    taken: list[tuple[int, int, str]] = []
    mended = 0
    for finding in findings:
        edits = [_place(starts, one) for one in finding.edits]
        if edits and not any(
            begin < other_end and other < end for begin, end, _ in edits for other, other_end, _ in taken
        ):
            taken.extend(one for one in edits if one not in taken)
            mended += 1
    for begin, end, new in sorted(taken, reverse=True):
        text = text[:begin] + new + text[end:]
    return text, mended


def _place(starts: list[int], edit: Edit) -> tuple[int, int, str]:
    span = edit.span
    return starts[span.line - 1] + span.column, starts[span.end_line - 1] + span.end_column, edit.text


def difference(path: Path, before: str, after: str) -> str:
    """What a fix changes, as a patch."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{path}", f"b/{path}"
    )
    return "".join(lines)
