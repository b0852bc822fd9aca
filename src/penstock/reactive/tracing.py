"""From functions of a row to expressions: each is called with a stand-in for the row, at import.

Owns calling them, and refusing functions whose outcome could change while the program runs. Leaves the operations on
a row to `standins`.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence, MutableSet
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any, TypeVar

from penstock.dataclass import dataclass
from penstock.errors import AccessDenied, DeclarationError, UsageError
from penstock.reactive.expression import TERMS, Compare, Condition, Expression, OneOf, leaves, reads
from penstock.reactive.signature import signature
from penstock.reactive.standins import Operand, Row, Site, condition_of, term_of
from penstock.schema.fields import Kind
from penstock.schema.table import TableDefinition

MAX_PARTS = 200  # SQLite takes no expressions that are nested deeper than 1,000 levels
_MUTABLE = (MutableMapping, MutableSequence, MutableSet, bytearray)

RowT = TypeVar("RowT")
RowFilter = Callable[[RowT], "bool | int"]
"""A filter as type checkers see it: a function of a row. ``~`` makes an int of a bool, so both are allowed."""
RowWatch = str | Callable[[RowT], Any]
"""One element of a watch: a field, a path such as ``"address.city"``, or a function of a row."""


@dataclass(frozen=True, slots=True)
class Watch:
    """The watched values of a row: expressions with their names."""

    names: tuple[str, ...]
    expressions: tuple[Expression, ...]

    @property
    def signature(self) -> str:
        """Text that is equal for equal watches; their order does not matter."""
        return "[" + ",".join(sorted(map(signature, self.expressions))) + "]"


def trace_filter(definition: TableDefinition, function: Callable[[Any], Any], what: str) -> Condition:
    """The condition that a function of a row records; DeclarationError names the part that cannot be translated."""
    at = Site(what, definition)
    condition: Condition = _call_twice(at, function, lambda value: condition_of(value, at))
    return condition


def trace_rule(
    definition: TableDefinition, rule: Callable[..., Any], given: tuple[Any, ...], what: str
) -> Condition | bool:
    """The condition on a row that a rule records for one caller; a bool if it allows that caller all rows or none.

    Raises:
        DeclarationError: It does what no filter can, so Python has to ask it of each row.
        AccessDenied: It compares a field with something that the caller lacks.
        UsageError: It names a field that no row has.
    """
    at = Site(what, definition, is_rule=True)
    row = _NotedRow(at)
    value = _call(at, lambda one: rule(one, *given), row)
    if isinstance(value, bool) and not row._noted:  # noqa: SLF001 - made here
        return value
    condition = condition_of(value, at)
    # Python cannot tell a stand-in of `is`, `isinstance` or a branch: the field was looked at and is not compared.
    unsaid = [*row._noted]  # noqa: SLF001 - as above
    for one in reads(condition):
        if one.column in unsaid:
            unsaid.remove(one.column)
    if unsaid:
        at.refuse(f"it looks at {', '.join(unsaid)} without comparing", "Write .is_none() for is None")
    if _parts(condition) > MAX_PARTS:
        at.refuse(f"it has more than {MAX_PARTS} parts")
    return condition


class _NotedRow(Row):
    """A stand-in for a row that notes which columns are looked at."""

    __slots__ = ("_noted",)
    _noted: list[str]

    def __init__(self, at: Site) -> None:
        super().__init__(at)
        object.__setattr__(self, "_noted", [])

    def __getattr__(self, name: str) -> Operand:
        try:
            found = super().__getattr__(name)
        except DeclarationError as error:
            if hasattr(self._at.definition.table, name):
                raise  # a method or a property, for which the rule runs in Python
            raise UsageError(error.what, fix=error.fix) from None
        self._noted.append(name)
        return found


def trace_watch(definition: TableDefinition, watch: Any, what: str) -> Watch:
    """The watch of a tuple of fields, paths and functions of a row; all columns for None."""
    at = Site(what, definition)
    if watch is None:
        watch = tuple(column.name for column in definition.columns)
    if isinstance(watch, str) or not isinstance(watch, (tuple, list)):
        at.refuse(f"{watch!r} is no tuple", 'Write a tuple, such as ("status",)')
    if not watch:
        at.refuse("it is empty, so no change would ever count", "Leave it out to watch the whole row")
    named = [_trace_watch(at, one) for one in watch]
    texts = [signature(expression) for _, expression in named]
    for place, text in enumerate(texts):
        if text in texts[:place]:
            at.refuse(f"{named[place][0]} is named twice")
    return Watch(tuple(name for name, _ in named), tuple(expression for _, expression in named))


def _trace_watch(at: Site, one: object) -> tuple[str, Expression]:
    if isinstance(one, str):
        found: Any = Row(at)
        for step, name in enumerate(one.split(".")):
            found = found[name] if step else getattr(found, name)
        return one, term_of(found)  # type: ignore[return-value]  # a path always leads to a value
    if not callable(one):
        at.refuse(f"{one!r} is neither a field's name nor a function of the row", 'Write names, such as "status"')

    def expression(value: object) -> Expression:
        term = term_of(value)
        return condition_of(value, at) if term is None else term

    found = _call_twice(at, one, expression)
    return str(found), found


def _call_twice(at: Site, function: object, expression: Callable[[object], Any]) -> Any:
    """A second call shows whether the function depends on time or chance."""
    if not callable(function):
        at.refuse(f"{function!r} is no function of a row", "Write lambda row: row.status == ...")
    _check_names(at, function)
    first, second = (expression(_call(at, function, Row(at))) for _ in range(2))
    if _parts(first) > MAX_PARTS:
        at.refuse(f"it has more than {MAX_PARTS} parts", "Keep what it says in a field of its own")
    if signature(first) != signature(second):
        at.refuse(
            f"called twice it said {first!s} and {second!s}",
            "It is translated once, when the program starts, so it cannot depend on the time or on chance",
        )
    return first


def _parts(expression: Expression) -> int:
    """The number of conditions; each constant for JSON is one."""
    if isinstance(expression, (*TERMS, Compare)):
        return 1
    return sum(
        len(one.constants) if isinstance(one, OneOf) and one.term.kind is Kind.JSON else 1 for one in leaves(expression)
    )


def _call(at: Site, function: Callable[[Any], Any], row: Row) -> Any:
    try:
        value = function(row)
    except (UsageError, AccessDenied):
        raise
    except Exception as error:
        raise DeclarationError(
            f"{at.what} on {at.definition.table.__name__}: it raised {type(error).__name__}: {error}.",
            fix="It gets a stand-in for the row once, and may only compare and compute with the fields.",
        ) from error
    if inspect.iscoroutine(value):
        value.close()
        at.refuse("it is an async function", "Write a plain function of the row")
    return value


def _check_names(at: Site, function: object) -> None:
    """Refuse mutable values from outside the function, as nobody would see them change."""
    if not isinstance(function, FunctionType):
        return
    outside = {name: function.__globals__.get(name) for name in _globals(function.__code__)}
    outside.update(_nonlocals(function))
    defaults = inspect.signature(function).parameters.values()
    outside.update({one.name: one.default for one in defaults if one.default is not one.empty})
    for name, value in outside.items():
        if isinstance(value, _MUTABLE):
            at.refuse(
                f"it uses {name}, a {type(value).__name__}, which may change later without effect here",
                f"Keep what it needs of {name} in a tuple, a frozenset or a plain value",
            )


def _globals(code: CodeType) -> Iterator[str]:
    """Global names that a function reads, also within inner functions."""
    yield from (one.argval for one in dis.get_instructions(code) if one.opname in {"LOAD_GLOBAL", "LOAD_NAME"})
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals(constant)


def _nonlocals(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it holds nothing yet
            yield name, cell.cell_contents
