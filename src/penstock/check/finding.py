"""The findings of `penstock check`: a rule that a place in a program breaks, and the change that fixes it."""

from __future__ import annotations

import ast
import io
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Span(NamedTuple):
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
    """A place that breaks a rule."""

    code: str  # the rule, such as PEN003
    path: Path  # the file
    span: Span  # the place
    message: str  # what is wrong there
    fix: str  # what to write instead
    edits: tuple[Edit, ...] = ()  # changes that fix it and change nothing else; none if a person has to decide
    # the first and last line that are meant, if the place is a part of more: of a function its decorators and its head,
    # of a filter its whole query
    lines: tuple[int, int] | None = None

    def is_in(self, line: int) -> bool:
        """Whether the finding is about a line."""
        first, last = self.lines or (self.span.line, self.span.end_line)
        return first <= line <= last


Located = ast.expr | ast.stmt | ast.arg | ast.excepthandler | ast.keyword


def span_of(node: Located, lines: list[str]) -> Span:
    """The place of a node. Python counts columns in bytes of UTF-8; a span counts characters."""
    line, end, end_offset = node.lineno, node.end_lineno or node.lineno, node.end_col_offset or 0
    return Span(line, _characters(lines, line, node.col_offset), end, _characters(lines, end, end_offset))


def first_line(node: ast.stmt) -> int:
    """The line in which a statement begins, with its decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return decorators[0].lineno if decorators else node.lineno


def _characters(lines: list[str], line: int, offset: int) -> int:
    text = lines[line - 1] if line <= len(lines) else ""
    return offset if text.isascii() else len(text.encode()[:offset].decode(errors="ignore"))


def lines_of(text: str) -> list[str]:
    """The lines of a text with their ends, as Python counts them: `str.splitlines` also ends one at a form feed."""
    return [*io.StringIO(text, newline="")]
