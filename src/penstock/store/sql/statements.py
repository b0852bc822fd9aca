"""SQL on users' tables, built from their definitions: one shape of read, and insert, update, delete.

Owns the text of these statements for both stores; the dialect holds the differences. Each is built once per table and
shape. Parameters come in the order of their numbers, as SQLite does not number them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from functools import partial
from itertools import chain, repeat
from math import copysign
from typing import Any, Literal, NamedTuple

from penstock.errors import ValueInvalid
from penstock.schema.fields import Column, Kind
from penstock.schema.index import Index
from penstock.schema.owned import NUMERICS
from penstock.schema.table import Table, TableDefinition
from penstock.store.session import Row, Statement
from penstock.store.sql.dialect import ALL, UNFIT, Convert, Dialect, Where, placeholder
from penstock.values import WORD_BYTES, text_bytes, total_bytes

RowDecoder = Callable[[Sequence[Row]], list[dict[str, Any]]]
Comparison = Literal["=", ">", ">=", "<", "<=", "is null", "is not null"]
BOUNDED_LIMIT = 256
_PIECE_BYTES = 4 * 1024 * 1024
_LIKELY_ROW_BYTES = 4096
_LEAST_PIECE, _LARGEST_PIECE = 16, 4096
_TEXTS, _INDEXED_TEXTS = {Kind.TEXT, Kind.JSON, Kind.ENCRYPTED}, {Kind.TEXT, Kind.BYTES}
_MOST_STATEMENTS = 2048  # conditions of rules may hold values of their callers


class Condition(NamedTuple):
    """A comparison of one column with one parameter, or with NULL."""

    column: str
    comparison: Comparison

    @property
    def takes_value(self) -> bool:
        """Whether it needs a parameter."""
        return not self.comparison.startswith("is")


class TableStatements:
    """The statements of one table in one dialect, and the conversion of its rows."""

    def __init__(self, definition: TableDefinition, dialect: Dialect, types: Mapping[str, str] | None = None) -> None:
        self.definition = definition
        self.dialect = dialect
        self.table = dialect.table(definition.name)
        self.generated: frozenset[str] = frozenset()  # columns that are formulas over others, which nobody writes
        found, spelled = types or {}, dialect.spelled
        self._spelled = {name: spelled[one] for name, one in found.items() if spelled}
        self._travelling = {} if spelled else found  # the types of columns whose values travel as text or JSON
        self.columns = self._read(column.name for column in definition.columns)
        self._cache: dict[Any, Statement] = {}
        self._encoders = [
            self._spelled.get(column.name) or _encoding(definition, column, dialect) for column in definition.columns
        ]
        self._names = [column.name for column in definition.columns]
        reals = () if dialect.minus_zero else definition.columns
        self._signless = {column.name for column in reals if column.kind is Kind.REAL}
        self._decodings = [_decoding(definition, column, dialect) for column in definition.columns]
        self.decode_fields = _decoder(self._decodings)
        self._parts: dict[tuple[str, ...], RowDecoder] = {}
        self._texts = [place for place, column in enumerate(definition.columns) if column.kind in _TEXTS]
        self._blobs = [place for place, column in enumerate(definition.columns) if column.kind is Kind.BYTES]
        self._words = len(definition.columns) - len(self._texts) - len(self._blobs)
        self._row_bytes = float(_LIKELY_ROW_BYTES)
        self._unique = tuple(index for index in definition.indexes.values() if index.unique)
        self.unique_columns = {name for index in self._unique for name in index.columns}
        self.indexed_text = [
            [definition.positions[name] for name in index.columns if definition.column(name).kind in _INDEXED_TEXTS]
            for index in definition.indexes.values()
        ]

    # ----- values

    def encode(self, values: Sequence[Any]) -> list[Any]:
        """A whole row of neutral values to write, as the driver takes it."""
        for column in self._signless:
            self._check_sign(column, values[self.definition.positions[column]])
        return [
            value if convert is None or value is None else convert(value)
            for convert, value in zip(self._encoders, values, strict=True)
        ]

    def encode_written(self, column: str, value: Any) -> Any:
        """A neutral value of one column to write, as the driver takes it."""
        if column in self._signless:
            self._check_sign(column, value)
        return self.encode_one(column, value)

    def _check_sign(self, column: str, value: float | None) -> None:
        if value == 0 and copysign(1.0, value) < 0:
            raise ValueInvalid(
                f"{self.definition.name}.{column}: a column of {self.dialect.title} cannot hold minus zero.",
                fix="Add 0.0 to the number, or use 0.0.",
            )

    def encode_one(self, column: str, value: Any) -> Any:
        """A neutral value of one column to compare with, as the driver takes it."""
        convert = self._encoders[self.definition.positions[column]]
        return value if convert is None or value is None else convert(value)

    def ends_of(self, column: str, value: Any) -> tuple[Any, Any]:
        """The least and the greatest form of a neutral value: other programs leave out zeros at the end of a time."""
        found = self.encode_one(column, value)
        if column not in self._spelled or not isinstance(value, datetime):
            return found, found
        full = self.dialect.spelled["full"](value)
        return full.rstrip("0").rstrip("."), full

    def place_of(self, row: Row, order: Sequence[str]) -> list[Any]:
        """The values of a row in the columns of an order, as the driver takes them again.

        The driver gives times without zone, which it takes for local time, and UUIDs of a class of its own.
        """
        kinds, values = self.definition.column, self.definition.positions
        return [
            value if (kind := kinds(name).kind) in self.dialect.encode else self.dialect.decode_value(kind, value)
            for name, value in ((name, row[values[name]]) for name in order)
        ]

    def misfit(self, row: Row) -> str | None:
        """The column of a row whose value cannot be read as its kind; None if all can."""
        for (name, convert), value in zip(self._decodings, row, strict=True):
            try:
                if value is not None and convert is not None:
                    convert(value)
            except UNFIT:
                return name
        return None

    def key_args(self, key: Any) -> list[Any]:
        """A key as `TableDefinition.encode_key` gives it, as the driver takes its values."""
        values = self.definition.key_values(key)
        return [self.encode_one(name, value) for name, value in zip(self.definition.key, values, strict=True)]

    def note_size(self, rows: int, size: int) -> None:
        """Learn the size of this table's rows from rows that were read: larger ones count at once."""
        if rows:
            self._row_bytes = max(size / rows, 0.9 * self._row_bytes)

    def piece_rows(self, count: int) -> int:
        """The number of `count` rows to read at once, so that they likely have no more than 4 MiB."""
        likely = int(_PIECE_BYTES / self._row_bytes)
        return count if count <= likely else max(_LEAST_PIECE, min(likely, _LARGEST_PIECE))

    def bytes_of(self, rows: Sequence[Row]) -> int:
        """The approximate size of rows, as `values.total_bytes` counts: column by column, which is quicker."""
        try:
            texts = "".join([row[place] or "" for place in self._texts for row in rows])
            blobs = sum([len(row[place] or b"") for place in self._blobs for row in rows])
        except TypeError:  # something else stands in a column of texts
            return total_bytes(chain.from_iterable(rows))
        return text_bytes(texts) + blobs + WORD_BYTES * self._words * len(rows)

    # ----- statements

    def get(self) -> Statement:
        """One row by its key."""
        return self._build_once(
            "get", lambda: f"select {self.columns} from {self.table} where {self._has_key(1)}", reads=True
        )

    def get_many(self, keys: Sequence[Any], *, encoded: bool = False) -> tuple[Statement, list[Any]]:
        """The rows with any of some keys, and its parameters.

        The keys are as `TableDefinition.encode_key` gives them; encoded ones are lists of values as the driver takes
        them.
        """
        sql = f"select {self.columns} from {self.table} where "
        if len(self.definition.key) == 1 and self.dialect.any_of:
            sql += self._is_any_key()
            return self._build_once("get_many", lambda: sql, reads=True), [
                [key[0] for key in keys] if encoded else [*keys]
            ]
        count = 1 << (len(keys) - 1).bit_length()  # so that there are few such statements
        each = (key if encoded else self.key_args(key) for key in (*keys, *repeat(keys[-1], count - len(keys))))
        args = [value for values in each for value in values]
        return self._build_once(("get_many", count), lambda: f"{sql}{self._has_any_key(count)}", reads=True), args

    def part(self, names: tuple[str, ...], *, many: bool = False) -> tuple[Statement, RowDecoder]:
        """Some columns of the row with a key, and their decoder; or of many, whose keys are one parameter."""
        which = self._is_any_key() if many else self._has_key(1)
        sql = f"select {self._read(names)} from {self.table} where {which}"
        decode = self._parts.get(names)
        if decode is None:
            decode = self._parts[names] = _decoder([self._decodings[self.definition.positions[one]] for one in names])
        return self._build_once(("part", names, many), lambda: sql, reads=True), decode

    def insert(self, names: tuple[str, ...] | None = None) -> Statement:
        """A row of all columns, or of some; returns its columns as they are stored.

        With a unique index it returns no row instead of failing, so that the transaction can go on.
        """

        def build() -> str:
            columns = self._names if names is None else names
            if not columns:
                return f"insert into {self.table} default values returning {self.columns}"
            listed = ", ".join(map(self.dialect.quote, columns))
            values = ", ".join(self._bind(self.definition.column(name), n) for n, name in enumerate(columns, 1))
            sql = f"insert into {self.table} ({listed}) values ({values})"
            if not self.definition.managed:
                return f"{sql} returning {self.columns}"
            return f"{sql} on conflict do nothing" if self._unique else sql

        return self._build_once(("insert", names), build)

    def load(self) -> Statement:
        """A row of all columns, its key and a user-owned identity included; fails for a key that is there already."""

        def build() -> str:
            listed = ", ".join(map(self.dialect.quote, self._names))
            values = ", ".join(self._bind(column, n) for n, column in enumerate(self.definition.columns, 1))
            given = "" if self.definition.managed else self.dialect.given_identity
            return f"insert into {self.table} ({listed}){given} values ({values})"

        return self._build_once("load", build)

    def advance(self, column: str) -> Statement | None:
        """Let the database's own numbers of a column go on after its greatest value; None if they do by themselves."""
        template = self.dialect.advance_identity
        if not template:
            return None
        sql = template.format(table=self.table, column=self.dialect.quote(column))
        return self._build_once(("advance", column), lambda: sql, bounded=False)

    def clear(self) -> Statement:
        """All rows go."""
        return self._build_once("clear", lambda: f"delete from {self.table}", bounded=False)

    def update(self, names: tuple[str, ...]) -> Statement:
        """Some columns of the row with a key; the key is the last parameters."""

        def build() -> str:
            sets = ", ".join(
                f"{self.dialect.quote(name)} = {self._bind(self.definition.column(name), n)}"
                for n, name in enumerate(names, 1)
            )
            returning = "" if self.definition.managed else f" returning {self.columns}"
            return f"update {self.table} set {sets} where {self._has_key(len(names) + 1)}{returning}"

        statement = self._build_once(("update", names), build)
        if statement.many is None and self.dialect.any_of and self.definition.managed:
            statement = self._cache["update", names] = replace(statement, many=Statement(self._update_many(names)))
        return statement

    def _update_many(self, names: tuple[str, ...]) -> str:
        """Some columns of rows with keys of their own, of one column."""
        given = [*names, *self.definition.key]
        kinds = [self.dialect.types[self.definition.column(name).kind].partition(" collate")[0] for name in given]
        lists = ", ".join(f"{self._p(number)}::{kind}[]" for number, kind in enumerate(kinds, 1))
        named = ", ".join(f"v{number}" for number in range(1, len(given) + 1))
        sets = ", ".join(f"{self.dialect.quote(name)} = given.v{number}" for number, name in enumerate(names, 1))
        key, last, within_quotes = self._key(), len(given), self.table.replace("'", "''")
        return (
            f"update {self.table} as changed set {sets} from unnest({lists}) as given ({named}) "
            f"where changed.{key} = given.v{last} and changed.{key} = any({self._p(last)})"
            f" and {self.dialect.unless_each.format(within_quotes)}"
        )

    def find_trigger(self) -> Statement:
        """Look for a trigger on the table that may change rows behind penstock's back."""
        name, table = (text.replace("'", "''") for text in (self.definition.name, self.table))
        return self._build_once("find_trigger", lambda: self.dialect.find_trigger.format(name, table))

    def delete(self) -> Statement:
        """The row with a key."""
        return self._build_once("delete", lambda: f"delete from {self.table} where {self._has_key(1)}")

    def scan(
        self,
        conditions: tuple[Condition, ...],
        order: tuple[str, ...],
        direction: str,
        *,
        limit: int | None,
        indexed: bool,
        where: Where = ALL,
    ) -> Statement:
        """Rows that meet all conditions, in the order of an index; `where` is one more. The limit comes last."""

        def build() -> str:
            sql = f"select {self.columns} from {self.table}{self._where(conditions, where)}"
            sql += " order by " + ", ".join(self._order(name, direction) for name in order)
            if limit is not None:
                sql += f" limit {self._after(conditions, where)}"
            return sql

        bounded = indexed and limit is not None and limit <= BOUNDED_LIMIT and not where.sql
        key = (conditions, order, direction, limit is None, bounded, where.sql)
        return self._build_once(key, build, bounded=bounded, reads=True)

    def aggregate(
        self,
        conditions: tuple[Condition, ...],
        what: str,
        column: str | None,
        groups: tuple[str, ...],
        where: Where = ALL,
    ) -> Statement:
        """Count, sum, min or max over rows that meet all conditions; in groups, the limit is the last parameter."""

        def build() -> str:
            grouped = ", ".join(map(self.dialect.quote, groups))
            listed = self._read(groups) + ", " if groups else ""
            sql = f"select {listed}{self._aggregate(what, column)} from {self.table}"
            sql += self._where(conditions, where)
            if not groups:
                return sql
            return f"{sql} group by {grouped} order by {grouped} limit {self._after(conditions, where)}"

        key = ("aggregate", conditions, what, column, groups, where.sql)
        return self._build_once(key, build, bounded=False, reads=True)

    def count(self) -> Statement:
        """The number of rows, up to a limit."""
        sql = f"select count(*) from (select 1 from {self.table} limit {self._p(1)}) as counted"
        return self._build_once("count", lambda: sql, bounded=False, reads=True)

    # ----- parts

    def _build_once(self, key: Any, build: Any, *, bounded: bool = True, reads: bool = False) -> Statement:
        statement = self._cache.get(key)
        if statement is None:
            if len(self._cache) >= _MOST_STATEMENTS:
                self._cache.clear()
            statement = self._cache[key] = Statement(build(), bounded, reads, of=self.definition)
        return statement

    def _key(self) -> str:
        return ", ".join(map(self.dialect.quote, self.definition.key))

    def _has_key(self, first: int) -> str:
        """The condition that a row has the key whose values begin with a parameter."""
        columns = enumerate(self.definition.key_columns, first)
        return " and ".join(f"{self.dialect.quote(column.name)} = {self._bind(column, n)}" for n, column in columns)

    def _has_any_key(self, count: int) -> str:
        """The condition that a row has one of this many keys."""
        return " or ".join(self._has_key(1 + place * len(self.definition.key)) for place in range(count))

    def _is_any_key(self) -> str:
        """The condition that a row has one of the keys, of one column, in the first parameter."""
        column = self.definition.key_columns[0]
        cast = None if self.definition.managed else self.dialect.casts.get(column.kind)
        casts = f"::{cast}[]" if cast else ""
        if (travelling := self._travelling.get(column.name)) is not None:
            casts = f"::text[]::{travelling}[]"
        return f"{self._key()} {self.dialect.any_of.format(self._p(1) + casts)}"

    def _read(self, names: Iterable[str]) -> str:
        """Columns as they are read. Other names keep travelling columns apart from the columns in an order."""
        return ", ".join(
            f"{self._travels(name, self.dialect.quote(name))} as {self.dialect.quote(f'{name}~')}"
            if name in self._travelling
            else self.dialect.quote(name)
            for name in names
        )

    def _travels(self, name: str, value: str) -> str:
        if name not in self._travelling:
            return value
        value += "::text[]" if self._travelling[name] == NUMERICS else ""  # JSON's numbers are read as floats
        return self.dialect.travel[self.definition.column(name).kind][0].format(value)

    def _p(self, number: int) -> str:
        return placeholder(self.dialect.parameter, number)

    def _bind(self, column: Column, number: int) -> str:
        if (travelling := self._travelling.get(column.name)) is not None:
            return self.dialect.travel[column.kind][1].format(self._p(number), travelling)
        cast = None if self.definition.managed else self.dialect.casts.get(column.kind)
        return f"{self._p(number)}::{cast}" if cast else self._p(number)

    def _after(self, conditions: tuple[Condition, ...], where: Where) -> str:
        """The parameter that follows those of conditions."""
        return self._p(1 + sum(condition.takes_value for condition in conditions) + len(where.args))

    def _where(self, conditions: tuple[Condition, ...], where: Where) -> str:
        parts, number = [], 0
        for condition in conditions:
            name = self.dialect.quote(condition.column)
            if condition.takes_value:
                number += 1
                value = self._bind(self.definition.column(condition.column), number)
                parts.append(f"{name} {condition.comparison} {value}")
            else:
                parts.append(f"{name} {condition.comparison}")
        if where.sql:
            first, *rest = where.sql
            parts.append(first + "".join(self._p(number + n) + piece for n, piece in enumerate(rest, 1)))
        return " where " + " and ".join(parts) if parts else ""

    def _order(self, name: str, direction: str) -> str:
        nulls = self.dialect.order_nulls.get(direction, "") if self.definition.column(name).optional else ""
        return f"{self.dialect.quote(name)} {direction}{nulls}"

    def _aggregate(self, what: str, column: str | None) -> str:
        if column is None:
            return "count(*)"
        kind = self.definition.column(column).kind
        template = self.dialect.sum.get(kind, "sum({0})") if what == "sum" else f"{what}({{0}})"
        return self._travels(column, template.format(self.dialect.quote(column)))


