"""Filters in SQLite's SQL: terms, and the conditions that are not made of others.

Owns their text, with functions that every SQLite has, as other programs fire the triggers too. A column may hold
anything, so each value passes a guard first. SQL compares values in the form in which penstock stores them, and Python
all others. Python alone compares patterns and decimals.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from penstock.reactive import expression as ex
from penstock.reactive.signature import signature
from penstock.schema.fields import Kind
from penstock.store.sql.dialect import Convert, Part, Spelling
from penstock.values import INT64_MAX, INT64_MIN, decode_json

_DIGIT, _HEX = "[0-9]", "[0-9a-f]"
_DATE = "-".join([_DIGIT * 4, _DIGIT * 2, _DIGIT * 2])
_TIME = ":".join([_DIGIT * 2] * 3)
_UUID = "-".join(_HEX * length for length in (8, 4, 4, 4, 12))
_CANONICAL = {
    Kind.DATETIME: f"{{0}} glob '{_DATE}T{_TIME}.{_DIGIT * 6}Z' and {{0}} >= '0001' and "
    "strftime('%Y-%m-%dT%H:%M:%S', substr({0}, 1, 19), '+0 days') = substr({0}, 1, 19)",
    Kind.DATE: f"{{0}} glob '{_DATE}' and {{0}} >= '0001' and date({{0}}, '+0 days') = {{0}}",
    Kind.UUID: f"{{0}} glob '{_UUID}'",
    # An escape in a text or a key would be compared as it is written.
    Kind.JSON: "instr({0}, '\\') = 0 and json_valid({0})",
    Kind.DECIMAL: "({0} glob '[0-9]*' or {0} glob '-[0-9]*') and substr({0}, 2) not glob '*[^0-9.]*' "
    "and {0} not glob '*.*.*'",
}
_STORED = {
    Kind.TEXT: "'text'",
    Kind.ENCRYPTED: "'text'",
    Kind.INTEGER: "'integer'",
    Kind.REAL: "'real', 'integer'",
    Kind.BOOLEAN: "'integer'",
    Kind.BYTES: "'blob'",
    Kind.INTERVAL: "'integer'",
}
_SECONDS = "(cast(strftime('%s', substr({0}, 1, 19)) as integer) * 1000000 + cast(substr({0}, 21, 6) as integer))"


class _Unsayable(Exception):
    """SQLite cannot say this exactly."""


class LiteSpelling(Spelling):
    """SQLite's SQL for filters."""

    true, never = "1", "0"

    def leaf(self, leaf: ex.Leaf) -> Part:
        guards: list[str] = []
        try:
            if isinstance(leaf, ex.Compare):
                return self._compare(leaf, guards)
            if isinstance(leaf, ex.OneOf):
                return self._one_of(leaf, guards)
            return Part(self._single(leaf, guards), tuple(guards))
        except _Unsayable:
            return Part(None)

    def watch(self, term: ex.Term) -> Part:
        """A term's value; its columns as they are, if SQLite cannot say it."""
        columns = tuple(ex.fields(term))
        if term.kind is Kind.ENCRYPTED:  # one value has many ciphertexts
            return Part(None, wide=self.raw(columns))
        guards: list[str] = []
        try:
            sql = self._watch_json(term, guards) if term.kind is Kind.JSON else self.value(term, term.kind, guards)
        except _Unsayable:
            return Part(None, wide=self.raw(columns))
        told = " || ',' || ".join(map(self._type_and_text, columns))
        return Part(sql, tuple(guards), wide=f"cast({told} as {'text' if term.kind is Kind.BYTES else 'blob'})")

    def raw(self, columns: Sequence[str]) -> str:
        if len(columns) == 1:
            return self.bare(columns[0])
        return "(" + " || ',' || ".join(map(self._type_and_text, columns)) + ")"

    def _type_and_text(self, column: str) -> str:
        """A value and its type as text, with all digits and characters."""
        name = self.bare(column)
        real = f"printf('%!.20e', {name})"  # quote() loses the last digit of some
        return f"(case typeof({name}) when 'real' then {real} else typeof({name}) || hex({name}) end)"

    def _watch_json(self, term: ex.Term, guards: list[str]) -> str:
        """JSON as text, which tells every change, and some that mean nothing, such as another order of keys."""
        if not isinstance(term, ex.Path):
            raise _Unsayable
        kind, found = self._json(term, guards)
        guards.append(f"typeof({found}) is not 'real'")  # JSON text may lack digits
        return f"(case {kind} when 'null' then null else {kind} || quote({found}) end)"

    def ask(self, leaf: ex.Leaf) -> str:
        """A call of Python, by a function that only penstock's own connections have."""
        if not self.own:
            return ""
        columns = "".join(f", {self.column(name)}" for name in ex.fields(leaf))
        return f"penstock_holds({text_literal(signature(leaf))}{columns})"

    # ----- leaves

    def _compare(self, leaf: ex.Compare, guards: list[str]) -> Part:
        kind = ex.comparison_kind(leaf)
        if kind is Kind.JSON:
            return self._compare_json(leaf, guards)
        if kind is Kind.DECIMAL:
            return self._near_decimal(leaf)
        linear = isinstance(leaf.left, ex.Arithmetic) or isinstance(leaf.right, ex.Arithmetic)
        left, right = (self.value(one, kind, guards, linear=linear) for one in (leaf.left, leaf.right))
        return Part(f"{left} {'is' if leaf.operator == '==' else leaf.operator} {right}", tuple(guards))

    def _one_of(self, leaf: ex.OneOf, guards: list[str]) -> Part:
        if leaf.term.kind is Kind.JSON or leaf.term.kind is Kind.DECIMAL:
            parts = [self.leaf(ex.Compare("==", leaf.term, constant)) for constant in leaf.constants]
            wide = " or ".join(part.wide or "1" for part in parts)
            if any(part.sql is None for part in parts):
                return Part(None, wide=f"({wide})")
            all_guards = tuple(guard for part in parts for guard in part.guards)
            return Part(" or ".join(f"({part.sql})" for part in parts), all_guards, wide=f"({wide})")
        found = self.value(leaf.term, leaf.term.kind, guards)
        linear = isinstance(leaf.term, ex.Arithmetic)
        listed = ", ".join(self._constant(constant, leaf.term.kind, linear) for constant in leaf.constants)
        return Part(f"{found} in ({listed})", tuple(guards))

    def _single(self, leaf: ex.Missing | ex.TextIs | ex.Matches | ex.Has | ex.Holds, guards: list[str]) -> str:
        if isinstance(leaf, ex.Missing):
            return self._missing(leaf.term, guards)
        if isinstance(leaf, ex.TextIs):
            return self._text_is(leaf, guards)
        if isinstance(leaf, ex.Matches):
            raise _Unsayable
        if isinstance(leaf, ex.Has):
            return self._has(leaf, guards)
        if leaf.term.kind is Kind.JSON:
            return f"{self._json(leaf.term, guards)[0]} = 'true'"
        return self.value(leaf.term, Kind.BOOLEAN, guards)

    def _missing(self, term: ex.Term, guards: list[str]) -> str:
        if term.kind is Kind.JSON:
            return f"coalesce({self._json(term, guards)[0]}, 'null') = 'null'"
        if term.kind is Kind.DECIMAL and isinstance(term, ex.Field):
            name = self.bare(term.column)
            is_number = f"typeof({name}) in ('integer', 'real') and abs({name}) < 9e999"
            guards.append(f"{is_number} or {_guard(Kind.DECIMAL, name)}")
            return f"{name} is null"
        return f"{self.value(term, term.kind, guards)} is null"

    def _text_is(self, leaf: ex.TextIs, guards: list[str]) -> str:
        found, size, wanted = self._text(leaf.term, guards), len(leaf.text), text_literal(leaf.text)
        if not size:
            return f"{found} is not null"
        if leaf.test == "contains":
            return f"instr({found}, {wanted}) > 0"
        if leaf.test == "endswith":
            guards.append(_whole(found))
        return f"substr({found}, {f'1, {size}' if leaf.test == 'startswith' else -size}) = {wanted}"

    def _has(self, leaf: ex.Has, guards: list[str]) -> str:
        kind, _ = self._json(leaf.term, guards)
        elements = f"json_each({self._json_of(leaf.term)})"
        constant = leaf.constant.value
        if constant[0] == '"':
            wanted = f"type = 'text' and value = {text_literal(decode_json(constant))}"
        elif constant[0] in "tfn":
            wanted = f"type = '{constant}'"
        else:
            guards.append(f"not exists (select 1 from {elements} where typeof(atom) = 'real')")
            wanted = f"type = 'integer' and {compare_whole('value', '==', Decimal(constant))}"
        return f"{kind} = 'array' and exists (select 1 from {elements} where {wanted})"

    # ----- JSON

    def _compare_json(self, leaf: ex.Compare, guards: list[str]) -> Part:
        if not isinstance(leaf.right, ex.Constant):
            raise _Unsayable
        kind, found = self._json(leaf.left, guards)
        constant = leaf.right.value
        if constant[0] == '"':
            wanted = text_literal(decode_json(constant))
            operator = "=" if leaf.operator == "==" else leaf.operator
            return Part(f"{kind} = 'text' and {found} {operator} {wanted}", tuple(guards))
        if constant[0] in "tf":
            return Part(f"{kind} = '{constant}'", tuple(guards))
        if constant[0] in "[{":
            alike = f"{kind} = '{'array' if constant[0] == '[' else 'object'}'"
            return Part(None, wide=f"(case when {guards[0]} then {alike} else 1 end)")
        number = Decimal(constant)
        sql = f"{kind} = 'integer' and {compare_whole(found, leaf.operator, number)}"
        wide, wide_not = (
            f"(case when {guards[0]} then {near(found, leaf.operator, number, positive=positive)} else 1 end)"
            for positive in (True, False)
        )
        return Part(sql, (*guards, f"typeof({found}) is not 'real'"), wide, wide_not)

    def _json(self, term: ex.Term, guards: list[str]) -> tuple[str, str]:
        """JSON's word for the kind of a term, and the term."""
        guards.append(_guard(Kind.JSON, self.column(next(iter(ex.fields(term))))))
        of = self._json_of(term)
        return f"json_type({of})", f"json_extract({of if isinstance(term, ex.Path) else of + ', ' + repr('$')})"

    def _json_of(self, term: ex.Term) -> str:
        name = self.column(next(iter(ex.fields(term))))
        return f"{name}, {_path_text(term)}" if isinstance(term, ex.Path) else name

    # ----- decimals

    def _near_decimal(self, leaf: ex.Compare) -> Part:
        """SQLite reads a decimal as a float nearby, if it is written as a decimal."""
        if not isinstance(leaf.left, ex.Field) or not isinstance(leaf.right, ex.Constant):
            raise _Unsayable
        name = self.bare(leaf.left.column)
        about = near(f"cast({name} as real)", leaf.operator, Decimal(leaf.right.value))
        return Part(None, wide=f"({name} glob '*[^0-9.Ee+-]*' or {about})")

    # ----- terms

    def value(self, term: ex.Term, kind: Kind, guards: list[str], *, linear: bool = False) -> str:
        """A term as a value of a kind; `linear` points in time are microseconds, to compute with."""
        if kind is Kind.DECIMAL or kind is Kind.JSON:
            raise _Unsayable
        if isinstance(term, ex.Constant):
            return self._constant(term, kind, linear)
        if isinstance(term, ex.Arithmetic):
            found = self._compute(term, guards)
            if term.kind is not Kind.REAL:
                guards.append(f"typeof({found}) in ('integer', 'null')")  # beyond 64 bits it is a float
        elif isinstance(term, ex.Length):
            found = self._length(term, guards)
        else:
            found = self._field(term, guards, linear)  # type: ignore[arg-type]  # paths are JSON
        return f"cast({found} as real)" if kind is Kind.REAL and term.kind is Kind.INTEGER else found

    def _constant(self, constant: ex.Constant, kind: Kind, linear: bool) -> str:
        if linear and kind is Kind.DATETIME:
            return integer_literal(_microseconds(constant))
        if kind is Kind.TEXT and (mark := self.text(constant.value)) is not None:
            return mark
        return constant_literal(constant, kind, self.dialect.encode.get(kind))

    def _field(self, field: ex.Field, guards: list[str], linear: bool) -> str:
        name = self.column(field.column) if self.definition.managed else self.bare(field.column)
        if field.kind in _CANONICAL:
            guards.append(_guard(field.kind, name))
        elif not self.definition.managed:
            guards.append(f"typeof({name}) in ({_STORED[field.kind]}, 'null')")
        if field.kind is Kind.BOOLEAN:
            if not self.definition.managed:
                guards.append(f"coalesce({name} in (0, 1), 1)")  # other numbers are no booleans
            return f"({name} <> 0)"
        if field.kind is Kind.REAL and not self.definition.managed:
            return f"cast({name} as real)"
        return _SECONDS.format(name) if linear and field.kind is Kind.DATETIME else name

    def bare(self, column: str) -> str:
        """A column without its collation and its affinity, which makes numbers of texts."""
        return f"(+{self.column(column)} collate binary)"

    def _text(self, term: ex.Term, guards: list[str]) -> str:
        if term.kind is Kind.TEXT:
            return self.value(term, Kind.TEXT, guards)
        kind, found = self._json(term, guards)
        return f"(case {kind} when 'text' then {found} end)"

    def _length(self, term: ex.Length, guards: list[str]) -> str:
        if term.of.kind is Kind.JSON:
            kind, found = self._json(term.of, guards)
            array = f"json_array_length({self._json_of(term.of)})"
            return f"(case {kind} when 'array' then {array} when 'text' then length({found}) end)"
        found = self.value(term.of, term.of.kind, guards)
        if term.of.kind is Kind.BYTES:
            return f"length({found})"
        guards.append(_whole(found))
        return f"length({found})"

    def _compute(self, term: ex.Arithmetic, guards: list[str]) -> str:
        if term.kind is Kind.DECIMAL:
            raise _Unsayable
        left, right = (self._operand(one, term.kind, guards) for one in (term.left, term.right))
        return f"({left} {term.operator} {right})"

    def _operand(self, term: ex.Term, kind: Kind, guards: list[str]) -> str:
        if isinstance(term, ex.Arithmetic) and not (kind is Kind.REAL and term.kind is Kind.INTEGER):
            return self._compute(term, guards)
        found = self.value(term, kind if kind is Kind.REAL else term.kind, guards, linear=True)
        if kind is Kind.REAL and isinstance(term, ex.Field) and term.kind is Kind.REAL:
            bounds = f"abs({found}) between {real_literal(ex.MIN_REAL)} and {real_literal(ex.MAX_REAL)}"
            return f"(case when {found} = 0 or {bounds} then {found} end)"
        return found


