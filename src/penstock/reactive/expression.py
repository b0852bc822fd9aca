"""Expressions over one row: the trees that filters and watches are.

Owns their nodes, which are frozen values, and the kinds that compare and compute with each other. Leaves making
them to `tracing`, their meaning in Python to `evaluate`, and their SQL to the store.

A term has a value, or none: None, NULL, and a missing key of JSON are all alike *not there*. A condition is true or
false, and never a third thing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from penstock.schema.fields import Kind

Comparison = Literal["==", "<", "<=", ">", ">="]
TextTest = Literal["startswith", "endswith", "contains"]
Operator = Literal["+", "-", "*"]
Step = str | int


@dataclass(frozen=True, slots=True)
class Field:
    column: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Path:
    """The value in a JSON column under some keys and places."""

    column: str
    steps: tuple[Step, ...]

    @property
    def kind(self) -> Kind:
        return Kind.JSON


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that was written into the expression, in the form that `schema.fields` gives stores; JSON as text."""

    kind: Kind
    value: Any


@dataclass(frozen=True, slots=True)
class Length:
    """Of a text, of bytes or of a JSON array; nothing else has one."""

    of: Term

    @property
    def kind(self) -> Kind:
        return Kind.INTEGER


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A sum, a difference or a product; not there if one of its operands is not."""

    operator: Operator
    left: Term
    right: Term
    kind: Kind


Term = Field | Path | Constant | Length | Arithmetic


@dataclass(frozen=True, slots=True)
class Compare:
    """Two values compared. Two absent values are equal; all other comparisons with an absent value are false."""

    operator: Comparison
    left: Term
    right: Term


@dataclass(frozen=True, slots=True)
class OneOf:
    term: Term
    constants: tuple[Constant, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    term: Term


@dataclass(frozen=True, slots=True)
class TextIs:
    test: TextTest
    term: Term
    text: str


@dataclass(frozen=True, slots=True)
class Matches:
    term: Term
    pattern: str


@dataclass(frozen=True, slots=True)
class Has:
    term: Term
    constant: Constant


@dataclass(frozen=True, slots=True)
class Holds:
    """A boolean, also in JSON, that is true."""

    term: Term


@dataclass(frozen=True, slots=True)
class Every:
    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Some:
    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Not:
    condition: Condition


Leaf = Compare | OneOf | Missing | TextIs | Matches | Has | Holds
Condition = Leaf | Every | Some | Not
Expression = Condition | Term

TERMS = (Field, Path, Constant, Length, Arithmetic)
LEAVES = (Compare, OneOf, Missing, TextIs, Matches, Has, Holds)

MAX_OPERANDS = 6  # of numbers; with `MIN_REAL` and `MAX_REAL` no result leaves the range of a double
MAX_TIMES = 3  # of times and lengths of time, so that no sum leaves PostgreSQL's intervals
MIN_REAL, MAX_REAL = 1e-30, 1e30
MAX_DIGITS = 1000

_NUMBERS = (Kind.INTEGER, Kind.REAL, Kind.DECIMAL)
_UNORDERED = frozenset({Kind.BOOLEAN, Kind.JSON})
_LIKE_JSON = frozenset({Kind.TEXT, Kind.INTEGER, Kind.BOOLEAN})
_TIMES: dict[tuple[Operator, Kind, Kind], Kind] = {
    ("+", Kind.DATETIME, Kind.INTERVAL): Kind.DATETIME,
    ("+", Kind.INTERVAL, Kind.DATETIME): Kind.DATETIME,
    ("-", Kind.DATETIME, Kind.INTERVAL): Kind.DATETIME,
    ("-", Kind.DATETIME, Kind.DATETIME): Kind.INTERVAL,
    ("+", Kind.INTERVAL, Kind.INTERVAL): Kind.INTERVAL,
    ("-", Kind.INTERVAL, Kind.INTERVAL): Kind.INTERVAL,
}


def common_kind(left: Kind, right: Kind, operator: Comparison) -> Kind | None:
    """The kind in which two values are compared; None if they are not. An integer becomes a float beside one."""
    if left is right:
        return None if left in _UNORDERED and operator != "==" else left
    if {left, right} in ({Kind.INTEGER, Kind.REAL}, {Kind.INTEGER, Kind.DECIMAL}):
        return right if left is Kind.INTEGER else left
    json = {left, right} - {Kind.JSON}
    return Kind.JSON if operator == "==" and len(json) == 1 and json <= _LIKE_JSON else None


def compared_as(leaf: Compare) -> Kind:
    """The kind in which the two sides are compared; tracing has refused all others."""
    kind = common_kind(leaf.left.kind, leaf.right.kind, "==")
    if kind is None:
        raise TypeError(leaf)
    return kind


def result_kind(operator: Operator, left: Kind, right: Kind) -> Kind | None:
    """The kind of a sum, a difference or a product; None if there is none."""
    if left in _NUMBERS and right in _NUMBERS:
        return None if {left, right} == {Kind.REAL, Kind.DECIMAL} else max(left, right, key=_NUMBERS.index)
    return _TIMES.get((operator, left, right))


def operands(term: Term) -> Iterator[Term]:
    if isinstance(term, Arithmetic):
        yield from operands(term.left)
        yield from operands(term.right)
    else:
        yield term


def terms_of(leaf: Leaf) -> tuple[Term, ...]:
    return (leaf.left, leaf.right) if isinstance(leaf, Compare) else (leaf.term,)


def leaves(condition: Condition) -> Iterator[Leaf]:
    if isinstance(condition, (Every, Some)):
        for one in condition.conditions:
            yield from leaves(one)
    elif isinstance(condition, Not):
        yield from leaves(condition.condition)
    else:
        yield condition


def reads(expression: Expression) -> Iterator[Field | Path]:
    """The places where an expression reads a column."""
    terms = (
        [expression] if isinstance(expression, TERMS) else [t for leaf in leaves(expression) for t in terms_of(leaf)]
    )
    for term in terms:
        for operand in operands(term):
            inner = operand.of if isinstance(operand, Length) else operand
            if isinstance(inner, (Field, Path)):
                yield inner


def fields(expression: Expression) -> dict[str, Kind]:
    """The columns that an expression reads, in order, with their kinds."""
    found: dict[str, Kind] = {}
    for one in reads(expression):
        found.setdefault(one.column, one.kind)
    return found
