"""Filters in PostgreSQL's SQL: constants, terms, and the conditions that are not made of others.

Owns their text. It cannot fail on any row: a guard comes before each cast, sum or JSON operator that could raise an
error. Columns of user-owned tables may have other types than penstock chooses, so they are converted first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from penstock.reactive import expression as ex
from penstock.reactive.pattern import common_pattern
from penstock.schema.fields import Kind
from penstock.store.sql.dialect import Part, Spelling
from penstock.values import decode_json

_EPOCH = "'1970-01-01 00:00:00+00'"  # untyped, as those below: it takes the type of the other column
_FIRST, _LAST = "'-719162 days'::interval", "'2932896 days 23:59:59.999999'::interval"
_ENDS: dict[Kind, tuple[Any, Any]] = {
    Kind.DATETIME: (datetime(1, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)),
    Kind.DATE: (date.min, date.max),
}
_SPECIAL = re.compile(r"[\\$%{\x01-\x1f]")
# Values that json may hold and jsonb may not: NUL, half surrogates, numbers with too many digits.
_ODD_JSON = r"\\u(0000|[dD][89a-fA-F])|[eE]\+?[0-9]{4}|([0-9]{250}){4}"


class PostgresSpelling(Spelling):
    """PostgreSQL's SQL for filters."""

    true, never = "true", "false"

    def leaf(self, leaf: ex.Leaf) -> Part:
        return Part(self._leaf(leaf), self._guards(leaf))

    def watch(self, term: ex.Term) -> Part:
        """A term's value; its columns as they are, where jsonb cannot hold the JSON."""
        if term.kind is Kind.ENCRYPTED:  # one value has many ciphertexts
            return Part(None, wide=self.raw(tuple(ex.fields(term))))
        sql, guards = self._comparable(term), self._guards(term)
        if not guards:
            return Part(sql)
        return Part(f"to_jsonb({sql})", guards, wide=f"jsonb_build_array({self.raw(tuple(ex.fields(term)))}, 'raw')")

    def raw(self, columns: Sequence[str]) -> str:
        told = ", ".join(f"{self.column(name)}::text" for name in columns)
        return f"array[{told}]::text" if len(columns) > 1 else told

    def _guards(self, expression: ex.Leaf | ex.Term) -> tuple[str, ...]:
        """Conditions under which jsonb can hold the JSON of a user-owned row."""
        if self.definition.managed:
            return ()
        json = [name for name, kind in ex.fields(expression).items() if kind is Kind.JSON]
        return tuple(
            f"{self.column(name)} is null or {self.column(name)}::text !~ {literal(_ODD_JSON)}" for name in json
        )

    # ----- leaves

    def _leaf(self, leaf: ex.Leaf) -> str:
        if isinstance(leaf, ex.Compare):
            return self._compare(leaf)
        if isinstance(leaf, ex.Missing):
            return f"{self._comparable(leaf.term)} is null"
        if isinstance(leaf, ex.OneOf):
            kind = leaf.term.kind
            spell = self._since if isinstance(leaf.term, ex.Arithmetic) and kind is Kind.DATETIME else self._comparable
            listed = ", ".join(map(spell, leaf.constants))
            return f"{self.value(leaf.term, kind)} in ({listed})"
        return self._says(leaf)

    def _says(self, leaf: ex.TextIs | ex.Matches | ex.Has | ex.Holds) -> str:
        if isinstance(leaf, ex.TextIs):
            return self._text_is(self._text(leaf.term), leaf)
        if isinstance(leaf, ex.Matches):
            return f"{self._text(leaf.term)} ~ {literal(common_pattern(leaf.pattern))}"
        found = self.value(leaf.term, leaf.term.kind)
        if isinstance(leaf, ex.Has):
            wanted = literal(f"[{leaf.constant.value}]")
            return f"case jsonb_typeof({found}) when 'array' then {found} @> {wanted}::jsonb end"
        return found if leaf.term.kind is Kind.BOOLEAN else f"{found} = 'true'::jsonb"

    def _compare(self, leaf: ex.Compare) -> str:
        kind = ex.comparison_kind(leaf)
        if isinstance(leaf.right, ex.Constant) and not isinstance(leaf.left, ex.Arithmetic):
            return self._compare_constant(leaf, leaf.right, kind)
        linear = kind is Kind.DATETIME and (
            not self.definition.managed or isinstance(leaf.left, ex.Arithmetic) or isinstance(leaf.right, ex.Arithmetic)
        )
        left, right = (self._since(one) if linear else self._comparable(one, kind) for one in (leaf.left, leaf.right))
        return f"{left} {'is not distinct from' if leaf.operator == '==' else leaf.operator} {right}"

    def _compare_constant(self, leaf: ex.Compare, constant: ex.Constant, kind: Kind) -> str:
        operator = "=" if leaf.operator == "==" else leaf.operator
        if kind is not Kind.JSON or operator == "=":
            return f"{self.value(leaf.left, kind)} {operator} {self._constant(constant, kind)}"
        found = self.value(leaf.left, kind)
        if constant.value[0] == '"':
            return f"{self._text(leaf.left)} {operator} {literal(decode_json(constant.value))}"
        return f"jsonb_typeof({found}) = 'number' and {found} {operator} {self._constant(constant, kind)}"

    def _text_is(self, found: str, leaf: ex.TextIs) -> str:
        if leaf.test == "contains":
            return f"strpos({found}, {literal(leaf.text)}) > 0"
        side = "left" if leaf.test == "startswith" else "right"
        return f"{side}({found}, {len(leaf.text)}) = {literal(leaf.text)}"

    # ----- terms

    def _comparable(self, term: ex.Term, kind: Kind | None = None) -> str:
        """A term that is NULL if its value is missing, as JSON's null is too."""
        if kind is Kind.JSON and term.kind is not Kind.JSON:
            return f"to_jsonb({self.value(term, term.kind)})"
        found = self.value(term, kind or term.kind)
        return f"nullif({found}, 'null'::jsonb)" if term.kind is Kind.JSON else found

    def value(self, term: ex.Term, kind: Kind) -> str:
        if isinstance(term, ex.Constant):
            return self._constant(term, kind)
        if isinstance(term, ex.Arithmetic):
            found = self._compute(term)
        elif isinstance(term, ex.Length):
            found = self._length(term)
        elif isinstance(term, ex.Path):
            found = self._path(term)
        else:
            found = self._field(term)
        return f"{found}::float8" if kind is Kind.REAL and term.kind is Kind.INTEGER else found

    def _field(self, field: ex.Field) -> str:
        name = self.column(field.column)
        if field.kind is Kind.DECIMAL:
            return f"(case when {name} - {name} = 0 then {name} end)"
        if field.kind is Kind.INTERVAL:
            return _interval(name)
        if field.kind in _ENDS:  # the ends of time stand for infinite values, as the driver reads them
            return _of_time(name, field.kind, name, *map(_CONSTANTS[field.kind], _ENDS[field.kind]))
        if not self.definition.managed:
            return _USER_OWNED.get(field.kind, "{0}").format(name)
        return f"nullif({name}, 'NaN')" if field.kind is Kind.REAL else name

    def _path(self, path: ex.Path) -> str:
        found = self._field(ex.Field(path.column, Kind.JSON))
        for step in path.steps:
            if isinstance(step, str):
                found = f"({found} -> {literal(step)})"
            else:  # a scalar would be taken for an array of one
                found = f"(case jsonb_typeof({found}) when 'array' then {found} -> ({step}) end)"
        return found

    def _text(self, term: ex.Term) -> str:
        found = self.value(term, term.kind)
        if term.kind is Kind.TEXT:
            return found
        return f"(case jsonb_typeof({found}) when 'string' then {found} #>> '{{}}' end collate \"C\")"

    def _length(self, term: ex.Length) -> str:
        found = self.value(term.of, term.of.kind)
        if term.of.kind is not Kind.JSON:
            return f"{'octet_length' if term.of.kind is Kind.BYTES else 'char_length'}({found})"
        text = f"char_length({found} #>> '{{}}')"
        return (
            f"(case jsonb_typeof({found}) when 'array' then jsonb_array_length({found}) when 'string' then {text} end)"
        )

    # ----- arithmetic

    def _compute(self, term: ex.Arithmetic) -> str:
        if term.kind in {Kind.DATETIME, Kind.INTERVAL}:
            return self._since(term)
        left, right = (self._operand(one, term.kind) for one in (term.left, term.right))
        return f"({left} {term.operator} {right})"

    def _operand(self, term: ex.Term, kind: Kind) -> str:
        """A number to compute with, as a type that holds every result."""
        found = self.value(term, term.kind)
        if kind is Kind.REAL:
            if term.kind is Kind.REAL and isinstance(term, ex.Field):
                bounds = f"abs({found}) between {_real(ex.MIN_REAL)} and {_real(ex.MAX_REAL)}"
                return f"(case when {found} = 0 or {bounds} then {found} end)"
            return f"({found})::float8"
        if kind is Kind.DECIMAL and term.kind is Kind.DECIMAL and isinstance(term, ex.Field):
            fits = f"abs({found}) < 1e{ex.MAX_DIGITS + 1} and scale({found}) <= {ex.MAX_DIGITS}"
            return f"(case when {found} = 0 then 0 when {fits} then {found} end)"
        return f"({found})::numeric"

    def _since(self, term: ex.Term) -> str:
        """A point in time as an interval since 1970, a length of time as itself: neither has a time zone."""
        if isinstance(term, ex.Arithmetic):
            return f"({self._since(term.left)} {term.operator} {self._since(term.right)})"
        if isinstance(term, ex.Constant) and term.kind is Kind.DATETIME:
            return _interval_literal(term.value - datetime(1970, 1, 1, tzinfo=UTC))
        if term.kind is Kind.DATETIME and isinstance(term, ex.Field):
            name = self.column(term.column)
            return _of_time(name, Kind.DATETIME, f"{name} - {_EPOCH}", _FIRST, _LAST)
        return self.value(term, term.kind)

    # ----- constants

    def _constant(self, constant: ex.Constant, kind: Kind) -> str:
        value: Any = constant.value
        if kind is Kind.TEXT:
            return self.text(value) or literal(value)
        if kind is Kind.REAL:
            return _real(float(value))
        if kind in {Kind.INTEGER, Kind.DECIMAL}:
            return f"({value:f})" if constant.kind is Kind.DECIMAL else f"({value})"
        if kind is Kind.JSON:
            return f"{literal(value)}::jsonb"
        return _CONSTANTS[kind](value)