def _guard(kind: Kind, name: str) -> str:
    return f"{name} is null or (typeof({name}) = 'text' and {_CANONICAL[kind].format(name)})"


def _whole(text: str) -> str:
    """Whether a text holds no NUL, at which SQLite stops counting; only other programs store it."""
    return f"{text} is null or instr({text}, char(0)) = 0"


def _microseconds(constant: ex.Constant) -> int:
    since: timedelta = constant.value - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1)


def _path_text(path: ex.Path) -> str:
    steps = "".join(
        f'."{step}"' if isinstance(step, str) else f"[{step}]" if step >= 0 else f"[#{step}]" for step in path.steps
    )
    return text_literal("$" + steps)


# ----- constants

_WHOLE = 2**53
_STEP = 62
_MARGIN = 1e-9  # far more than SQLite's reading of a number may be off
_TINY = 1e-300


def text_literal(text: str) -> str:
    """A text. No word in braces stands in it, so that it fits into a template."""
    pieces = ["'" + piece.replace("'", "''") + "'" for piece in re.split(r"(?<=\{)(?=\w)", text)]
    return pieces[0] if len(pieces) == 1 else f"({' || '.join(pieces)})"


def integer_literal(value: int) -> str:
    """An integer of 64 bits."""
    return f"({value})" if value < 0 else str(value)


