"""What `penstock check` finds: a rule that a place in a program breaks, and the change that mends it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A part of a file: lines from 1, columns from 0 and in characters."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True)
class Edit:
    """A text to write in place of a part of a file."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A place that breaks a rule.

    Attributes:
        code: The rule, such as PEN003.
        path: The file.
        span: The place.
        message: What is wrong there.
        fix: What to write instead.
        edits: Changes that mend it and change nothing else; none if a person has to decide.
    """

    code: str
    path: Path
    span: Span
    message: str
    fix: str
    edits: tuple[Edit, ...] = ()


Located = ast.expr | ast.stmt | ast.arg | ast.excepthandler | ast.keyword


def span_of(node: Located, lines: list[str]) -> Span:
    """The place of a node. Python counts columns in bytes of UTF-8; a span counts characters."""
    line, end, end_offset = node.lineno, node.end_lineno or node.lineno, node.end_col_offset or 0
    return Span(line, _characters(lines, line, node.col_offset), end, _characters(lines, end, end_offset))


def _characters(lines: list[str], line: int, offset: int) -> int:
    text = lines[line - 1] if line <= len(lines) else ""
    return offset if text.isascii() else len(text.encode()[:offset].decode(errors="ignore"))
