"""How PostgreSQL spells what penstock says."""

from __future__ import annotations

from penstock.schema.fields import Kind
from penstock.store.dialect import Dialect

POSTGRES = Dialect(
    name="postgres",
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
    },
    index_nulls=" nulls first",
    order_nulls={"asc": " nulls first", "desc": " nulls last"},
    casts={Kind.DATETIME: "timestamptz"},
    schemas=True,
    given_identity=" overriding system value",
)