def real_literal(value: float) -> str:
    """A float, to the last bit: written with integers, as SQLite reads long fractions otherwise on other machines."""
    if math.isinf(value):
        return "9e999" if value > 0 else "(-9e999)"
    if value.is_integer() and abs(value) < _WHOLE:
        return f"({int(value)}.0)"
    fraction, exponent = math.frexp(value)
    text, exponent = f"cast({int(fraction * _WHOLE)} as real)", exponent - 53
    while exponent:
        step = min(abs(exponent), _STEP)
        text += f" {'*' if exponent > 0 else '/'} cast({1 << step} as real)"
        exponent -= step if exponent > 0 else -step
    return f"({text})"


def constant_literal(constant: ex.Constant, kind: Kind, encode: Convert | None) -> str:
    """A constant as a value of a kind, as columns of that kind hold it."""
    value: Any = constant.value
    if kind is Kind.REAL:
        return real_literal(float(value))
    if kind is Kind.BYTES:
        return f"x'{value.hex()}'"
    stored = value if encode is None else encode(value)
    return text_literal(stored) if isinstance(stored, str) else integer_literal(stored)


def near(found: str, operator: str, value: Decimal, *, positive: bool = True) -> str:
    """A condition that is never false where the comparison holds, or where it fails if not `positive`.

    SQLite has read the number with a small error.
    """
    about = float(value) if abs(value) < Decimal("1e308") else math.copysign(math.inf, value)
    margin = abs(about) * _MARGIN + _TINY
    lower, upper = (
        (repr(max(about, -1e308) - margin), repr(min(about, 1e308) + margin)) if margin < math.inf else ("", "")
    )
    if not lower:
        lower, upper = ("1e307", "9e999") if about > 0 else ("-9e999", "-1e307")
    above, below = f"{found} >= {lower}", f"{found} <= {upper}"
    if operator == "==":
        return f"({above} and {below})" if positive else "1"
    return f"({above})" if (operator in {">", ">="}) is positive else f"({below})"


def compare_whole(found: str, operator: str, value: Decimal) -> str:
    """An integer of 64 bits compared with any number, by the whole numbers next to it."""
    floor, ceiling = (int(value.to_integral_value(way)) for way in (ROUND_FLOOR, ROUND_CEILING))
    if operator == "==":
        return f"{found} = {integer_literal(floor)}" if floor == ceiling and _fits(floor) else "0"
    if operator in {">", "<="}:
        edge, beyond = floor, (operator == "<=") is (floor > 0)
    else:
        edge, beyond = ceiling, (operator == "<") is (ceiling > 0)
    return f"{found} {operator} {integer_literal(edge)}" if _fits(edge) else str(int(beyond))


def _fits(value: int) -> bool:
    return INT64_MIN <= value <= INT64_MAX