def literal(text: str) -> str:
    """A text as SQL, whatever the server's settings. No $, % or { stands in it, so that it fits into any template."""
    escaped = _SPECIAL.sub(lambda found: f"\\x{ord(found[0]):02x}", text.replace("'", "''"))
    return f"E'{escaped}'" if "\\" in escaped else f"'{escaped}'"


def _real(value: float) -> str:
    text = repr(value) if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"
    return f"'{text}'::float8"


def _interval_literal(value: timedelta) -> str:
    return f"'{value.days} days {value.seconds} seconds {value.microseconds} microseconds'::interval"


def _interval(name: str) -> str:
    """Years of 365 days and months of 30, as the driver reads them; PostgreSQL compares years of 360."""
    years = f"extract(year from {name})"
    parts = {"year": 100_000, "day": 300_000_000, "hour": 500_000_000}  # so that no sum of three leaves its type
    fits = " and ".join(f"abs(extract({part} from {name})) < {most}" for part, most in parts.items())
    longer = f"{name} + make_interval(days => 5 * {years}::int)"
    return f"(case when {years} = 0 and {fits} then {name} when {fits} then {longer} end)"


def _of_time(name: str, kind: Kind, value: str, first: str, last: str) -> str:
    """A value computed from a day or a point in time; NULL beyond the years of Python."""
    least, most = (_CONSTANTS[kind](end) for end in _ENDS[kind])
    there = f"when {name} between {least} and {most} then {value}"
    infinite = f"when {name} < {least} then {first} else {last}"
    return f"(case {there} when isfinite({name}) is not false then null {infinite} end)"


