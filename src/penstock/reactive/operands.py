"""Stand-ins for the row and for its values: which operators and methods there are, and what they say.

Owns the checks of what stands beside a field. Leaves what is refused of all stand-ins to `standins`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any, NoReturn

from penstock.errors import ValueInvalid
from penstock.reactive.constants import ConstantInvalid, constant_for, plain_constant
from penstock.reactive.describe import describe
from penstock.reactive.expression import (
    MAX_OPERANDS,
    MAX_TIMES,
    Arithmetic,
    Compare,
    Comparison,
    Condition,
    Constant,
    Field,
    Has,
    Length,
    Matches,
    Missing,
    Not,
    OneOf,
    Operator,
    Path,
    Some,
    Term,
    TextIs,
    TextTest,
    common_kind,
    operands,
    result_kind,
)
from penstock.reactive.pattern import PatternInvalid, common_pattern
from penstock.reactive.shapes import StepInvalid, step_into
from penstock.reactive.standins import METHODS, Clause, Site, StandIn, no_dunder, node_of
from penstock.schema.fields import Column, Kind
from penstock.values import check_text

_WITH_LENGTH = (Kind.TEXT, Kind.BYTES, Kind.JSON)


class Operand(StandIn):
    """Stands in for a value; `shape` is the annotation of JSON, as far as it is known."""

    __slots__ = ("_column", "_shape")
    _column: Column | None
    _shape: Any

    def __init__(self, at: Site, node: Term, column: Column | None = None, shape: Any = None) -> None:
        super().__init__(at, node)
        object.__setattr__(self, "_column", column)
        object.__setattr__(self, "_shape", shape)

    # ----- what it may be asked

    def in_(self, options: Iterable[Any]) -> Clause:
        if isinstance(options, (str, bytes, StandIn)) or not isinstance(options, Iterable):
            self._at.refuse(f"{self!r}.in_() takes a list or tuple of values, not {options!r}")
        given = (
            sorted(options, key=repr) if isinstance(options, AbstractSet) else list(options)
        )  # sets have another order each time
        if not given:
            self._at.refuse(f"{self!r}.in_() has no values, so it is never true")
        if any(isinstance(one, StandIn) for one in given):
            self._at.refuse(f"{self!r}.in_() takes constants", "Compare with other fields by ==, joined with |")
        constants = tuple(self._constant(one) for one in given if one is not None)
        parts: list[Condition] = [OneOf(self._node, constants)] if constants else []
        if len(constants) < len(given):
            parts.append(Missing(self._node))
        return Clause(self._at, parts[0] if len(parts) == 1 else Some(tuple(parts)))

    def is_none(self) -> Clause:
        return Clause(self._at, Missing(self._node))

    def startswith(self, text: str) -> Clause:
        return self._text_is("startswith", text)

    def endswith(self, text: str) -> Clause:
        return self._text_is("endswith", text)

    def contains(self, text: str) -> Clause:
        return self._text_is("contains", text)

    def matches(self, pattern: str) -> Clause:
        self._check_text("matches", pattern)
        try:
            common_pattern(pattern)
        except PatternInvalid as error:
            self._at.refuse(f"{self!r}.matches(): {str(error).rstrip('.')}", "docs/filters.md lists what patterns have")
        return Clause(self._at, Matches(self._node, str.__str__(pattern)))

    def length(self) -> Operand:
        if self._node.kind not in _WITH_LENGTH:
            self._at.refuse(f"{self!r} has no length, as it is of kind {self._node.kind.value}")
        return Operand(self._at, Length(self._node))

    def has(self, value: Any) -> Clause:
        if self._node.kind is not Kind.JSON:
            self._at.refuse(f"{self!r} is no JSON and has no elements", "Write .contains(…) for a part of a text")
        constant = self._constant(value)
        if constant.value[0] in "[{":
            self._at.refuse(f"{self!r}.has() takes a str, a number, True, False or None, not {value!r}")
        return Clause(self._at, Has(self._node, constant))

    # ----- comparisons

    def __eq__(self, other: object) -> Any:
        return Clause(self._at, self._compare("==", other))

    def __ne__(self, other: object) -> Any:
        return Clause(self._at, Not(self._compare("==", other)))

    def __lt__(self, other: object) -> Clause:
        return Clause(self._at, self._compare("<", other))

    def __le__(self, other: object) -> Clause:
        return Clause(self._at, self._compare("<=", other))

    def __gt__(self, other: object) -> Clause:
        return Clause(self._at, self._compare(">", other))

    def __ge__(self, other: object) -> Clause:
        return Clause(self._at, self._compare(">=", other))

    __hash__ = StandIn.__hash__

    # ----- arithmetic

    def __add__(self, other: object) -> Operand:
        return self._computed("+", self, other)

    def __radd__(self, other: object) -> Operand:
        return self._computed("+", other, self)

    def __sub__(self, other: object) -> Operand:
        return self._computed("-", self, other)

    def __rsub__(self, other: object) -> Operand:
        return self._computed("-", other, self)

    def __mul__(self, other: object) -> Operand:
        return self._computed("*", self, other)

    def __rmul__(self, other: object) -> Operand:
        return self._computed("*", other, self)

    # ----- into JSON

    def __getattr__(self, name: str) -> Operand:
        no_dunder(name)
        if self._node.kind is not Kind.JSON:
            self._at.refuse(f"{self!r} has no {name} that can be translated", f"There are {METHODS}")
        return self[name]

    def __getitem__(self, step: Any) -> Operand:
        node = self._node
        if not isinstance(node, (Field, Path)) or node.kind is not Kind.JSON:
            self._at.refuse(f"{self!r} is no JSON, so there is no [{step!r}] in it", "Write .startswith(…) for texts")
        try:
            key, shape = step_into(self._shape, step)
        except StepInvalid as error:
            self._at.refuse(f"{self!r}: {str(error).rstrip('.')}")
        steps = (*(node.steps if isinstance(node, Path) else ()), key)
        return Operand(self._at, Path(node.column, steps), None, shape)

    # ----- parts

    def _compare(self, operator: Comparison, other: object) -> Condition:
        if isinstance(other, (Clause, Row)):
            self._at.refuse(f"{self!r} is compared with {other!r}", "Compare with a value or a field")
        if isinstance(other, Operand):
            left, right = self._node.kind, node_of(other).kind
            if common_kind(left, right, operator) is None:
                self._at.refuse(f"{self!r} {operator} {other!r} compares kind {left.value} with kind {right.value}")
            return Compare(operator, self._node, node_of(other))
        if other is None:
            if operator != "==":
                self._at.refuse(f"{self!r} {operator} None is never true", "Write == None or is_none()")
            return Missing(self._node)
        constant = self._constant(other)
        if operator != "==":
            self._check_ordered(operator, constant)
        return Compare(operator, self._node, constant)

    def _check_ordered(self, operator: str, constant: Constant) -> None:
        unordered = constant.kind is Kind.BOOLEAN or (constant.kind is Kind.JSON and constant.value[0] in "tfn[{")
        if unordered:
            self._at.refuse(f"{self!r} {operator} {describe(constant)}: these have no order", "Compare by == or !=")

    def _constant(self, value: Any) -> Constant:
        try:
            return constant_for(self._node.kind, self._column, value)
        except ConstantInvalid as error:
            self._at.refuse(f"{self!r} is compared with something else: {str(error).rstrip('.')}")

    def _computed(self, operator: Operator, left: object, right: object) -> Operand:
        try:
            terms = [node_of(one) if isinstance(one, Operand) else plain_constant(one) for one in (left, right)]
        except ConstantInvalid as error:
            self._at.refuse(f"{self!r} {operator}: {error}")
        kind = result_kind(operator, terms[0].kind, terms[1].kind)
        if kind is None:
            names = f"kind {terms[0].kind.value} and kind {terms[1].kind.value}"
            self._at.refuse(f"there is no {operator} of {names}", "Keep the result in a field of its own")
        node = Arithmetic(operator, terms[0], terms[1], kind)
        most = MAX_TIMES if kind in {Kind.DATETIME, Kind.INTERVAL} else MAX_OPERANDS
        if len(list(operands(node))) > most:
            self._at.refuse(f"{describe(node)} has more than {most} operands", "Keep a part in a field of its own")
        return Operand(self._at, node)

    def _text_is(self, test: TextTest, text: str) -> Clause:
        self._check_text(test, text)
        return Clause(self._at, TextIs(test, self._node, str.__str__(text)))

    def _check_text(self, method: str, text: object) -> None:
        if self._node.kind not in {Kind.TEXT, Kind.JSON}:
            fix = "Write .has(…) for elements" if self._node.kind is Kind.JSON else "Compare it"
            self._at.refuse(f"{self!r} is no text, so there is no {method}()", fix)
        if not isinstance(text, str):
            self._at.refuse(f"{self!r}.{method}() takes a text, not {text!r}", "Other fields cannot be searched for")
        try:
            check_text(text, "It")
        except ValueInvalid as error:
            self._at.refuse(f"{self!r}.{method}({text!r}): {str(error).rstrip('.')}")


class Row:
    """Stands in for the row."""

    __slots__ = ("_at",)
    _at: Site

    def __init__(self, at: Site) -> None:
        object.__setattr__(self, "_at", at)

    def __repr__(self) -> str:
        return f"the row of {self._at.definition.table.__name__}"

    def __getattr__(self, name: str) -> Operand:
        no_dunder(name)
        definition = self._at.definition
        if name not in definition.positions:
            near = difflib.get_close_matches(name, definition.positions, 1)
            hint = f"There is {near[0]}" if near else f"Its columns are {', '.join(definition.positions)}"
            self._at.refuse(f"the table has no column {name!r}", hint)
        column: Column = definition.column(name)
        shape = None if column.info is None else column.info.annotation
        return Operand(self._at, Field(name, column.kind), column, shape)

    def __setattr__(self, name: str, value: object) -> None:
        self._at.refuse(f"it sets {name}; a filter or watch changes nothing")

    def _misused(self, *_others: object) -> NoReturn:
        self._at.refuse("the row as a whole is used as a value", "Name its fields, such as row.status")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __and__ = __or__ = __rand__ = __ror__ = _misused
    __bool__ = __hash__ = __iter__ = __len__ = __contains__ = __getitem__ = __call__ = __invert__ = _misused
    __str__ = __format__ = _misused


def term_of(value: object) -> Term | None:
    """The term that a stand-in keeps; None if it is not one for a value."""
    return node_of(value) if isinstance(value, Operand) else None
