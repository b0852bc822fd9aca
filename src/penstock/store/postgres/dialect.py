"""PostgreSQL's spelling of types, values and clauses."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

from penstock.schema.fields import Kind
from penstock.store.postgres.conditions import PostgresSpelling
from penstock.store.sql.dialect import Dialect

TRIGGER_FOUND = re.compile(r"foreign trigger on (\S+) ")  # the error that `find_trigger` raises
_ADVANCE_IDENTITY = """
select setval(sequence, greatest(nextval(sequence), (select max({column}) from {table})))
from (select pg_get_serial_sequence($1, $2)::regclass as sequence) as owned
where has_sequence_privilege(sequence, 'UPDATE')
"""
# A cast from text looks up the names of some types, and cuts off what others have no room for.
_AS_INPUT = "(select v from json_to_record(json_build_object('v', {0}::kind)) as given (v {1}))"
# The driver takes a month for 30 days, and refuses what is longer than all lengths of time of Python.
_WITHOUT_MONTHS = (
    "case when extract(year from {0}) = 0 and extract(month from {0}) = 0 then {0} "
    "when {0} is not null then interval '3000000 years' end"
)


def decode_datetime(value: datetime) -> datetime:
    """A point in time in UTC.

    The first and the last microsecond are kept as -infinity and infinity, which come back without a time zone, as
    columns of other programs may.
    """
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


def shortest(value: float) -> Decimal:
    """A float as a numeric column of another program holds it: the driver would write all digits of its binary form."""
    return Decimal(repr(value))


POSTGRES = Dialect(
    name="postgres",
    title="PostgreSQL",
    parameter="$",
    types={
        Kind.TEXT: 'text collate "C"',
        Kind.INTEGER: "bigint",
        Kind.REAL: "double precision",
        Kind.BOOLEAN: "boolean",
        Kind.BYTES: "bytea",
        Kind.DATETIME: "timestamp with time zone",
        Kind.DATE: "date",
        Kind.INTERVAL: "interval",
        Kind.DECIMAL: "numeric",
        Kind.UUID: "uuid",
        Kind.JSON: "jsonb",
        Kind.ENCRYPTED: 'character varying collate "C"',  # so that a push tells it from text
    },
    spelling=PostgresSpelling,
    # the driver's UUIDs are of a class of its own
    decode={Kind.DATETIME: decode_datetime, Kind.UUID: lambda value: UUID(int=value.int)},
    foreign={Kind.REAL: shortest},
    index_nulls=" nulls first",
    order_nulls={"asc": " nulls first", "desc": " nulls last"},
    casts={Kind.DATETIME: "timestamptz", Kind.DATE: "date"},
    schemas=True,
    given_identity=" overriding system value",
    advance_identity=_ADVANCE_IDENTITY,
    # Room on each page, where an update leaves the indexes alone: then mutations of different rows do not conflict.
    table_options=" with (fillfactor = 85)",
    # The row as it is once the lock is held, not as the snapshot shows it; named by the table.
    unless_each="to_regprocedure('penstock.each_' || md5((pg_identify_object("
    "'pg_class'::regclass, '{0}'::regclass, 0)).identity) || '()') is null",
    # A cast that raises. Deletes cascade by triggers of the server's own.
    find_trigger="select ('foreign trigger on {0} ' || tgname)::int from pg_trigger where tgrelid = '{1}'::regclass"
    " and (tgfoid in (1646, 1650, 1652) or not tgisinternal and not starts_with(tgname, '_penstock_'))",
    any_of="= any({0})",
    travel={
        Kind.TEXT: ("to_json({0}) #>> '{{}}'", _AS_INPUT.replace("kind", "text")),
        Kind.INTERVAL: (_WITHOUT_MONTHS, "{0}"),
        Kind.JSON: ("to_json({0})::text", _AS_INPUT.replace("kind", "json")),
    },
)
