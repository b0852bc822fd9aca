"""Expressions over one row: the trees that filters and watches are. Each node has its meaning in Python and its text.

Owns that meaning, which SQL has to share, and the kinds that compare and compute with each other. Leaves making nodes
to `tracing`, and their SQL to the store. The text of a node is close to its Python. Do not compare by it; the text for
that is `signature`.

A term has a value, or none: None, NULL, and a missing key of JSON are all alike *not there*. A condition is true or
false, and never a third thing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from functools import lru_cache
from operator import add, eq, ge, gt, le, lt, mul, sub
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform

from penstock.dataclass import dataclass
from penstock.reactive.evaluate import FORMS, Values, is_ordered, normal_value, same
from penstock.reactive.pattern import is_found
from penstock.schema.fields import Kind

Comparison = Literal["==", "<", "<=", ">", ">="]
TextTest = Literal["startswith", "endswith", "contains"]
Operator = Literal["+", "-", "*"]
Step = str | int
NodeT = TypeVar("NodeT", bound="Node")

_COMPARED: dict[str, Callable[[Any, Any], bool]] = {"==": eq, "<": lt, "<=": le, ">": gt, ">=": ge}
_TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "startswith": str.startswith,
    "endswith": str.endswith,
    "contains": str.__contains__,
}
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_COMPUTED: dict[str, Callable[[Any, Any], Any]] = {"+": add, "-": sub, "*": mul}
_EXACTLY: dict[str, Callable[[Any, Any], Any]] = {"+": _EXACT.add, "-": _EXACT.subtract, "*": _EXACT.multiply}
NODES: dict[str, type[Any]] = {}  # by their names in signatures


class Node:
    """A part of an expression."""

    __slots__ = ()
    words: ClassVar[str]
    opposite: ClassVar[str]

    def read(self, row: Values) -> Any:
        """The value of a term for a row, or whether a condition is true of it."""
        raise NotImplementedError

    def negation(self) -> str:
        """The text of the opposite of a condition."""
        return self.opposite.format(self)

    def __str__(self) -> str:
        return self.words.format(self)


@dataclass_transform(frozen_default=True)
def _declare(name: str, words: str = "", opposite: str = "~({0})") -> Callable[[type[NodeT]], type[NodeT]]:
    """Declare a node: its name in signatures, and how it reads."""

    def make(kind: type[NodeT]) -> type[NodeT]:
        NODES[name] = made = dataclass(frozen=True, slots=True)(kind)
        made.words, made.opposite = words, opposite
        return made

    return make


# ----- terms


@_declare("field", "{0.column}")
class Field(Node):
    column: str
    kind: Kind

    def read(self, row: Values) -> Any:
        return row.get(self.column)


@_declare("path")
class Path(Node):
    """The value in a JSON column under some keys and places."""

    column: str
    steps: tuple[Step, ...]
    kind: ClassVar[Kind] = Kind.JSON

    def read(self, row: Values) -> Any:
        found = row.get(self.column)
        for step in self.steps:
            if isinstance(step, str):
                found = found.get(step) if isinstance(found, dict) else None
            elif isinstance(found, list) and -len(found) <= step < len(found):
                found = found[step]
            else:
                return None
        return found

    def __str__(self) -> str:
        steps = (f".{one}" if isinstance(one, str) and one.isidentifier() else f"[{one!r}]" for one in self.steps)
        return self.column + "".join(steps)


@_declare("constant")
class Constant(Node):
    """A value that was written into the expression, in the form that `schema.fields` gives stores; JSON as text."""

    kind: Kind
    value: Any

    def read(self, _row: Values) -> Any:
        return _normal(self.kind, self.value)

    def __str__(self) -> str:
        return str(self.value) if self.kind is Kind.JSON else FORMS[self.kind].shown(self.read({}))


_normal = lru_cache(maxsize=4096)(normal_value)


@_declare("length", "{0.of}.length()")
class Length(Node):
    """Of a text, of bytes or of a JSON array; nothing else has one."""

    of: Term
    kind: ClassVar[Kind] = Kind.INTEGER

    def read(self, row: Values) -> Any:
        found = self.of.read(row)
        return len(found) if isinstance(found, (str, bytes, list)) else None


@_declare("arithmetic")
class Arithmetic(Node):
    """A sum, a difference or a product; not there if one of its operands is not."""

    operator: Operator
    left: Term
    right: Term
    kind: Kind

    def read(self, row: Values) -> Any:
        left, right = (_operand(one, self.kind, row) for one in (self.left, self.right))
        if left is None or right is None:
            return None
        return (_EXACTLY if isinstance(left, Decimal) else _COMPUTED)[self.operator](left, right)

    def __str__(self) -> str:
        left, right = (f"({one})" if isinstance(one, Arithmetic) else str(one) for one in (self.left, self.right))
        return f"{left} {self.operator} {right}"


def _operand(term: Term, kind: Kind, row: Values) -> Any:
    """A value to compute with; one so large or small that a result could leave the range of numbers is not there."""
    found = term.read(row)
    if found is None or kind not in {Kind.REAL, Kind.DECIMAL}:
        return found
    number = float(found) if kind is Kind.REAL else Decimal(found)
    return number if isinstance(term, Arithmetic) or _fits(number) else None


def _fits(number: float | Decimal) -> bool:
    if isinstance(number, float):
        return number == 0 or MIN_REAL <= abs(number) <= MAX_REAL
    exponent = number.as_tuple().exponent
    return not number or (isinstance(exponent, int) and number.adjusted() <= MAX_DIGITS and exponent >= -MAX_DIGITS)


Term = Field | Path | Constant | Length | Arithmetic


# ----- conditions on terms


@_declare("compare", "{0.left} {0.operator} {0.right}")
class Compare(Node):
    """Two values compared. Two absent values are equal; all other comparisons with an absent value are false."""

    operator: Comparison
    left: Term
    right: Term

    def read(self, row: Values) -> bool:
        kind = comparison_kind(self)
        left, right = (_as(kind, one.read(row)) for one in (self.left, self.right))
        if self.operator == "==":
            return same(left, right)
        if left is None or right is None or (kind is Kind.JSON and not is_ordered(left, right)):
            return False
        return _COMPARED[self.operator](left, right)

    def negation(self) -> str:
        return f"{self.left} != {self.right}" if self.operator == "==" else f"~({self})"


def _as(kind: Kind, value: Any) -> Any:
    """A whole number as the kind of the other number."""
    if kind not in _WIDER or not isinstance(value, int) or isinstance(value, bool):
        return value
    return float(value) if kind is Kind.REAL else Decimal(value)


@_declare("one_of")
class OneOf(Node):
    term: Term
    constants: tuple[Constant, ...]

    def read(self, row: Values) -> bool:
        found = self.term.read(row)
        return found is not None and any(same(found, one.read(row)) for one in self.constants)

    def __str__(self) -> str:
        return f"{self.term}.in_([{', '.join(map(str, self.constants))}])"


@_declare("missing", "{0.term} == None", "{0.term} != None")
class Missing(Node):
    term: Term

    def read(self, row: Values) -> bool:
        return self.term.read(row) is None


@_declare("text", "{0.term}.{0.test}({0.text!r})")
class TextIs(Node):
    test: TextTest
    term: Term
    text: str

    def read(self, row: Values) -> bool:
        found = self.term.read(row)
        return isinstance(found, str) and _TEXT_TESTS[self.test](found, self.text)


@_declare("matches", "{0.term}.matches({0.pattern!r})")
class Matches(Node):
    term: Term
    pattern: str

    def read(self, row: Values) -> bool:
        found = self.term.read(row)
        return isinstance(found, str) and is_found(self.pattern, found)


@_declare("has", "{0.term}.has({0.constant})")
class Has(Node):
    term: Term
    constant: Constant

    def read(self, row: Values) -> bool:
        found, wanted = self.term.read(row), self.constant.read(row)
        return isinstance(found, list) and any(same(one, wanted) for one in found)


@_declare("holds", "{0.term}")
class Holds(Node):
    """A boolean, also in JSON, that is true."""

    term: Term

    def read(self, row: Values) -> bool:
        return self.term.read(row) is True


# ----- conditions on conditions


@_declare("every")
class Every(Node):
    conditions: tuple[Condition, ...]

    def read(self, row: Values) -> bool:
        return all(one.read(row) for one in self.conditions)

    def __str__(self) -> str:
        return " & ".join(f"({one})" for one in self.conditions)


@_declare("some")
class Some(Node):
    conditions: tuple[Condition, ...]

    def read(self, row: Values) -> bool:
        return any(one.read(row) for one in self.conditions)

    def __str__(self) -> str:
        return " | ".join(f"({one})" for one in self.conditions)


@_declare("not")
class Not(Node):
    condition: Condition

    def read(self, row: Values) -> bool:
        return not self.condition.read(row)

    def __str__(self) -> str:
        return self.condition.negation()


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
_WIDER = frozenset({Kind.REAL, Kind.DECIMAL, Kind.JSON})  # with which whole numbers are compared
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
    """The kind in which two values are compared; None if they are not. An integer becomes a float next to one."""
    if left is right:
        return None if left in _UNORDERED and operator != "==" else left
    if {left, right} in ({Kind.INTEGER, Kind.REAL}, {Kind.INTEGER, Kind.DECIMAL}):
        return right if left is Kind.INTEGER else left
    json = {left, right} - {Kind.JSON}
    return Kind.JSON if operator == "==" and len(json) == 1 and json <= _LIKE_JSON else None


def comparison_kind(leaf: Compare) -> Kind:
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
