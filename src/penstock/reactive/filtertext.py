"""Filters written as text, as a command line and a request give them: ``status == "paid" and amount > 100``.

Owns reading the text, and the allowed part of Python's grammar. Each part is applied to the stand-in that functions of
a row are called with. So a text means the same as a function with these words, and is refused where that is. No text is
ever run: its tree is walked, and unknown nodes are refused.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import reduce
from typing import Any, ClassVar, NoReturn
from uuid import UUID

from penstock.errors import DeclarationError, ValueInvalid
from penstock.reactive.standins import LISTED, METHODS, Operand, Row, Site, StandIn
from penstock.reactive.tracing import trace_filter
from penstock.schema.fields import Column
from penstock.schema.table import TableDefinition

MAX_LENGTH = 2_000
MAX_DEPTH = 50

_WORDS = "in_", "is_none", "known", "length", "contains", "matches", "has"
_MAKERS: dict[str, Callable[..., Any]] = {
    "datetime.fromisoformat": datetime.fromisoformat,
    "date.fromisoformat": date.fromisoformat,
    "timedelta": timedelta,
    "Decimal": Decimal,
    "UUID": UUID,
}
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.eq,
    ast.IsNot: operator.ne,
}
_COMPUTED: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_JOINED: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.And: operator.and_,
    ast.BitAnd: operator.and_,
    ast.Or: operator.or_,
    ast.BitOr: operator.or_,
}
_NUMBERS = (int, float, Decimal, datetime, timedelta)
_CONSTANTS = (str, bytes, int, float, bool, type(None))
_POSSIBLE = (
    "There are names of fields, constants, comparisons, in, is None, and, or, not, +, - and *, and the words "
    f"{', '.join(_WORDS)}"
)
_MAKING = f"Values that are no constants of Python are made by {', '.join(_MAKERS)}"
_SHOWN = 60


class TextFilter:
    """A function of a row with the meaning of a text; ValueInvalid names the part that cannot be read."""

    __slots__ = ("_at", "_tree", "text")

    def __init__(self, definition: TableDefinition, text: str) -> None:
        self._at = Site("rows", definition)
        self.text = text
        self._tree = _parse(text)
        try:
            trace_filter(definition, self, "rows")
        except DeclarationError as error:
            raise ValueInvalid(error.what, fix=error.fix) from error

    def __call__(self, row: Any) -> Any:
        return _Reading(self._at, self.text, row).value(self._tree, 0)

    def __repr__(self) -> str:
        return f"TextFilter({self.text!r})"


def _parse(text: str) -> ast.expr:
    if not text.strip() or len(text) > MAX_LENGTH:
        raise ValueInvalid(
            f"The filter has {len(text):,} characters.", fix=f"Write a condition on the row, of up to {MAX_LENGTH:,}."
        )
    if "\0" in text:
        raise ValueInvalid("The filter holds a zero byte.", fix="Leave it out.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # patterns are full of backslashes
            return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        where = f"at character {error.offset}" if error.offset else "at its end"
        raise ValueInvalid(f"The filter cannot be read: {error.msg}, {where}.", fix=f"{_POSSIBLE}.") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueInvalid("The filter cannot be read: it is too deep, or no text.", fix=f"{_POSSIBLE}.") from error


class _Reading:
    def __init__(self, at: Site, text: str, row: Row) -> None:
        self._at = at
        self._text = text.strip()
        self._row = row

    def value(self, node: ast.expr, depth: int) -> Any:
        """The value of a part: a stand-in, or a constant."""
        if depth > MAX_DEPTH:
            self._at.refuse(f"it is nested deeper than {MAX_DEPTH} levels", "Write it with fewer parentheses")
        read = self._PARTS.get(type(node))
        if read is None:
            self._no(node, "cannot be written here", _POSSIBLE)
        return read(self, node, depth + 1)

    # ----- fields

    def _field(self, node: ast.Name, _depth: int) -> Operand:
        if node.id.startswith("__"):
            self._no(node, "is no field", _POSSIBLE)
        return Row.__getattr__(self._row, node.id)

    def _inner(self, node: ast.Attribute | ast.Subscript, depth: int) -> Operand:
        of = self._operand(node.value, depth)
        if isinstance(node, ast.Attribute):
            if node.attr.startswith("_") or node.attr in METHODS:
                self._no(node, "is no field", f'Write a key that is called so in brackets: ["{node.attr}"]')
            return Operand.__getattr__(of, node.attr)
        step = self.value(node.slice, depth)
        if type(step) not in {str, int}:
            self._no(node, "has no key or place in its brackets", 'Write ["key"], or [0]')
        return of[step]

    def _operand(self, node: ast.expr, depth: int) -> Operand:
        value = self.value(node, depth)
        if not isinstance(value, Operand):
            self._no(node, "stands where a field belongs", _POSSIBLE)
        return value

    # ----- conditions

    def _join(self, node: ast.BoolOp | ast.BinOp, depth: int) -> Any:
        parts = node.values if isinstance(node, ast.BoolOp) else _spine(node)
        return reduce(_JOINED[type(node.op)], [self._stand_in(part, depth) for part in parts])

    def _stand_in(self, node: ast.expr, depth: int) -> Any:
        value = self.value(node, depth)
        if not isinstance(value, StandIn):
            self._no(node, "stands where a condition on the row belongs", "With & and | each needs parentheses")
        return value

    def _compare(self, node: ast.Compare, depth: int) -> Any:
        left, parts = self.value(node.left, depth), []
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node, depth)
            parts.append(self._pair(node, op, left, right))
            left = right
        return reduce(operator.and_, parts)

    def _pair(self, node: ast.expr, op: ast.cmpop, left: Any, right: Any) -> Any:
        if not isinstance(left, StandIn) and not isinstance(right, StandIn):
            self._no(node, "compares no field", _POSSIBLE)
        if isinstance(op, ast.In | ast.NotIn):
            found = self._among(node, left, right)
            return ~found if isinstance(op, ast.NotIn) else found
        if isinstance(op, ast.Is | ast.IsNot) and right is not None:
            self._no(node, "asks for more than `is` can tell", "There are is None and is not None")
        return _COMPARED[type(op)](self._fitting(right, left), self._fitting(left, right))

    def _among(self, node: ast.expr, left: Any, right: Any) -> Any:
        if not isinstance(left, Operand) or isinstance(right, StandIn):
            self._no(
                node,
                "is not a field in some values",
                "Write has(…) for an element of an array, contains(…) for a part of a text",
            )
        return left.in_(self._options(left, right))

    def _options(self, of: Operand, options: Any) -> Any:
        if not isinstance(options, list | tuple | frozenset):
            return options
        in_order = sorted(options, key=repr) if isinstance(options, frozenset) else options
        return [self._fitting(of, one) for one in in_order]

    def _fitting(self, beside: Any, value: Any) -> Any:
        """A constant next to a field. The value of an Enum's member stands for the member."""
        column: Column | None = object.__getattribute__(beside, "_column") if isinstance(beside, Operand) else None
        kind = None if column is None else column.decode
        if not (isinstance(kind, type) and issubclass(kind, Enum)) or value is None or isinstance(value, StandIn):
            return value
        try:
            return kind(value)
        except ValueError:
            values = ", ".join(repr(one.value) for one in kind)
            return self._at.refuse(f"{value!r} is no value of {beside!r}", f"Compare with {values}")

    # ----- values

    def _literal(self, node: ast.Constant, _depth: int) -> Any:
        if not isinstance(node.value, _CONSTANTS):
            self._no(node, "cannot be written here", _POSSIBLE)
        return node.value

    def _compute(self, node: ast.BinOp, depth: int) -> Any:
        if type(node.op) in _JOINED:
            return self._join(node, depth)
        compute = _COMPUTED.get(type(node.op))
        if compute is None:
            self._no(node, "is computed with in a way that the databases do not share", "There are +, - and *")
        left, right = self.value(node.left, depth), self.value(node.right, depth)
        if not all(isinstance(one, StandIn) or type(one) in _NUMBERS for one in (left, right)):
            self._no(node, "computes with what is no number or time", _MAKING)
        return self._make(node, compute, left, right)

    def _sign(self, node: ast.UnaryOp, depth: int) -> Any:
        if isinstance(node.op, ast.Not | ast.Invert):
            return ~self._stand_in(node.operand, depth)
        value = self.value(node.operand, depth)
        if type(value) not in {int, float, Decimal, timedelta}:
            self._no(node, "has a sign and is no number", "Write 0 - … for a field")
        return -value if isinstance(node.op, ast.USub) else value

    def _several(self, node: ast.List | ast.Tuple | ast.Set | ast.Dict, depth: int) -> Any:
        if isinstance(node, ast.Dict):
            keys = [None if key is None else self.value(key, depth) for key in node.keys]
            if not all(isinstance(key, str) for key in keys):
                self._no(node, "has keys that are no texts", "JSON has none")
            return dict(zip(keys, [self._constant(one, depth) for one in node.values], strict=True))
        values = [self._constant(one, depth) for one in node.elts]
        if isinstance(node, ast.Set):
            return self._make(node, frozenset, values)
        return values if isinstance(node, ast.List) else tuple(values)

    def _constant(self, node: ast.expr, depth: int) -> Any:
        value = self.value(node, depth)
        if isinstance(value, StandIn):
            self._no(node, "stands where a constant belongs", "Compare with other fields by ==, joined with or")
        return value

    # ----- words

    def _call(self, node: ast.Call, depth: int) -> Any:
        make = _MAKERS.get(_path_of(node.func))
        named = {one.arg: one.value for one in node.keywords}
        if None in named or (named and make is not timedelta):
            self._no(node, "has arguments with names", _POSSIBLE)
        if make is not None:
            values = [self._constant(one, depth) for one in node.args]
            options = {str(name): self._constant(one, depth) for name, one in named.items()}
            if make is Decimal and any(isinstance(one, tuple) for one in values):
                self._no(node, "is no number", 'Write Decimal("1.50")')
            return self._make(node, make, *values, **options)
        match node.func:
            case ast.Name(id=word) if word in _WORDS and node.args:
                of, given = self._operand(node.args[0], depth), node.args[1:]
            case ast.Attribute(attr=word) if word in METHODS:
                of, given = self._operand(node.func.value, depth), node.args
            case _:
                self._no(node, "cannot be called here", f"There are {LISTED}. {_MAKING}")
        if len(given) != METHODS.get(word, 0):
            self._no(node, f"has {len(given)} arguments after its field", f"{word} takes {METHODS.get(word, 0)}")
        values = [self._constant(one, depth) for one in given]
        if word == "known":
            return of
        if word == "in_":
            values = [self._options(of, values[0])]
        return getattr(of, word)(*values)

    def _make(self, node: ast.expr, make: Callable[..., Any], *values: Any, **options: Any) -> Any:
        try:
            return make(*values, **options)
        except (ArithmeticError, ValueError, TypeError, AttributeError) as error:
            return self._no(node, f"cannot be: {error}", _MAKING)

    def _no(self, node: ast.expr, problem: str, fix: str) -> NoReturn:
        part = ast.get_source_segment(self._text, node) or type(node).__name__
        shown = part if len(part) <= _SHOWN else f"{part[:_SHOWN]}…"
        self._at.refuse(f"{shown!r} {problem}", fix)

    _PARTS: ClassVar[dict[type[ast.AST], Callable[..., Any]]] = {
        ast.Name: _field,
        ast.Constant: _literal,
        ast.Attribute: _inner,
        ast.Subscript: _inner,
        ast.BoolOp: _join,
        ast.BinOp: _compute,
        ast.UnaryOp: _sign,
        ast.Compare: _compare,
        ast.Call: _call,
        ast.List: _several,
        ast.Tuple: _several,
        ast.Set: _several,
        ast.Dict: _several,
    }


def _spine(node: ast.expr) -> list[ast.expr]:
    """The operands of a chain of one operator, which Python nests to the left."""
    parts, of = [], type(node.op) if isinstance(node, ast.BinOp) else None
    while isinstance(node, ast.BinOp) and type(node.op) is of:
        parts.append(node.right)
        node = node.left
    return [node, *reversed(parts)]


def _path_of(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            return f"{name}.{attribute}"
    return ""