# Untyped texts take the type of the column that they are compared with.
_CONSTANTS: dict[Kind, Callable[[Any], str]] = {
    Kind.BOOLEAN: lambda value: "true" if value else "false",
    Kind.BYTES: lambda value: f"decode('{value.hex()}', 'hex')",
    Kind.DATETIME: lambda value: literal(value.astimezone(UTC).isoformat(" ", "microseconds")),
    Kind.DATE: lambda value: literal(value.isoformat()),
    Kind.INTERVAL: _interval_literal,
    Kind.UUID: lambda value: literal(str(value)),
}
_WHOLE = "{0} = floor({0}) and {0} between -9223372036854775808 and 9223372036854775807"
_FINITE = "(abs({0}) <= 1e308 and ({0} = 0 or abs({0}) >= 1e-307)) or {0}::text in ('Infinity', '-Infinity')"
_IS_TEXT = "pg_typeof({0}) in ('text'::regtype, 'varchar'::regtype)"  # other types have a cast of another spelling
_USER_OWNED = {
    Kind.TEXT: f"(case when {_IS_TEXT} then {{0}}::text else to_json({{0}}) #>> '{{{{}}}}' end collate \"C\")",
    Kind.UUID: '(lower({0}::text) collate "C")',
    Kind.INTEGER: f"(case when {_WHOLE} then {{0}} end)",
    Kind.REAL: f"(case when {_FINITE} then {{0}}::float8 end)",
    Kind.JSON: "to_jsonb({0})",
}
