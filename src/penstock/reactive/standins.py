"""Stand-ins: the arguments of a filter or a watch in place of a row. They record its comparisons.

Owns the stand-ins for values and conditions, the words that take these, and the refusal of everything that would need a
value now. Leaves calling the functions to `tracing`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NoReturn, TypeVar, cast

from penstock.dataclass import dataclass
from penstock.errors import AccessDenied, DeclarationError, UsageError, ValueInvalid
from penstock.reactive import expression as ex
from penstock.reactive.constants import ConstantInvalid, constant_for, plain_constant
from penstock.reactive.jsonsteps import StepInvalid, step_into
from penstock.reactive.pattern import PatternInvalid, common_pattern
from penstock.schema.fields import Column, Kind
from penstock.schema.table import TableDefinition
from penstock.values import check_text

# The methods of a stand-in for a value, each with how many arguments it takes.
METHODS = {"in_": 1, "is_none": 0, "startswith": 1, "endswith": 1, "contains": 1, "matches": 1, "length": 0, "has": 1}
LISTED = f"{', '.join([*METHODS][:-1])} and has"
T = TypeVar("T")

_NO_BOOL = "Write & for and, | for or, ~ for not, .in_(…) for in, and two comparisons joined with & for a < b < c"
_JOINED = "With & and | each comparison needs parentheses: (a == 1) & (b > 2)"


@dataclass(frozen=True, slots=True)
class Site:
    """Where an expression is declared; errors begin with `what`, such as ``Reactive task sync: filter``."""

    what: str
    definition: TableDefinition
    is_rule: bool = False  # traced for one caller, so a list of values may be empty

    def refuse(self, problem: str, fix: str = "") -> NoReturn:
        """Raise the error for code that cannot be translated, with the code to write instead."""
        name = self.definition.table.__name__
        raise DeclarationError(f"{self.what} on {name}: {problem}.", fix=f"{fix}." if fix else "", table=name)

    def check_known(self, compared: object) -> None:
        """Refuse None in a rule: a caller without a claim is not the owner of rows without a value."""
        if self.is_rule:
            name = self.definition.table.__name__
            raise AccessDenied(
                f"{self.what} on {name}: it compares {compared!r} with None. The caller may lack a claim; write "
                ".is_none() for rows without a value."
            )


def _needs_value(doing: str, fix: str) -> Any:
    """A method that would need to know a value now."""

    def method(self: StandIn, *_given: object, **_named: object) -> NoReturn:
        self._no(doing, fix)

    return method


class StandIn:
    """Refuses every operation that would need a value now."""

    __slots__ = ("_at", "_node")
    _at: Site
    _node: Any

    def __init__(self, at: Site, node: Any) -> None:
        object.__setattr__(self, "_at", at)
        object.__setattr__(self, "_node", node)

    def __repr__(self) -> str:
        return str(self._node)

    def _no(self, doing: str, fix: str) -> NoReturn:
        self._at.refuse(f"{doing} needs the value of {self!r}, which is only known when a row is there", fix)

    __bool__ = _needs_value("and, or, not, if, in or bool()", _NO_BOOL)
    __str__ = _needs_value("str() or an f-string", "Compare the field itself")
    __format__ = _needs_value("an f-string or format()", "Compare the field itself")
    __hash__ = _needs_value("hash(), or a place in a set or dict,", "Write .in_(…) for in")
    __iter__ = _needs_value("a loop, or unpacking,", "Name single elements, such as [0], or write .has(…)")
    __contains__ = _needs_value("in", "Write .has(…) for an element of an array, .contains(…) for a part of a text")
    __len__ = _needs_value("len()", "Write .length()")
    __int__ = _needs_value("int()", "Compare the field itself")
    __float__ = _needs_value("float()", "Compare the field itself")
    __index__ = _needs_value("range(), or a use as an index,", "Compare the field itself")

    def __call__(self, *_arguments: Any, **_named: Any) -> NoReturn:
        self._no(f"a call of {self!r}", f"The methods that can be translated are {LISTED}")

    def __setattr__(self, name: str, value: object) -> None:
        self._at.refuse(f"it sets {name}; a filter or watch changes nothing")

    def _not_computed(self, _other: object = None) -> NoReturn:
        self._at.refuse(
            f"{self!r} is computed with in a way that the databases do not share",
            "There are +, - and *; round elsewhere",
        )

    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _not_computed
    __neg__ = __pos__ = __abs__ = __round__ = __matmul__ = __lshift__ = __rshift__ = __xor__ = __rxor__ = _not_computed
    __rmatmul__ = __rlshift__ = __rrshift__ = _not_computed

    def __and__(self, other: object) -> Clause:
        return self._join(ex.Every, other)

    def __or__(self, other: object) -> Clause:
        return self._join(ex.Some, other)

    def __rand__(self, other: object) -> NoReturn:
        self._at.refuse(f"{self!r} is joined with {other!r}, which is no condition on the row", _JOINED)

    __ror__ = __rand__

    def _join(self, by: type[ex.Every | ex.Some], other: object) -> Clause:
        """Conditions that were joined in the same way before are not nested."""
        if not isinstance(other, StandIn):
            self.__rand__(other)
        parts: list[ex.Condition] = []
        for one in (self, other):
            condition = condition_of(one, self._at)
            parts += condition.conditions if isinstance(condition, by) else (condition,)
        return Clause(self._at, by(tuple(parts)))

    def __invert__(self) -> Clause:
        inner = condition_of(self, self._at)
        return Clause(self._at, inner.condition if isinstance(inner, ex.Not) else ex.Not(inner))


class Clause(StandIn):
    __slots__ = ()

    def _refuse_comparison(self, _other: object) -> NoReturn:
        self._at.refuse(
            f"{self!r} is true or false already and is not compared", "Use it as it is, or with ~ before it"
        )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse_comparison
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse_comparison
    __hash__ = StandIn.__hash__

    def __getattr__(self, name: str) -> Any:
        no_dunder(name)
        self._at.refuse(f"{self!r} is true or false and has no {name}")


def node_of(one: StandIn) -> Any:
    return object.__getattribute__(one, "_node")


def condition_of(value: object, at: Site) -> ex.Condition:
    if not isinstance(value, StandIn):
        at.refuse(f"it returned {value!r} instead of a condition on the row", "Return a comparison of its fields")
    node: ex.Expression = node_of(value)
    if not isinstance(node, ex.TERMS):
        return node
    if node.kind not in {Kind.BOOLEAN, Kind.JSON}:
        at.refuse(
            f"{value!r} stands where a condition belongs, but is of kind {node.kind.value}", f"Compare it. {_JOINED}"
        )
    return ex.Holds(node)


def no_dunder(name: str) -> None:
    """Python looks for names like this by itself, and takes their absence for an answer."""
    if name.startswith("__") and name.endswith("__"):
        raise AttributeError(name)


def _compares(operator: ex.Comparison) -> Any:
    return lambda one, other: Clause(one._at, one._compare(operator, other))  # noqa: SLF001 - a method


def _asks_text(test: ex.TextTest) -> Any:
    return lambda one, text: Clause(one._at, ex.TextIs(test, one._node, one._check_text(test, text)))  # noqa: SLF001 - as above


def _computes(operator: ex.Operator, *, swapped: bool = False) -> Any:
    def method(one: Operand, other: object) -> Operand:
        return one._compute(operator, *((other, one) if swapped else (one, other)))  # noqa: SLF001 - a method

    return method


_WITH_LENGTH = (Kind.TEXT, Kind.BYTES, Kind.JSON)


class Operand(StandIn):
    """Stands in for a value; `shape` is the annotation of JSON, as far as it is known."""

    __slots__ = ("_column", "_shape")
    _column: Column | None
    _shape: Any

    def __init__(self, at: Site, node: ex.Term, column: Column | None = None, shape: Any = None) -> None:
        super().__init__(at, node)
        object.__setattr__(self, "_column", column)
        object.__setattr__(self, "_shape", shape)

    # ----- questions

    def in_(self, options: Iterable[Any]) -> Clause:
        if isinstance(options, (str, bytes, StandIn)) or not isinstance(options, Iterable):
            self._at.refuse(f"{self!r}.in_() takes a list or tuple of values, not {options!r}")
        given = (
            sorted(options, key=repr) if isinstance(options, AbstractSet) else list(options)
        )  # sets have another order each time
        if not given and not self._at.is_rule:
            self._at.refuse(f"{self!r}.in_() has no values, so it is never true")
        if any(isinstance(one, StandIn) for one in given):
            self._at.refuse(f"{self!r}.in_() takes constants", "Compare with other fields by ==, joined with |")
        constants = tuple(self._constant(one) for one in given if one is not None)
        parts: list[ex.Condition] = [ex.OneOf(self._node, constants)] if constants or not given else []
        if len(constants) < len(given):
            self._at.check_known(self)
            parts.append(ex.Missing(self._node))
        return Clause(self._at, parts[0] if len(parts) == 1 else ex.Some(tuple(parts)))

    def is_none(self) -> Clause:
        return Clause(self._at, ex.Missing(self._node))

    startswith, endswith, contains = _asks_text("startswith"), _asks_text("endswith"), _asks_text("contains")

    def matches(self, pattern: str) -> Clause:
        text = self._check_text("matches", pattern)
        try:
            common_pattern(pattern)
        except PatternInvalid as error:
            self._at.refuse(f"{self!r}.matches(): {str(error).rstrip('.')}", "docs/filters.md lists what patterns have")
        return Clause(self._at, ex.Matches(self._node, text))

    def length(self) -> Operand:
        if self._node.kind not in _WITH_LENGTH:
            self._at.refuse(f"{self!r} has no length, as it is of kind {self._node.kind.value}")
        return Operand(self._at, ex.Length(self._node))

    def has(self, value: Any) -> Clause:
        if self._node.kind is not Kind.JSON:
            self._at.refuse(f"{self!r} is no JSON and has no elements", "Write .contains(…) for a part of a text")
        constant = self._constant(value)
        if constant.value[0] in "[{":
            self._at.refuse(f"{self!r}.has() takes a str, a number, True, False or None, not {value!r}")
        return Clause(self._at, ex.Has(self._node, constant))

    # ----- comparisons

    __eq__ = _compares("==")

    def __ne__(self, other: object) -> Any:
        return Clause(self._at, ex.Not(self._compare("==", other)))

    __lt__, __le__, __gt__, __ge__ = _compares("<"), _compares("<="), _compares(">"), _compares(">=")
    __hash__ = StandIn.__hash__

    # ----- arithmetic

    __add__, __radd__ = _computes("+"), _computes("+", swapped=True)
    __sub__, __rsub__ = _computes("-"), _computes("-", swapped=True)
    __mul__, __rmul__ = _computes("*"), _computes("*", swapped=True)

    # ----- into JSON

    def __getattr__(self, name: str) -> Operand:
        no_dunder(name)
        if self._node.kind is not Kind.JSON:
            self._at.refuse(f"{self!r} has no {name} that can be translated", f"There are {LISTED}")
        return self[name]

    def __getitem__(self, step: Any) -> Operand:
        node = self._node
        if not isinstance(node, (ex.Field, ex.Path)) or node.kind is not Kind.JSON:
            self._at.refuse(f"{self!r} is no JSON, so there is no [{step!r}] in it", "Write .startswith(…) for texts")
        try:
            key, shape = step_into(self._shape, step)
        except StepInvalid as error:
            self._at.refuse(f"{self!r}: {error}")
        steps = (*(node.steps if isinstance(node, ex.Path) else ()), key)
        return Operand(self._at, ex.Path(node.column, steps), None, shape)

    # ----- parts

    def _compare(self, operator: ex.Comparison, other: object) -> ex.Condition:
        if isinstance(other, (Clause, Row)):
            self._at.refuse(f"{self!r} is compared with {other!r}", "Compare with a value or a field")
        if isinstance(other, Operand):
            self._check_readable()
            left, right = self._node.kind, node_of(other).kind
            if ex.common_kind(left, right, operator) is None:
                self._at.refuse(f"{self!r} {operator} {other!r} compares kind {left.value} with kind {right.value}")
            return ex.Compare(operator, self._node, node_of(other))
        if other is None:
            self._at.check_known(self)
            if operator != "==":
                self._at.refuse(f"{self!r} {operator} None is never true", "Write == None or is_none()")
            return ex.Missing(self._node)
        constant = self._constant(other)
        if operator != "==":
            self._check_ordered(operator, constant)
        return ex.Compare(operator, self._node, constant)

    def _check_ordered(self, operator: str, constant: ex.Constant) -> None:
        unordered = constant.kind is Kind.BOOLEAN or (constant.kind is Kind.JSON and constant.value[0] in "tfn[{")
        if unordered:
            self._at.refuse(f"{self!r} {operator} {constant!s}: these have no order", "Compare by == or !=")

    def _check_readable(self) -> None:
        if self._node.kind is Kind.ENCRYPTED:
            fix = "Compare another field, such as an HMAC of the value; .is_none() can be asked"
            self._at.refuse(f"{self!r} is encrypted, so the database cannot compare it", fix)

    def _constant(self, value: Any) -> ex.Constant:
        self._check_readable()
        try:
            return constant_for(self._node.kind, self._column, value)
        except ConstantInvalid as error:
            self._at.refuse(f"{self!r} is compared with something else: {str(error).rstrip('.')}")

    def _compute(self, operator: ex.Operator, left: object, right: object) -> Operand:
        self._check_readable()
        try:
            terms = [node_of(one) if isinstance(one, Operand) else plain_constant(one) for one in (left, right)]
        except ConstantInvalid as error:
            self._at.refuse(f"{self!r} {operator}: {error}")
        kind = ex.result_kind(operator, terms[0].kind, terms[1].kind)
        if kind is None:
            names = f"kind {terms[0].kind.value} and kind {terms[1].kind.value}"
            self._at.refuse(f"there is no {operator} of {names}", "Keep the result in a field of its own")
        node = ex.Arithmetic(operator, terms[0], terms[1], kind)
        most = ex.MAX_TIMES if kind in {Kind.DATETIME, Kind.INTERVAL} else ex.MAX_OPERANDS
        if len(list(ex.operands(node))) > most:
            self._at.refuse(f"{node!s} has more than {most} operands", "Keep a part in a field of its own")
        return Operand(self._at, node)

    def _check_text(self, method: str, text: object) -> str:
        self._check_readable()
        if self._node.kind not in {Kind.TEXT, Kind.JSON}:
            fix = "Write .has(…) for elements" if self._node.kind is Kind.JSON else "Compare it"
            self._at.refuse(f"{self!r} is no text, so there is no {method}()", fix)
        if not isinstance(text, str):
            self._at.refuse(f"{self!r}.{method}() takes a text, not {text!r}", "Other fields cannot be searched for")
        try:
            check_text(text, "It")
        except ValueInvalid as error:
            self._at.refuse(f"{self!r}.{method}({text!r}): {str(error).rstrip('.')}")
        return str.__str__(text)


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
        return Operand(self._at, ex.Field(name, column.kind), column, shape)

    def __setattr__(self, name: str, value: object) -> None:
        self._at.refuse(f"it sets {name}; a filter or watch changes nothing")

    def _refuse_use(self, *_others: object) -> NoReturn:
        self._at.refuse("the row as a whole is used as a value", "Name its fields, such as row.status")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __and__ = __or__ = __rand__ = __ror__ = _refuse_use
    __bool__ = __hash__ = __iter__ = __len__ = __contains__ = __getitem__ = __call__ = __invert__ = _refuse_use
    __str__ = __format__ = _refuse_use


def term_of(value: object) -> ex.Term | None:
    """The term that a stand-in keeps; None if it is not one for a value."""
    return node_of(value) if isinstance(value, Operand) else None


# ----- words for what Python's own operators cannot say, typed as if they were given values, for type checkers' sake


def in_(value: T, options: Iterable[T]) -> bool:
    """In a filter: whether a field equals one of some values."""
    return cast("bool", _operand("in_", value).in_(options))


def is_none(value: object) -> bool:
    """In a filter: whether a field is None."""
    return cast("bool", _operand("is_none", value).is_none())


def known(value: T | None) -> T:
    """In a filter: a field that may be None, for type checkers one that is not. Comparisons with None are false."""
    return cast("T", _operand("known", value))


def length(value: str | bytes | Sequence[Any] | None) -> int:
    """In a filter: how many characters, bytes or elements a field has."""
    return cast("int", _operand("length", value).length())


def contains(value: str | None, text: str) -> bool:
    """In a filter: whether a field is a text that contains another one."""
    return cast("bool", _operand("contains", value).contains(text))


def matches(value: str | None, pattern: str) -> bool:
    """In a filter: whether a field is a text in which a pattern is found."""
    return cast("bool", _operand("matches", value).matches(pattern))


def has(value: Iterable[T] | None, element: T) -> bool:
    """In a filter: whether a field is a JSON array that has an element."""
    return cast("bool", _operand("has", value).has(element))


def _operand(word: str, value: object) -> Operand:
    if not isinstance(value, Operand):
        raise UsageError(
            f"{word}() takes a field of the row that a filter is called with, not {value!r}.",
            fix="Outside of filters, use Python's own operators.",
        )
    return value
