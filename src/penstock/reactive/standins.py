"""Stand-ins: what a filter or a watch is called with instead of a row, so that it says what it would do with one.

Owns what stands in for something true or false, and how everything is refused that would need to know a value now.
Leaves values to `operands`, and calling the functions to `tracing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from penstock.errors import DeclarationError
from penstock.reactive.describe import describe
from penstock.reactive.expression import TERMS, Condition, Every, Expression, Holds, Not, Some
from penstock.schema.fields import Kind
from penstock.schema.table import TableDefinition

METHODS = "in_, is_none, startswith, endswith, contains, matches, length and has"
_NO_BOOL = "Write & for and, | for or, ~ for not, .in_(…) for in, and two comparisons joined with & for a < b < c"
_JOINED = "With & and | each comparison needs parentheses: (a == 1) & (b > 2)"


@dataclass(frozen=True, slots=True)
class Site:
    """Where an expression is declared; errors begin with `what`, such as ``Reactive task sync: filter``."""

    what: str
    definition: TableDefinition

    def refuse(self, problem: str, fix: str = "") -> NoReturn:
        """Raise the error that says what cannot be translated, and what to write instead."""
        name = self.definition.table.__name__
        raise DeclarationError(f"{self.what} on {name}: {problem}.", fix=f"{fix}." if fix else "", table=name)


class StandIn:
    """Refuses whatever would need to know a value now."""

    __slots__ = ("_at", "_node")
    _at: Site
    _node: Any

    def __init__(self, at: Site, node: Any) -> None:
        object.__setattr__(self, "_at", at)
        object.__setattr__(self, "_node", node)

    def __repr__(self) -> str:
        return describe(self._node)

    def _no(self, doing: str, fix: str) -> NoReturn:
        self._at.refuse(f"{doing} needs the value of {self!r}, which is only known when a row is there", fix)

    def __bool__(self) -> NoReturn:  # noqa: PLE0304 - it never returns
        self._no("and, or, not, if, in or bool()", _NO_BOOL)

    def __str__(self) -> NoReturn:  # noqa: PLE0307 - it never returns
        self._no("str() or an f-string", "Compare the field itself")

    def __format__(self, _spec: str) -> NoReturn:
        self._no("an f-string or format()", "Compare the field itself")

    def __hash__(self) -> NoReturn:  # noqa: PLE0309 - it never returns
        self._no("hash(), or a place in a set or dict,", "Write .in_(…) for in")

    def __iter__(self) -> NoReturn:
        self._no("a loop, or unpacking,", "Name single elements, such as [0], or write .has(…)")

    def __contains__(self, item: object) -> NoReturn:
        self._no("in", "Write .has(…) for an element of an array, .contains(…) for a part of a text")

    def __len__(self) -> NoReturn:  # noqa: PLE0303 - it never returns
        self._no("len()", "Write .length()")

    def __call__(self, *_arguments: Any, **_named: Any) -> NoReturn:
        self._no(f"a call of {self!r}", f"The methods that can be translated are {METHODS}")

    def __setattr__(self, name: str, value: object) -> None:
        self._at.refuse(f"it sets {name}; a filter or watch changes nothing")

    def __int__(self) -> NoReturn:
        self._no("int()", "Compare the field itself")

    def __float__(self) -> NoReturn:
        self._no("float()", "Compare the field itself")

    def __index__(self) -> NoReturn:  # noqa: PLE0305 - it never returns
        self._no("range(), or a use as an index,", "Compare the field itself")

    def _not_computed(self, _other: object = None) -> NoReturn:
        self._at.refuse(
            f"{self!r} is computed with in a way that the databases do not share",
            "There are +, - and *; round elsewhere",
        )

    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _not_computed
    __neg__ = __pos__ = __abs__ = __round__ = __matmul__ = __lshift__ = __rshift__ = __xor__ = __rxor__ = _not_computed
    __rmatmul__ = __rlshift__ = __rrshift__ = _not_computed

    def __and__(self, other: object) -> Clause:
        return Clause(self._at, Every((*_parts(Every, self, self), *_parts(Every, other, self))))

    def __or__(self, other: object) -> Clause:
        return Clause(self._at, Some((*_parts(Some, self, self), *_parts(Some, other, self))))

    def __rand__(self, other: object) -> NoReturn:
        refuse(self, f"{self!r} is joined with {other!r}, which is no condition on the row", _JOINED)

    __ror__ = __rand__

    def __invert__(self) -> Clause:
        inner = condition_of(self, self._at)
        return Clause(self._at, inner.condition if isinstance(inner, Not) else Not(inner))


class Clause(StandIn):
    __slots__ = ()

    def _compared(self, _other: object) -> NoReturn:
        self._at.refuse(
            f"{self!r} is true or false already and is not compared", "Use it as it is, or with ~ before it"
        )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _compared
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _compared
    __hash__ = StandIn.__hash__

    def __getattr__(self, name: str) -> Any:
        no_dunder(name)
        self._at.refuse(f"{self!r} is true or false and has no {name}")


def node_of(one: StandIn) -> Any:
    return object.__getattribute__(one, "_node")


def refuse(one: StandIn, problem: str, fix: str = "") -> NoReturn:
    site: Site = object.__getattribute__(one, "_at")
    site.refuse(problem, fix)


def condition_of(value: object, at: Site) -> Condition:
    if not isinstance(value, StandIn):
        at.refuse(f"it returned {value!r} instead of a condition on the row", "Return a comparison of its fields")
    node: Expression = node_of(value)
    if not isinstance(node, TERMS):
        return node
    if node.kind not in {Kind.BOOLEAN, Kind.JSON}:
        at.refuse(
            f"{value!r} stands where a condition belongs, but is of kind {node.kind.value}", f"Compare it. {_JOINED}"
        )
    return Holds(node)


def no_dunder(name: str) -> None:
    """Python looks for names like this by itself, and takes their absence for an answer."""
    if name.startswith("__") and name.endswith("__"):
        raise AttributeError(name)


def _parts(of: type[Every | Some], value: object, one: StandIn) -> tuple[Condition, ...]:
    """The conditions that are joined; those joined in the same way before are not nested."""
    if not isinstance(value, StandIn):
        refuse(one, f"{one!r} is joined with {value!r}, which is no condition on the row", _JOINED)
    condition = condition_of(value, object.__getattribute__(one, "_at"))
    return condition.conditions if isinstance(condition, (Every, Some)) and isinstance(condition, of) else (condition,)