def _encoding(definition: TableDefinition, column: Column, dialect: Dialect) -> Convert | None:
    """The function from the neutral form of a value to the driver's."""
    encode = dialect.encode.get(column.kind)
    if not definition.managed:
        return dialect.foreign.get(column.kind, encode)
    if encode is None or column.kind is not Kind.DECIMAL:
        return encode
    return str if column.long else partial(_short, f"{definition.name}.{column.name}", encode)


def _short(where: str, encode: Convert, value: Any) -> Any:
    """A decimal as a number; `ValueInvalid` if it has more digits than a number keeps."""
    found = encode(value)
    if isinstance(found, str):
        raise ValueInvalid(
            f"{where}: {value} has more digits than a number of SQLite's keeps, which is 15.",
            fix="Declare the field with more, such as Field(max_digits=40): then it is stored as text.",
        )
    return found


class Statements:
    """The statements of all tables in one dialect."""

    def __init__(self, dialect: Dialect, reactive: Iterable[str] = ()) -> None:
        self.dialect = dialect
        self.reactive = frozenset(reactive)  # the tables of this program's reactive tasks and outboxes
        self.tables: tuple[str, ...] = ()  # all tables of this program
        self.ruled = False  # whether one of them has rules
        self.travelling: Mapping[str, Mapping[str, str]] = {}  # by table, the types that `TableStatements` takes
        self.generated: Mapping[str, frozenset[str]] = {}  # by table, likewise
        self.ordered: frozenset[str] = frozenset()  # those in which each change is a message of any program's outbox
        # managed tables with triggers of somebody else's, which may change the row, and any other one
        self.triggered: frozenset[str] = frozenset()
        self.foreign: Mapping[type[Table], str] = {}  # tables of components, as their apps declare them
        self._tables: dict[type[Table], TableStatements] = {}

    def of(self, table: type[Table], definition: TableDefinition) -> TableStatements:
        """The statements of one table."""
        found = self._tables.get(table)
        if found is None:
            found = self._tables[table] = TableStatements(
                definition, self.dialect, self.travelling.get(definition.name)
            )
            found.generated = self.generated.get(definition.name, found.generated)
        return found

    def known(self, names: Collection[str]) -> list[TableStatements]:
        """The statements of tables with these names."""
        return [one for one in self._tables.values() if one.definition.name in names]


