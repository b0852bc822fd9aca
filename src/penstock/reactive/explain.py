"""Why a row matches a filter, or does not: the parts that decide it, and what they found in the row.

Owns which parts decide. Leaves their text to `describe`, and their outcome to `evaluate`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.reactive.describe import describe
from penstock.reactive.evaluate import Values, holds, watched
from penstock.reactive.expression import (
    Arithmetic,
    Condition,
    Constant,
    Every,
    Leaf,
    Length,
    Not,
    Some,
    Term,
    operands,
    terms_of,
)
from penstock.schema.fields import Kind

_LONGEST = 80
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Finding:
    """A part of a filter that decides, whether it is true of the row, and each of its terms with its value."""

    part: str
    holds: bool
    found: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        found = ", ".join(f"{term} is {value}" for term, value in self.found)
        return f"{self.part} is {'true' if self.holds else 'false'}: {found}"


def explain(condition: Condition, values: Values) -> tuple[Finding, ...]:
    """The parts that make a condition true or false of a row, in order."""
    return tuple(_deciding(condition, values))


def _deciding(condition: Condition, values: Values) -> Iterator[Finding]:
    outcome = holds(condition, values)
    if isinstance(condition, (Every, Some)):
        alone = isinstance(condition, Some)  # one part that is so decides alone
        for one in condition.conditions:
            if outcome is not alone or holds(one, values) is outcome:
                yield from _deciding(one, values)
    elif isinstance(condition, Not) and isinstance(condition.condition, (Every, Some, Not)):
        yield from _deciding(condition.condition, values)
    else:
        leaf = condition.condition if isinstance(condition, Not) else condition
        yield Finding(describe(condition), outcome, tuple(_found(leaf, values)))  # type: ignore[arg-type]


def _found(leaf: Leaf, values: Values) -> Iterator[tuple[str, str]]:
    seen = set()
    for term in terms_of(leaf):
        for part in dict.fromkeys((term, *operands(term))) if isinstance(term, Arithmetic) else (term,):
            if not isinstance(part, Constant) and part not in seen:
                seen.add(part)
                yield describe(part), shown(part, values)
                if isinstance(part, Length):
                    yield describe(part.of), shown(part.of, values)


def shown(term: Term, values: Values) -> str:
    """The value of a term as text, cut if it is long."""
    (value,) = watched((term,), values)
    text = _text(term.kind, value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _text(kind: Kind, value: Any) -> str:
    if value is None:
        return "None"
    try:
        if kind is Kind.DATETIME:
            return (_EPOCH + timedelta(microseconds=value)).isoformat()
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
