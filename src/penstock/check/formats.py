"""The forms in which findings are written: for people, for editors, and for services that show them."""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len, set_cell_size

from penstock.check.finding import Finding
from penstock.check.rule import RULES

Lines = Mapping[Path, Sequence[str]]


Paint = Callable[[str, str], str]  # a text, and the part that it is


def as_text(
    findings: Sequence[Finding], lines: Lines, width: int | None = None, paint: Paint = lambda text, _part: text
) -> str:
    """Each finding with its line of source, a mark below it, and what to write instead.

    Args:
        findings: The findings.
        lines: The lines of each file.
        width: The columns of the terminal; None without one.
        paint: Gives a part its colour: "code", "edge" or "mark".
    """
    return "".join(f"{_show(one, lines.get(one.path, ()), width, paint)}\n" for one in findings)


def _show(one: Finding, lines: Sequence[str], width: int | None, paint: Paint) -> str:
    span = one.span
    edge = " " * len(str(span.line))
    text = lines[span.line - 1] if span.line <= len(lines) else ""
    end = span.end_column if span.end_line == span.line else len(text)
    parts = (text[: span.column], text[span.column : end], text[end:])
    before, marked, after = (part.replace("\t", _TAB) for part in parts)
    if width:
        before, marked, after = _window(before, marked, after, width - len(edge) - 3)
    message = _wrap(f"{one.code} {one.message}", width, " " * (len(one.code) + 1)).removeprefix(one.code)
    mark = " " * cell_len(before) + paint("^" * max(1, cell_len(marked)), "mark")
    source = (
        f"{edge} {paint('|', 'edge')}\n"
        f"{paint(f'{span.line} |', 'edge')} {before}{marked}{after}\n"
        f"{edge} {paint('|', 'edge')} {mark}\n"
    )
    return (
        f"{paint(one.code, 'code')}{message}\n"
        f"{edge}{paint('-->', 'edge')} {one.path}:{span.line}:{span.column + 1}\n"
        f"{source if lines else ''}"  # a file that is no text has no line to show
        f"{edge} {paint('=', 'edge')} {_wrap(one.fix, width, f'{edge}   ')}\n"
    )


_TAB = " " * 4
_AROUND = 12  # characters around a mark that are shown in any case


def _window(before: str, marked: str, after: str, room: int) -> tuple[str, str, str]:
    """The part of a long line that fits into a room, with what is marked in it, or the beginning of that."""
    ends = min(cell_len(after), _AROUND)
    if cell_len(before + marked) + ends > room and cell_len(before) > room // 2:
        kept = max(_AROUND, room - cell_len(marked) - ends - 1)
        before = f"…{before[-kept:]}" if len(before) > kept + 1 else before
    marked = _cut(marked, room - cell_len(before))
    return before, marked, "" if marked.endswith("…") else _cut(after, room - cell_len(before + marked))


def _cut(text: str, room: int) -> str:
    if cell_len(text) <= room:
        return text
    return f"{set_cell_size(text, room - 1).rstrip()}…" if room > 1 else ""


def _wrap(text: str, width: int | None, indent: str) -> str:
    """A sentence in lines, the further ones indented."""
    if not width:
        return text
    lines = textwrap.wrap(text, width - len(indent), break_long_words=False, break_on_hyphens=False)
    return f"\n{indent}".join(lines)


def as_lines(findings: Sequence[Finding], _lines: Lines) -> str:
    """One line for each, as flake8 and ruff write them, for editors."""
    return "".join(
        f"{one.path}:{one.span.line}:{one.span.column + 1}: {one.code} {one.message} {one.fix}\n" for one in findings
    )


def as_json(findings: Sequence[Finding], _lines: Lines) -> str:
    """A list of objects."""
    return json.dumps([_fields(one) for one in findings], indent=2) + "\n"


def _fields(one: Finding) -> dict[str, Any]:
    span = one.span
    return {
        "code": one.code,
        "path": one.path.as_posix(),
        "line": span.line,
        "column": span.column + 1,
        "end_line": span.end_line,
        "end_column": span.end_column + 1,
        "message": one.message,
        "fix": one.fix,
        "is_fixable": bool(one.edits),
    }


def as_github(findings: Sequence[Finding], _lines: Lines) -> str:
    """Commands that GitHub Actions shows at the lines of a pull request."""
    return "".join(
        f"::error file={_escape(one.path.as_posix())},line={one.span.line},col={one.span.column + 1},"
        f"endLine={one.span.end_line},title={one.code}::{_escape(f'{one.message} {one.fix}')}\n"
        for one in findings
    )


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def as_sarif(findings: Sequence[Finding], _lines: Lines) -> str:
    """SARIF 2.1.0, which code scanning services read."""
    rules = [{"id": code, "shortDescription": {"text": rule.title}} for code, rule in sorted(RULES.items())]
    run = {
        "tool": {"driver": {"name": "penstock check", "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "results": [_result(one) for one in findings],
    }
    return json.dumps({"version": "2.1.0", "$schema": _SCHEMA, "runs": [run]}, indent=2) + "\n"


_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def _result(one: Finding) -> dict[str, Any]:
    span = one.span
    region = {
        "startLine": span.line,
        "startColumn": span.column + 1,
        "endLine": span.end_line,
        "endColumn": span.end_column + 1,
    }
    return {
        "ruleId": one.code,
        "level": "error",
        "message": {"text": f"{one.message} {one.fix}"},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": one.path.as_posix()}, "region": region}}],
        "partialFingerprints": {"penstock/v1": hashlib.sha256(f"{one.code} {one.message}".encode()).hexdigest()},
    }


FORMATS: dict[str, Callable[[Sequence[Finding], Lines], str]] = {
    "text": as_text,
    "lines": as_lines,
    "json": as_json,
    "github": as_github,
    "sarif": as_sarif,
}
