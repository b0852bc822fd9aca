"""How captured keys and columns are spelled as JSON, as SQL that means the same for every session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.store.postgres.dialect import POSTGRES

UNLIKE = "pg_catalog.record_image_ne"
_PLAIN = frozenset({"smallint", "integer", "bigint", "uuid", "boolean", "date"})  # whose equal values are alike
_ARGUMENTS = 50  # pairs of them: a function takes a hundred
_ZONED = "timestamp with time zone"


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


def array(row: str, columns: Sequence[str], types: Mapping[str, str]) -> str:
    """Columns as a JSON array."""
    values = ", ".join(_value(row, column, types) for column in columns)
    return f"pg_catalog.json_build_array({values})::pg_catalog.text"


def object_(row: str, columns: Sequence[str], types: Mapping[str, str]) -> str:
    """Columns as a JSON object; empty if there are none. Not as jsonb, which refuses some of what json holds."""
    if not columns:
        return ""
    if len(columns) <= _ARGUMENTS:
        pairs = (f"{literal(column)}, {_value(row, column, types)}" for column in columns)
        return f"pg_catalog.json_build_object({', '.join(pairs)})::pg_catalog.text"
    values = ", ".join(f"{_value(row, column, types)} as {POSTGRES.quote(column)}" for column in columns)
    return f"(select pg_catalog.row_to_json(o)::pg_catalog.text from (select {values}) o)"


def _value(row: str, column: str, types: Mapping[str, str]) -> str:
    """A column as JSON takes it, whatever the settings of the session that writes."""
    value = f"{row}.{POSTGRES.quote(column)}"
    if types[column].startswith("timestamp") and types[column].endswith("with time zone"):
        return f"pg_catalog.timezone('UTC', {value})"
    if types[column] == "bytea":
        hex_digits = f"pg_catalog.encode({value}, 'hex')"
        return f"pg_catalog.chr(92) operator(pg_catalog.||) 'x' operator(pg_catalog.||) {hex_digits}"
    return value


def literal(text: str) -> str:
    """Text as an SQL literal, however the session that reads it takes backslashes."""
    quoted = text.replace("'", "''").replace("\\", "\\\\")
    return f"E'{quoted}'" if "\\" in text else f"'{quoted}'"


def key_text(row: str, types: Mapping[str, str]) -> str:
    """What spells the key of a row as its triggers do, from the types that are declared: times may have no zone."""
    values = (_time(row, name) if kind == _ZONED else _value(row, name, types) for name, kind in types.items())
    return f"pg_catalog.json_build_array({', '.join(values)})::pg_catalog.text"


def _time(row: str, column: str) -> str:
    value, kind = f"{row}.{POSTGRES.quote(column)}", f"{_ZONED!r}::pg_catalog.regtype"
    in_utc = f"pg_catalog.to_json(pg_catalog.timezone('UTC', {value}))"
    return f"case when pg_catalog.pg_typeof({value}) = {kind} then {in_utc} else pg_catalog.to_json({value}) end"
