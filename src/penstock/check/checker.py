"""Looks for all that a program breaks."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from penstock.check import rules as _rules  # noqa: F401 - importing it declares the rules
from penstock.check.finding import Finding
from penstock.check.program import Program
from penstock.check.project import Project
from penstock.check.rule import RULES, Facts


def check(paths: Iterable[Path], codes: Collection[str] = ()) -> tuple[list[Finding], Project]:
    """All findings in the files at these paths and below them, in their order; of these rules, or of all."""
    project = Project(paths)
    facts = Facts(Program(project))
    found = {
        finding
        for code, rule in RULES.items()
        if not codes or code in codes
        for finding in rule.find(facts, rule)
    }
    return sorted(found, key=lambda one: (one.path, one.span, one.code, one.message)), project
