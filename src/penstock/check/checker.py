"""Looks for all that a program breaks."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.check import ignoring
from penstock.check.finding import Finding, Span
from penstock.check.program import Program
from penstock.check.project import Project
from penstock.check.rule import RULES, Facts
from penstock.check.rules import calling, declaring, outside, reading, replaying, working

UNREADABLE = "PEN999"
_ROOM = (calling, declaring, outside, reading, replaying, working)  # importing them declares the rules


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of a check."""

    findings: list[Finding]  # in the order of files and lines
    lines: Mapping[Path, Sequence[str]]  # the lines of each file


@contextmanager
def _without_collector() -> Iterator[None]:
    """A check makes many objects and next to no garbage: to look for that takes a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@_without_collector()
def check(
    paths: Iterable[Path], codes: Collection[str] | None = None, *, unsaved: Mapping[Path, str] | None = None
) -> Report:
    """Check the files at these paths and below them. Nothing of them is run or imported.

    Args:
        paths: Files and folders.
        codes: The rules to look for; all by default.
        unsaved: Texts to read in place of files, by the whole paths of these.
    """
    looked_for = set(RULES if codes is None else codes)
    project = Project(paths, unsaved or {})
    facts = Facts(Program(project))
    by_path: dict[Path, set[Finding]] = {one: set() for one in project.asked}
    for code in sorted(looked_for & RULES.keys()):
        for finding in RULES[code].find(facts, RULES[code]):
            if finding.path in by_path:
                by_path[finding.path].add(finding)
    broken = {path: found for path, found in project.broken.items() if path in by_path}
    findings = [_unreadable(path, error) for path, (error, _lines) in broken.items()]
    asked = [one for one in project.modules if one.path in by_path]
    for module in asked:
        found = ignoring.without_ignored(module, by_path[module.path], looked_for)
        findings.extend(one for one in found if one.code != ignoring.CODE or codes is None or ignoring.CODE in codes)
    findings.sort(key=lambda one: (one.path, one.span, one.code, one.message))
    lines = {one.path: one.lines for one in asked}
    return Report(findings, lines | {path: lines for path, (_error, lines) in broken.items()})


def _unreadable(path: Path, error: SyntaxError) -> Finding:
    line, column = error.lineno or 1, max(0, (error.offset or 1) - 1)
    message = f"This file cannot be read: {error.msg}."
    return Finding(UNREADABLE, path, Span(line, column, line, column), message, "Correct it: no rule is checked in it.")
