"""Expressions as text that people read: in errors, on the command line, and where a row is explained.

Owns that text, which is close to the Python that the expression was written in. It is nothing to compare by; that is
`signature`.
"""

from __future__ import annotations

from datetime import UTC
from typing import Any

from penstock.reactive.expression import (
    TERMS,
    Arithmetic,
    Compare,
    Constant,
    Every,
    Expression,
    Field,
    Has,
    Holds,
    Leaf,
    Length,
    Matches,
    Missing,
    Not,
    OneOf,
    Path,
    Some,
    Step,
    Term,
    TextIs,
)
from penstock.schema.fields import Kind


def describe(expression: Expression) -> str:
    if isinstance(expression, TERMS):
        return _term(expression)
    if isinstance(expression, (Every, Some)):
        sign = " & " if isinstance(expression, Every) else " | "
        return sign.join(f"({describe(one)})" for one in expression.conditions)
    if isinstance(expression, Not):
        inner = expression.condition
        if isinstance(inner, Compare) and inner.operator == "==":
            return f"{_term(inner.left)} != {_term(inner.right)}"
        return f"{_term(inner.term)} != None" if isinstance(inner, Missing) else f"~({describe(inner)})"
    return _leaf(expression)


def _leaf(leaf: Leaf) -> str:
    if isinstance(leaf, Compare):
        return f"{_term(leaf.left)} {leaf.operator} {_term(leaf.right)}"
    term = _term(leaf.term)
    if isinstance(leaf, OneOf):
        return f"{term}.in_([{', '.join(map(_constant, leaf.constants))}])"
    if isinstance(leaf, Missing):
        return f"{term} == None"
    if isinstance(leaf, TextIs):
        return f"{term}.{leaf.test}({leaf.text!r})"
    if isinstance(leaf, Matches):
        return f"{term}.matches({leaf.pattern!r})"
    return f"{term}.has({_constant(leaf.constant)})" if isinstance(leaf, Has) else _held(leaf)


def _held(leaf: Holds) -> str:
    return _term(leaf.term)


def _term(term: Term) -> str:
    if isinstance(term, Field):
        return term.column
    if isinstance(term, Path):
        return term.column + "".join(map(_step, term.steps))
    if isinstance(term, Constant):
        return _constant(term)
    if isinstance(term, Length):
        return f"{_term(term.of)}.length()"
    return f"{_operand(term.left)} {term.operator} {_operand(term.right)}"


def _operand(term: Term) -> str:
    return f"({_term(term)})" if isinstance(term, Arithmetic) else _term(term)


def _step(step: Step) -> str:
    return f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{step!r}]"


def _constant(constant: Constant) -> str:
    value: Any = constant.value
    if constant.kind is Kind.JSON:
        return str(value)
    if constant.kind is Kind.DATETIME:
        return str(value.astimezone(UTC).isoformat())
    if constant.kind in {Kind.DATE, Kind.INTERVAL, Kind.DECIMAL, Kind.UUID}:
        return str(value)
    return repr(value)
