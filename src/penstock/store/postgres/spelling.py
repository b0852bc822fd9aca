"""The JSON spelling of captured keys and columns, as SQL that means the same for every session."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from penstock.store.postgres.conditions import literal
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.sql.feedrow import Conditional, FeedSpelling

UNLIKE = "pg_catalog.record_image_ne"
_PLAIN = frozenset({"smallint", "integer", "bigint", "uuid", "boolean", "date"})  # equal values are spelled alike
_NUMBERS = frozenset({"smallint", "integer", "bigint"})
_ARGUMENTS = 50  # pairs of them: a function takes a hundred
_ZONED = "timestamp with time zone"


class PostgresFeedSpelling(FeedSpelling):
    """See `FeedSpelling`. All names are in full, as a function may run with any search path.

    Args:
        types: The SQL types of the table's columns.
    """

    concatenate = "operator(pg_catalog.||)"

    def __init__(self, types: Mapping[str, str]) -> None:
        self._types = types

    def join_list(self, values: Sequence[Conditional]) -> str:
        """A single text that is left out is NULL."""
        return _if(values[0]) if len(values) == 1 else _join(values, "','")

    def pieces(self, values: Sequence[Conditional]) -> str:
        """NULL stands for a piece that is left out, and is written as nothing."""
        return _join(values, "pg_catalog.chr(30), ''")

    def array(self, row: str, columns: Sequence[str]) -> str:
        if self._are_numbers(columns):
            return self._numbers(row, "[", dict.fromkeys(columns, ""), "]")
        values = ", ".join(self._value(row, column) for column in columns)
        return f"pg_catalog.json_build_array({values})::pg_catalog.text"

    def json_object(self, row: str, columns: Sequence[str]) -> str:
        """JSON, as jsonb refuses some of the values that json holds."""
        if not columns:
            return "null"
        if self._are_numbers(columns):
            named = {column: f"{json.dumps(column, ensure_ascii=False)} : " for column in columns}
            return self._numbers(row, "{", named, "}")
        if len(columns) <= _ARGUMENTS:
            pairs = (f"{literal(column)}, {self._value(row, column)}" for column in columns)
            return f"pg_catalog.json_build_object({', '.join(pairs)})::pg_catalog.text"
        values = ", ".join(f"{self._value(row, column)} as {POSTGRES.quote(column)}" for column in columns)
        return f"(select pg_catalog.row_to_json(o)::pg_catalog.text from (select {values}) o)"

    def _are_numbers(self, columns: Sequence[str]) -> bool:
        return bool(columns) and all(self._types[column] in _NUMBERS for column in columns)

    def _numbers(self, row: str, begin: str, names: Mapping[str, str], end: str) -> str:
        """The text that the functions of JSON build, which ask the catalog for the types of each row's values."""
        parts, before = list[str](), begin
        for column, name in names.items():
            number = f"{row}.{POSTGRES.quote(column)}::pg_catalog.text"
            parts += [literal(before + name), f"coalesce({number}, 'null')"]
            before = ", "
        return f"({f' {self.concatenate} '.join((*parts, literal(end)))})"

    def _value(self, row: str, column: str) -> str:
        return _value(row, column, self._types[column])


def _join(values: Sequence[Conditional], between: str) -> str:
    return f"pg_catalog.array_to_string(array[{', '.join(map(_if, values))}]::pg_catalog.text[], {between})"


def _if(one: Conditional) -> str:
    return f"case when {one.when.sql} then {one.value} end" if one.when.is_asked else one.value


def _value(row: str, column: str, type_name: str) -> str:
    """A column as JSON takes it, whatever the settings of the session that writes."""
    value = f"{row}.{POSTGRES.quote(column)}"
    if type_name.startswith("timestamp") and type_name.endswith("with time zone"):
        return f"pg_catalog.timezone('UTC', {value})"
    if type_name == "bytea":
        hex_digits = f"pg_catalog.encode({value}, 'hex')"
        return f"pg_catalog.chr(92) operator(pg_catalog.||) 'x' operator(pg_catalog.||) {hex_digits}"
    return value


def unlike(columns: Sequence[str], types: Mapping[str, str]) -> str:
    """Whether columns differ between ``old`` and ``new``, byte by byte: some types have no equality."""
    known = [types.get(column, "") for column in columns]
    if all(name in _PLAIN or name == "text" for name in known):  # quicker, and the same
        collate = {"text": ' collate pg_catalog."C"'}
        return " or ".join(
            f"old.{POSTGRES.quote(column)}{collate.get(name, '')} is distinct from new.{POSTGRES.quote(column)}"
            for column, name in zip(columns, known, strict=True)
        )
    old, new = (", ".join(f"{row}.{POSTGRES.quote(column)}" for column in columns) for row in ("old", "new"))
    return f"{UNLIKE}(row({old}), row({new}))"


def key_text(row: str, types: Mapping[str, str]) -> str:
    """The key of a row, spelled as its triggers spell it; by the declared types: a stored time may have no zone."""
    values = (_time(row, name) if kind == _ZONED else _value(row, name, kind) for name, kind in types.items())
    return f"pg_catalog.json_build_array({', '.join(values)})::pg_catalog.text"


def _time(row: str, column: str) -> str:
    value, kind = f"{row}.{POSTGRES.quote(column)}", f"{_ZONED!r}::pg_catalog.regtype"
    in_utc = f"pg_catalog.to_json(pg_catalog.timezone('UTC', {value}))"
    return f"case when pg_catalog.pg_typeof({value}) = {kind} then {in_utc} else pg_catalog.to_json({value}) end"