def index_columns(definition: TableDefinition, index: Index, dialect: Dialect) -> list[str]:
    """The columns of an index in SQL: its own, then the key, so that rows of equal columns keep one order."""
    names = index.columns if index.unique else definition.order_of(index)
    return [dialect.quote(name) + (dialect.index_nulls if definition.column(name).optional else "") for name in names]


def _decoding(definition: TableDefinition, column: Column, dialect: Dialect) -> tuple[str, Convert | None]:
    decode = dialect.decode.get(column.kind)
    if not definition.managed:
        decode = {Kind.REAL: _real, Kind.BYTES: _bytes}.get(column.kind, decode)
    return column.name, _chain(decode, column.decode)


def _real(value: Any) -> Any:
    """A number that a float holds."""
    spelled = repr(float(value)) if isinstance(value, int | Decimal) else "nan"
    if spelled != "nan" and Decimal(spelled) != value:
        raise ValueError(f"a float has not all digits of {value}; annotate it Decimal or int")
    return value


def _bytes(value: Any) -> Any:
    """Bytes, and no text, which pydantic would take for their base64."""
    if isinstance(value, str):
        raise TypeError("it is a text; annotate it str")
    return value


def _decoder(columns: list[tuple[str, Convert | None]]) -> RowDecoder:
    """A function from rows to fields, written out for its columns: every row of every read passes through it."""
    values = [f"v{place}" for place in range(len(columns))]
    fields = [
        f"{name!r}: {value}" if convert is None else f"{name!r}: None if {value} is None else convert_{value}({value})"
        for (name, convert), value in zip(columns, values, strict=True)
    ]
    source = f"lambda rows: [{{{', '.join(fields)}}} for {', '.join(values)}, in rows]"
    converts = {f"convert_v{place}": convert for place, (_, convert) in enumerate(columns)}
    return eval(source, converts)  # type: ignore[no-any-return]  # noqa: S307 - column names stand in it as literals


def _chain(first: Convert | None, second: Convert | None) -> Convert | None:
    if first is None or second is None:
        return first or second
    return lambda value: second(first(value))
