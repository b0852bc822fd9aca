"""The forms in which findings are written: for people, for editors, and for services that show them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.check.finding import Finding
from penstock.check.rule import RULES

Lines = Mapping[Path, Sequence[str]]


def as_text(findings: Sequence[Finding], lines: Lines) -> str:
    """Each finding with its line of source, a mark below it, and what to write instead."""
    return "\n".join(_shown(one, lines.get(one.path, ())) for one in findings)


def _shown(one: Finding, lines: Sequence[str]) -> str:
    span = one.span
    number = str(span.line)
    edge = " " * len(number)
    text = lines[span.line - 1] if span.line <= len(lines) else ""
    end = span.end_column if span.end_line == span.line else len(text)
    mark = "".join("\t" if letter == "\t" else " " for letter in text[: span.column]) + "^" * max(1, end - span.column)
    return (
        f"{one.code} {one.message}\n{edge}--> {one.path}:{span.line}:{span.column + 1}\n{edge} |\n"
        f"{number} | {text}\n{edge} | {mark}\n{edge} = {one.fix}\n"
    )


def as_lines(findings: Sequence[Finding], _lines: Lines) -> str:
    """One line for each, as flake8 and ruff write them, for editors."""
    return "".join(f"{_place(one)}: {one.code} {one.message} {one.fix}\n" for one in findings)


def _place(one: Finding) -> str:
    return f"{one.path}:{one.span.line}:{one.span.column + 1}"


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
    """Commands that GitHub Actions shows beside the lines of a pull request."""
    return "".join(
        f"::error file={_escaped(one.path.as_posix())},line={one.span.line},col={one.span.column + 1},"
        f"endLine={one.span.end_line},title={one.code}::{_escaped(f'{one.message} {one.fix}')}\n"
        for one in findings
    )


def _escaped(text: str) -> str:
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
        "locations": [
            {"physicalLocation": {"artifactLocation": {"uri": one.path.as_posix()}, "region": region}},
        ],
        "partialFingerprints": {"penstock/v1": hashlib.sha256(f"{one.code} {one.message}".encode()).hexdigest()},
    }


FORMATS: dict[str, Callable[[Sequence[Finding], Lines], str]] = {
    "text": as_text,
    "lines": as_lines,
    "json": as_json,
    "github": as_github,
    "sarif": as_sarif,
}
