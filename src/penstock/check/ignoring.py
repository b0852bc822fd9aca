"""Comments that leave out a finding: ``# penstock: ignore[PEN003] at most ten rows, one for each weekday``."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from penstock.check.finding import Finding, Span, first_line
from penstock.check.project import Module
from penstock.check.rule import RULES

CODE = "PEN000"
_UNUSED_FIX = "Remove the comment, or write it at the end of the line that breaks the rule."
_COMMENT = re.compile(r"#\s*penstock:\s*ignore(?:\[(?P<codes>[\w\s,]*)\])?(?P<reason>.*)")


@dataclass(slots=True)
class _Ignore:
    codes: set[str]
    reason: str
    span: Span
    used: set[str] = field(default_factory=set)


def without_ignored(module: Module, findings: Iterable[Finding], codes: Iterable[str]) -> Iterator[Finding]:
    """The findings in a file that no comment on their lines ignores, and the comments that are wrong.

    Args:
        module: The file.
        findings: Those in this file.
        codes: The rules that were looked for; a comment that ignores another one is not called useless.
    """
    ignores = dict(_ignores(module)) if "penstock:" in module.text else {}
    for one in findings:
        those = [ignore for line, ignore in ignores.items() if ignore.reason and one.is_in(line)]
        ignore = next((ignore for ignore in those if one.code in ignore.codes), None)
        if ignore is not None:
            ignore.used.add(one.code)
        else:
            yield one
    looked_for = set(codes)
    for ignore in ignores.values():
        if not ignore.codes:
            yield _find(module, ignore, "This comment names no rule.", "Write # penstock: ignore[PEN003] and why.")
        elif unknown := sorted(ignore.codes - {*RULES, CODE}):
            yield _find(module, ignore, f"There is no rule {unknown[0]}.", the_rules())
        elif not ignore.reason:
            yield _find(module, ignore, "This comment gives no reason, so it ignores nothing.", "Write why after it.")
        elif left := sorted((ignore.codes & looked_for) - ignore.used):
            yield _find(module, ignore, f"Nothing here breaks {', '.join(left)}.", _UNUSED_FIX)


def the_rules() -> str:
    """The codes of all rules."""
    return f"The rules are {CODE} to {max(RULES)}."


def _find(module: Module, ignore: _Ignore, message: str, fix: str) -> Finding:
    return Finding(CODE, module.path, ignore.span, message, fix)


def _ignores(module: Module) -> Iterator[tuple[int, _Ignore]]:
    """The comments that ignore a rule, each with its line.

    Tokens take longer than all else: only the statements at the top of the file are read that hold such a comment.
    """
    cuts, end = [0], 0
    for node in module.tree.body:
        first = first_line(node)
        if first > end:  # two may share a line
            cuts.append(first - 1)
        end = node.end_lineno or first
    for above, below in pairwise([*cuts, len(module.lines)]):
        text = "\n".join(module.lines[above:below])
        reads = io.StringIO(text.rstrip("\n\\")).readline
        for token in tokenize.generate_tokens(reads) if _COMMENT.search(text) else ():
            if token.type == tokenize.COMMENT and (found := _COMMENT.search(token.string)):
                line, column = token.start[0] + above, token.start[1]
                codes = {one.strip() for one in (found["codes"] or "").split(",") if one.strip()}
                yield line, _Ignore(codes, found["reason"].strip(" -:"), Span(line, column, line, token.end[1]))
