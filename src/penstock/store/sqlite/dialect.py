"""SQLite's spelling of types, values and clauses."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

from penstock.schema.fields import Kind
from penstock.store.sql.dialect import Dialect
from penstock.store.sqlite.conditions import LiteSpelling

_WIDE_SUM = "penstock_wide_integer(sum({0} >> 32), sum({0} & 4294967295))"  # sum alone overflows at 64 bits
_INFINITIES = ('"\\u0049nfinity"', '"\\u002dInfinity"')
_MICROSECOND = timedelta(microseconds=1)
_RESPELL = (
    (r"\bpenstock\.", "penstock_"),  # there are no schemas
    (r"= any\((:\w+)::uuid\[\]\)", r"in (select penstock_bytes(value) from json_each(\1))"),
    (r"= any\((:\w+)(::\w+\[\])?\)", r"in (select value from json_each(\1))"),  # lists come as JSON
    (r"\bselect (:\w+(?:::\w+)?, )?(?:t\.)?\* from unnest\(([^()]*)\)(?: as t)?", r"values (\1\2)"),  # row by row
    (r"\bunnest\((:\w+)(::\w+\[\])?\) (\w+) \((\w+)\)", r"(select value as \4 from json_each(\1)) \3"),
    (  # rows come as one list
        r"\bunnest\(:tasks::integer\[\], :keys::text\[\]\) as (\w+) \((\w+), (\w+)\)",
        r"(select value ->> 0 as \2, value ->> 1 as \3 from json_each(:rows)) \1",
    ),
    (r"::jsonb -> -1 ->> '", " ->> '$[#-1]."),
    (r"\barray\(select (\S+) from", r"(select json_group_array(\1) from"),
    (  # times are text
        r"\(extract\(epoch from (\S+) - (\S+)\) \* 1000000\)",
        r"(penstock_microseconds(\1) - penstock_microseconds(\2))",
    ),
    (r"::[a-z]+(\[\])?", ""),  # parameters need no type
    (r" for (no key update|update|key share|share)( of \w+)?( skip locked)?", ""),  # there is one writer
    (r"finished_job_long\b", "finished_job"),  # all finished jobs are in one table
    (r" and f\.day = -1", ""),
    (r"/\* by id \*/ ", "+"),  # so that the index of the column is not taken
    (r"\bselect from\b", "select 1 from"),
    (r"\bgreatest\(", "max("),
    (r"\bleast\(", "min("),
    (r"\bstrpos\(", "instr("),
)


def _is_json(value: object) -> bool:
    """Whether a value is a number as penstock writes it to JSON: greater floats have an exponent there."""
    return isinstance(value, int) or (isinstance(value, float) and abs(value) < 10**16)


def encode_datetime(value: datetime) -> str:
    """A point in time as text of fixed width, so that its order is that of time: 2026-11-21T09:00:00.000000Z."""
    return value.astimezone(UTC).isoformat(timespec="microseconds")[:26] + "Z"


def time_texts() -> Callable[[datetime], str]:
    """A writer of times; many are the same."""
    known: dict[datetime, str] = {}
    return lambda time: known.get(time) or known.setdefault(time, encode_datetime(time))


def _naive(timespec: str) -> Callable[[datetime], str]:
    """A point in time as other programs write it: in UTC without a zone, with so much behind the seconds."""
    return lambda value: value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", timespec)


def number_or_text(value: Decimal) -> float | str:
    """A decimal as a float if that has all its digits, as it has of up to 15, and otherwise as text."""
    number = float(value)
    return number if Decimal(repr(number)) == value else str(value)


def decimal_of(value: str | float) -> Decimal:
    """A decimal as it is stored: of a float, its shortest form."""
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 10**sys.float_info.dig
    return Decimal(int(value)) if is_whole else Decimal(str(value))


def read_spelled(spelled: str) -> str | bytes | float:
    """The value of a string in captured JSON, as `store.sqlite.capture` spells it. SQLite ends text at NUL there."""
    text: str = json.loads(spelled)
    if spelled.startswith('"\\u005cx'):
        return bytes.fromhex(text[2:])
    return float(text) if spelled in _INFINITIES else text


def _interval(value: float | str) -> timedelta:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{value} is no whole number of microseconds")
    return timedelta(microseconds=int(value))


SQLITE = Dialect(
    name="sqlite",
    table_options=" strict",
    find_trigger="select 1 from sqlite_schema where type = 'trigger' and tbl_name = '{0}' collate nocase"
    " and name not like '\\_penstock\\_%' escape '\\' limit 1",
    title="SQLite",
    minus_zero=False,
    parameter="?",
    types={
        Kind.TEXT: "TEXT",
        Kind.INTEGER: "INTEGER",
        Kind.REAL: "REAL",
        Kind.BOOLEAN: "INTEGER",
        Kind.BYTES: "BLOB",
        Kind.DATETIME: "TEXT",
        Kind.DATE: "TEXT",
        Kind.INTERVAL: "INTEGER",
        Kind.DECIMAL: "REAL",
        Kind.UUID: "TEXT",
        Kind.JSON: "TEXT",
        Kind.ENCRYPTED: "TEXT",
    },
    spelling=LiteSpelling,
    encode={
        Kind.BOOLEAN: int,
        Kind.DATETIME: encode_datetime,
        Kind.DATE: date.isoformat,
        Kind.INTERVAL: lambda value: value // _MICROSECOND,
        Kind.DECIMAL: number_or_text,
        Kind.UUID: str,
    },
    decode={
        Kind.BOOLEAN: {0: False, 1: True}.__getitem__,
        Kind.DATETIME: datetime.fromisoformat,
        Kind.DATE: date.fromisoformat,
        Kind.INTERVAL: _interval,
        Kind.DECIMAL: decimal_of,
        Kind.UUID: UUID,
        Kind.JSON: lambda value: repr(value) if _is_json(value) else value,  # a number, in a column of type JSON
    },
    foreign={Kind.DECIMAL: str},
    spelled={"hex": lambda value: value.hex, "full": _naive("microseconds"), "short": _naive("auto")},
    given=read_spelled,
    long_type="TEXT /* decimal */ collate penstock_decimal",
    respell=tuple((re.compile(pattern), words) for pattern, words in _RESPELL),
    sum={Kind.DECIMAL: "penstock_decimal_sum({0})", Kind.INTEGER: _WIDE_SUM, Kind.INTERVAL: _WIDE_SUM},
)
