"""Expressions as text that people read: in errors, on the command line, and where a row is explained.

Owns that text, which is close to the expression's Python. Do not compare by it; the text for that is
`signature`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import Any

from penstock.reactive import expression as ex
from penstock.reactive.evaluate import EPOCH, Values, holds, watched
from penstock.schema.fields import Kind


def describe(expression: ex.Expression) -> str:
    if isinstance(expression, ex.TERMS):
        return _term(expression)
    if isinstance(expression, (ex.Every, ex.Some)):
        sign = " & " if isinstance(expression, ex.Every) else " | "
        return sign.join(f"({describe(one)})" for one in expression.conditions)
    if isinstance(expression, ex.Not):
        inner = expression.condition
        if isinstance(inner, ex.Compare) and inner.operator == "==":
            return f"{_term(inner.left)} != {_term(inner.right)}"
        return f"{_term(inner.term)} != None" if isinstance(inner, ex.Missing) else f"~({describe(inner)})"
    return _leaf(expression)


def _leaf(leaf: ex.Leaf) -> str:
    if isinstance(leaf, ex.Compare):
        return f"{_term(leaf.left)} {leaf.operator} {_term(leaf.right)}"
    term = _term(leaf.term)
    if isinstance(leaf, ex.OneOf):
        return f"{term}.in_([{', '.join(map(_constant, leaf.constants))}])"
    if isinstance(leaf, ex.Missing):
        return f"{term} == None"
    if isinstance(leaf, ex.TextIs):
        return f"{term}.{leaf.test}({leaf.text!r})"
    if isinstance(leaf, ex.Matches):
        return f"{term}.matches({leaf.pattern!r})"
    return f"{term}.has({_constant(leaf.constant)})" if isinstance(leaf, ex.Has) else term


def _term(term: ex.Term) -> str:
    if isinstance(term, ex.Field):
        return term.column
    if isinstance(term, ex.Path):
        return term.column + "".join(map(_step, term.steps))
    if isinstance(term, ex.Constant):
        return _constant(term)
    if isinstance(term, ex.Length):
        return f"{_term(term.of)}.length()"
    return f"{_operand(term.left)} {term.operator} {_operand(term.right)}"


def _operand(term: ex.Term) -> str:
    return f"({_term(term)})" if isinstance(term, ex.Arithmetic) else _term(term)


def _step(step: ex.Step) -> str:
    return f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{step!r}]"


def _constant(constant: ex.Constant) -> str:
    value: Any = constant.value
    if constant.kind is Kind.JSON:
        return str(value)
    if constant.kind is Kind.DATETIME:
        return str(value.astimezone(UTC).isoformat())
    if constant.kind in {Kind.DATE, Kind.INTERVAL, Kind.DECIMAL, Kind.UUID}:
        return str(value)
    return repr(value)


_LONGEST = 80


@dataclass(frozen=True, slots=True)
class Finding:
    """A part of a filter that decides, whether it is true of the row, and each of its terms with its value."""

    part: str
    holds: bool
    found: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        found = ", ".join(f"{term} is {value}" for term, value in self.found)
        return f"{self.part} is {'true' if self.holds else 'false'}: {found}"


def explain(condition: ex.Condition, values: Values) -> Iterator[Finding]:
    """The parts that make a condition true or false of a row, in order."""
    outcome = holds(condition, values)
    if isinstance(condition, (ex.Every, ex.Some)):
        alone = isinstance(condition, ex.Some)  # one part that is so decides alone
        for one in condition.conditions:
            if outcome is not alone or holds(one, values) is outcome:
                yield from explain(one, values)
    elif isinstance(condition, ex.Not) and isinstance(condition.condition, (ex.Every, ex.Some, ex.Not)):
        yield from explain(condition.condition, values)
    else:
        leaf = condition.condition if isinstance(condition, ex.Not) else condition
        yield Finding(describe(condition), outcome, tuple(_found(leaf, values)))  # type: ignore[arg-type]


def _found(leaf: ex.Leaf, values: Values) -> Iterator[tuple[str, str]]:
    seen = set()
    for term in ex.terms_of(leaf):
        for part in dict.fromkeys((term, *ex.operands(term))) if isinstance(term, ex.Arithmetic) else (term,):
            if not isinstance(part, ex.Constant) and part not in seen:
                seen.add(part)
                yield describe(part), shown(part, values)
                if isinstance(part, ex.Length):
                    yield describe(part.of), shown(part.of, values)


def shown(term: ex.Term, values: Values) -> str:
    (value,) = watched((term,), values)
    text = _text(term.kind, value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _text(kind: Kind, value: Any) -> str:
    if value is None:
        return "None"
    try:
        if kind is Kind.DATETIME:
            return (EPOCH + timedelta(microseconds=value)).isoformat()
        if kind is Kind.INTERVAL:
            return str(timedelta(microseconds=value))
    except OverflowError:
        return f"{value} microseconds"
    if kind is Kind.JSON:
        return _json(value)
    return str(value) if kind in {Kind.DATE, Kind.DECIMAL, Kind.UUID} else repr(value)


def _json(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_json(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_json, value)) + "]"
    return repr(value) if isinstance(value, (str, bool)) or value is None else str(value)
