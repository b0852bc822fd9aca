"""The rules: each has a code, a title, and a function that finds the places that break it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from penstock.check.body import Body, Call, read_body
from penstock.check.finding import Edit, Finding, Located, Span, first_line, span_of
from penstock.check.program import AnyDef, Function, Program
from penstock.check.project import Module
from penstock.check.words import RUNS


class Facts:
    """A program, and what each of its functions does."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.bodies = [read_body(program, one) for one in program.functions]
        self._called: dict[str, list[tuple[Body, Call]]] = {}
        for body in self.bodies:
            for call in body.calls:
                if call.method:
                    self._called.setdefault(call.method, []).append((body, call))
        self._body_of = {one.function.node: one for one in self.bodies}

    def body(self, function: Function) -> Body:
        """The acts of a function."""
        return self._body_of[function.node]

    def calls_of(self, kind: type[Any], *methods: str) -> Iterator[tuple[Body, Call]]:
        """The calls of these methods of a kind of thing, each with what it stands in."""
        return (one for name in methods for one in self._called.get(name, ()) if one[1].is_of(kind))

    def bodies_of(self, *kinds: str) -> Iterator[Body]:
        """The bodies of functions of these kinds."""
        return (one for one in self.bodies if kind_of(one) in kinds)

    def reach(self, roots: Iterable[Body], *, through_declared: bool = False) -> dict[AnyDef, tuple[Body, Function]]:
        """Functions and the helpers that they call, each with the first one that leads to it.

        With `through_declared` also the app's functions that they call or run.
        """
        found: dict[AnyDef, tuple[Body, Function]] = {}
        waiting = [(one, one.function) for one in roots]
        while waiting:
            body, root = waiting.pop()
            if body.function.node in found:
                continue
            found[body.function.node] = (body, root)
            called = [one.of for one in body.calls]
            if through_declared:
                called += [one.given[0] for one in body.calls if one.method in RUNS and one.given]
            helpers = (one for one in called if isinstance(one, Function) and (through_declared or one.kind is None))
            waiting.extend((self.body(one), root) for one in helpers)
        return found

    @cached_property
    def transactions(self) -> list[tuple[Body, str]]:
        """Bodies that run in a transaction, with the kind and name of the query or mutation they belong to."""
        declared = sorted(self.bodies_of("query", "mutation"), key=lambda one: one.function.kind is None, reverse=True)
        return [(body, f"{kind_of(self.body(root))} {root.name}") for body, root in self.reach(declared).values()]


def kind_of(body: Body) -> str:
    """The kind of a function: as declared, or as its ctx says."""
    return body.function.kind or (body.ctx.kind if body.ctx else "")


Places = Iterator[Finding]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule."""

    code: str  # such as PEN001
    title: str  # what is broken, in one short sentence
    fix: str  # the advice for a place that brings none of its own
    find: Callable[[Facts, Rule], Places]  # finds the places that break it

    def at(
        self,
        within: Body | Module,
        node: Located,
        message: str,
        fix: str = "",
        edits: Iterable[Edit] = (),
        *,
        head: bool = False,
    ) -> Finding:
        """A place that breaks it; with `head` the first line of a function or class."""
        module = within.function.module if isinstance(within, Body) else within
        span, lines = span_of(node, module.lines), None
        if head:
            span = Span(span.line, span.column, span.line, len(module.lines[span.line - 1]))
            lines = (first_line(node), max(node.lineno, node.body[0].lineno - 1)) if isinstance(node, AnyDef) else None
        return Finding(self.code, module.path, span, message, fix or self.fix, tuple(edits), lines)


RULES: dict[str, Rule] = {}


def rule(code: str, fix: str = "") -> Callable[[Callable[[Facts, Rule], Places]], Rule]:
    """Declare a rule, whose title is the docstring of what finds it."""

    def declare(find: Callable[[Facts, Rule], Places]) -> Rule:
        RULES[code] = Rule(code, find.__doc__ or "", fix, find)
        return RULES[code]

    return declare


def awaiting(function: Function, call: ast.Call) -> list[Edit]:
    """Await a call, if it runs in an async function; within a generator that would make another kind of generator."""
    if not isinstance(function.scope_of(call), ast.AsyncFunctionDef) or _is_awaited_later(function, call):
        return []
    above, span = function.parents[call], span_of(call, function.module.lines)
    begin, end = Span(*span[:2], *span[:2]), Span(*span[2:], *span[2:])
    if call in {getattr(above, "value", None), getattr(above, "func", None)} and isinstance(above, _TIGHTER):
        return [Edit(begin, "(await "), Edit(end, ")")]
    return [Edit(begin, "await ")]


def _is_awaited_later(function: Function, node: ast.AST) -> bool:
    """Whether what is made of a value is awaited: ``await ctx.db.get(…).amount``."""
    above = function.parents[node]
    while isinstance(above, ast.expr) and not (isinstance(above, ast.Call) and node is not above.func):
        if isinstance(above, ast.Await):
            return True
        node, above = above, function.parents[above]
    return False


_TIGHTER = (ast.Attribute, ast.Subscript, ast.Call)  # than await


def instead(module: Module, node: Located, text: str) -> Edit:
    """Write a text in place of a node."""
    return Edit(span_of(node, module.lines), text)
