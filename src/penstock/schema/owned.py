"""The types of columns that other programs own: which annotations hold them, and which values travel as text or JSON.

Owns the comparison of a declared column with the real one. Leaves the SQL by which values travel to the stores.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, get_args, get_origin

from pydantic import PydanticUserError, TypeAdapter
from pydantic.fields import FieldInfo

from penstock.schema.fields import PLAIN, Column, Kind, column_of, strip_optional
from penstock.schema.stored import StoredColumn, StoredTable
from penstock.schema.table import TableDefinition

ARRAY = "[]"
NUMERICS = "numeric[]"  # also of domains: their items are read as texts
NOTHING = "composite"  # the base of types whose values neither text nor one annotation gives back
_WORDS = {kind: annotation.__name__ for annotation, kind in PLAIN.items()} | {Kind.JSON: "dict[str, Any]"}
_JSON = ("json", "jsonb")
_TEXT = ("text", "character varying", "bpchar", "name", "citext", "enum")
_POSTGRES: dict[str, tuple[Kind, ...]] = {  # the first fits best
    **dict.fromkeys(_TEXT, (Kind.TEXT, Kind.JSON, Kind.ENCRYPTED)),
    **dict.fromkeys(("name", "enum"), (Kind.TEXT,)),
    **dict.fromkeys(("smallint", "integer", "bigint"), (Kind.INTEGER,)),
    **dict.fromkeys(("real", "double precision"), (Kind.REAL,)),
    **dict.fromkeys(("timestamp with time zone", "timestamp without time zone"), (Kind.DATETIME,)),
    **dict.fromkeys(_JSON, (Kind.JSON,)),
    "numeric": (Kind.DECIMAL, Kind.INTEGER, Kind.REAL),
    "boolean": (Kind.BOOLEAN,),
    "bytea": (Kind.BYTES,),
    "date": (Kind.DATE,),
    "interval": (Kind.INTERVAL, Kind.TEXT),
    "uuid": (Kind.UUID,),
    NOTHING: (),
}
# JSON has no form for these that both Python and PostgreSQL read, or loses a part of them.
_ITEMS: dict[str, tuple[Kind, ...]] = {
    **_POSTGRES,
    **dict.fromkeys(("bytea", "interval", *_JSON), ()),
    "timestamp without time zone": (Kind.TEXT,),
    "numeric": (Kind.DECIMAL, Kind.INTEGER),
}
_INEXACT = ("numeric", "real", "double precision")  # as Python reads numbers without an annotation
_TIME = ("time without time zone",)
_FORMATS = {
    **dict.fromkeys(("text", "character varying", "bpchar", "citext"), ""),
    **dict.fromkeys(_TIME, "^time$"),
    "inet": "^ip.*(address|interface|v.)$",
    "cidr": "^ip.*network$",
}

_NUMBERS = (Kind.INTEGER, Kind.REAL, Kind.DECIMAL, Kind.BOOLEAN, Kind.INTERVAL)
_TEXTS = (Kind.TEXT, Kind.DATETIME, Kind.DATE, Kind.UUID, Kind.DECIMAL, Kind.JSON, Kind.ENCRYPTED)
_SQLITE: tuple[tuple[str, tuple[Kind, ...]], ...] = (  # by words in the declared type, as SQLite reads them
    ("int", _NUMBERS),
    ("char|clob|text", _TEXTS),
    ("blob|binary", (Kind.BYTES, *(one for one in Kind if one is not Kind.UUID))),  # others write UUIDs as 16 bytes
    ("^any$|^$", tuple(Kind)),
    ("real|floa|doub", (Kind.REAL, Kind.DECIMAL)),
    ("datetime|timestamp", (Kind.DATETIME, Kind.TEXT, Kind.INTEGER, Kind.REAL)),
    ("date", (Kind.DATE, Kind.TEXT, Kind.INTEGER, Kind.REAL)),
    ("time", (Kind.TEXT, Kind.INTEGER, Kind.REAL, Kind.INTERVAL)),
    ("bool", (Kind.BOOLEAN, Kind.INTEGER)),
    ("num|dec|money", (Kind.DECIMAL, *_NUMBERS)),
    ("uuid|guid", (Kind.UUID, Kind.TEXT)),
    ("json", (Kind.JSON, Kind.TEXT)),
    ("", tuple(Kind)),
)


def travelling(definition: TableDefinition, stored: StoredTable | None) -> dict[str, str]:
    """The types of columns whose values go as text or JSON, as PostgreSQL's driver has another form for them.

    On SQLite, how the values of columns are spelled where it is not as penstock spells them.
    """
    pairs = [(one, stored and stored.columns.get(one.name)) for one in definition.columns]
    return {
        column.name: (one.base if one.base == NUMERICS else one.plain) if one.base else _spelling(column, one.type)
        for column, one in pairs
        if one and (_travels(column, one) if one.base else _spelling(column, one.type))
    }


def _spelling(column: Column, declared: str) -> str:
    """The spelling of a column of SQLite by its declared type. SQLAlchemy declares `DATETIME`, Django `datetime`."""
    if column.kind is Kind.UUID:
        return "hex" if re.search(r"char\w*\s*\(\s*32\s*\)", declared, re.IGNORECASE) else ""
    if column.kind is Kind.DATETIME and re.match("datetime|timestamp", declared, re.IGNORECASE):
        return "short" if declared.islower() else "full"
    return ""


def _travels(column: Column, stored: StoredColumn) -> bool:
    if column.kind is not Kind.JSON:
        return stored.base not in _POSTGRES or stored.base == "interval"
    return stored.base not in {*_JSON, *_TEXT} or (stored.base in _TEXT and _format(column) is not None)


def misfit(column: Column, stored: StoredColumn) -> str | None:
    """The annotation that fits the real type better; an empty one if none does, and None if the declared one fits."""
    if not stored.base:
        declared, told, _ = stored.type.lower().partition(" collate ")[0].partition(" /*")
        kinds = next(kinds for words, kinds in _SQLITE if re.search(words, declared))
        is_text = column.kind is Kind.JSON and not told and _format(column) is not None
        return None if column.kind in (*kinds, Kind.BYTES) and not is_text else _WORDS[kinds[0]]
    return None if _fits(column, stored.base) else _fitting(stored.base)


def _fits(column: Column, base: str, *, item: bool = False) -> bool:
    if base.endswith(ARRAY):
        base, found = base.removesuffix(ARRAY), column
        while (inner := _item(found)) is not None:
            found = inner  # arrays of any number of dimensions have one type
        return (found is not column or _annotation(found) is Any) and _fits(found, base, item=True)
    kinds = (_ITEMS if item else _POSTGRES).get(base, (Kind.TEXT,))
    if column.kind is not Kind.JSON:
        return column.kind in kinds
    if item and _annotation(column) is Any:
        return bool(kinds) and base not in _INEXACT
    if base in _JSON or (format_ := _format(column)) is None:
        return Kind.JSON in kinds and not (item and base in _TEXT)
    return base in _FORMATS and re.search(_FORMATS[base], format_) is not None


def _fitting(base: str) -> str:
    item = base.removesuffix(ARRAY)
    kinds = (_POSTGRES if item == base else _ITEMS).get(item, (Kind.TEXT,))
    word = "time" if item in _TIME else _WORDS[kinds[0]] if kinds else ""
    return f"list[{word}]" if word and item != base else word


def _item(column: Column) -> Column | None:
    """A column of what the lists of a column hold; None if it holds no lists."""
    annotation = _annotation(column)
    args, kind = get_args(annotation) or (Any,), get_origin(annotation) or annotation
    if kind not in {list, tuple, Sequence} or (kind is tuple and args[1:] != (...,)):
        return None
    return column_of("", column.name, FieldInfo.from_annotation(args[0]))


def _annotation(column: Column) -> Any:
    return strip_optional(column.info.annotation)[0] if column.info else None


def _format(column: Column) -> str | None:
    """The format of texts as JSON schemas name it, of an annotation whose values are texts in JSON; None of others."""
    try:
        schema = TypeAdapter(_annotation(column)).json_schema()
    except PydanticUserError:
        return None
    return str(schema.get("format", "")) if schema.get("type") == "string" else None
