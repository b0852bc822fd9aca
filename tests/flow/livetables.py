"""Tables, queries and writers that are made up from a seed, for `flow.livefuzz`: every kind of column and of query.

Values are few, so that rows are often equal, and odd ones come from other programs only.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import sqlite3
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import MAX_PREC, Context, Decimal
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import psycopg
from pydantic import Field

from penstock import Index, MutationCtx, Page, PaginationOptions, PenstockError, QueryCtx, SearchIndex, Table
from penstock.clock import Random
from penstock.schema.rules import Rules
from penstock.schema.table import definition_of
from penstock.store.sqlite.dialect import SQLITE
from penstock.store.sqlite.functions import compare_decimals
from penstock.testing import TestApp
from penstock.transaction.segments import Range

_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Side(enum.Enum):
    """A column of choices."""

    A = "a"
    B = "b"
    C = "C"


class Sort(NamedTuple):
    """A sort of column: its values, its SQL types in tables of other programs, and what only these write there."""

    annotation: Any
    values: list[Any]
    sqlite: list[str]
    postgres: list[str]
    odd_sqlite: list[str] = []  # noqa: RUF012 - of a tuple
    odd_postgres: list[str] = []  # noqa: RUF012 - of a tuple


SORTS = {
    "text": Sort(
        str,
        ["", "a", "A", "b", "B", "ä", "aa", "z\U0001f600", "ab c", "b "],
        ["text", "text collate nocase", "text collate rtrim", "varchar(9)"],
        ["text", "varchar(9)", "char(4)", "text collate nocase"],
        ["5", "x'61'"],
    ),
    "integer": Sort(
        int,
        [-5, 0, 1, 7, 2**40],
        ["integer", "numeric", "int"],
        ["bigint", "numeric", "bigint", "numeric"],
        ["'x'", "1.5", "'7'"],
    ),
    "real": Sort(
        float,
        [0.0, 1.5, -2.25, 1e300, 0.1],
        ["real", "numeric"],
        ["double precision", "numeric", "real"],
        ["'x'", "9e999"],
        ["'NaN'", "'Infinity'"],
    ),
    "boolean": Sort(bool, [False, True], ["integer", "boolean"], ["boolean"], ["2", "'x'"]),
    "bytes": Sort(bytes, [b"", b"\0", b"a", b"\xff\x01"], ["blob"], ["bytea"], ["'a'"]),
    "time": Sort(
        datetime,
        [_NOON + timedelta(microseconds=step) for step in (0, 1, 10**9, -(10**12), 10**6)],
        ["text", "datetime"],
        ["timestamptz", "timestamp"],
        ["'2026-01-01 12:00:00'", "'2026-01-01T13:00:00+01:00'", "'2026-01-01T12:00:00Z'", "5"],
        ["'infinity'", "'-infinity'"],
    ),
    "day": Sort(
        date,
        [date(1999, 12, 31), date(2026, 1, 1), date(2026, 1, 2)],
        ["text", "date"],
        ["date"],
        ["'2026-1-1'", "'2026-01-01 '"],
        ["'infinity'"],
    ),
    "span": Sort(
        timedelta,
        [timedelta(0), timedelta(days=1), timedelta(hours=-5), timedelta(microseconds=3)],
        ["integer"],
        ["interval"],
        ["1.0", "'x'"],
        ["'24:00:00'", "'1 mon'", "'30 days'", "'1 day -1 hour'"],
    ),
    "decimal": Sort(
        Decimal,
        [Decimal(text) for text in ("0", "-1.5", "1.50", "0.1", "1e10", "123456.789")],
        ["numeric", "real", "text"],
        ["numeric", "numeric(20, 3)"],
        ["'x'", "'1.5'"],
        ["'NaN'", "1.500"],
    ),
    "long": Sort(
        Annotated[Decimal, Field(max_digits=40)],
        [Decimal(text) for text in ("0", "-1.5", "1.5000000000000001", "1.50", "9999999999999999.99")],
        ["numeric", "text"],
        ["numeric"],
        ["'01.5'", "'1.5'"],
        ["'NaN'", "1.500"],
    ),
    "uuid": Sort(
        UUID,
        [UUID(int=0), UUID(int=1), UUID(int=2**127 + 10)],
        ["text"],
        ["uuid"],
        ["'80000000-0000-0000-0000-00000000000A'", "'80000000000000000000000000000a00'"],
    ),
    "side": Sort(Side, list(Side), ["text", "text collate nocase"], ["text", "varchar(3)", "side"], ["'A'"]),
    "choice": Sort(Literal[1, 2, 3], [1, 2, 3], ["integer"], ["integer", "smallint"], ["4"], ["4"]),
    "json": Sort(list[int], [[], [1], [1, 2]], ["text"], ["jsonb"], ["'[1.0]'"], ["'[1.0]'"]),
}


class Made(NamedTuple):
    """A table that was made up: its class, the sorts of its columns, and the SQL of another program that makes it."""

    table: Any
    sorts: dict[str, Sort]
    optional: dict[str, bool]
    created: list[str]
    said: str

    @property
    def columns(self) -> list[str]:
        """The columns but those of keys."""
        return [name for name in self.sorts if not name.startswith("k")]


def make_table(dice: Random, name: str, store: str) -> Made:
    """A table with some columns and indexes: penstock's own, or another program's."""
    managed = dice.random() < 0.5
    sorts = {f"c{place}": dice.choice([*SORTS]) for place in range(dice.randint(2, 5))}
    optional = {column: dice.random() < 0.6 for column in sorts}
    keys = [] if managed else dice.choice([["integer"], ["text"], ["integer", "text"], ["time"], ["uuid", "integer"]])
    named = {f"k{place}": kind for place, kind in enumerate(keys)}
    indexed = [column for column, kind in sorts.items() if kind != "json"] + [*named]
    indexes = {
        f"by_{place}": Index(
            *dice.sample(indexed, k=min(dice.randint(1, 3), len(indexed))), unique=managed and dice.random() < 0.2
        )
        for place in range(dice.randint(1, 4) if indexed else 0)
    }
    fields = {column: SORTS[kind] for column, kind in (named | sorts).items()}
    search = _search(dice, sorts)
    rule = _rule(dice, sorts) if dice.random() < 0.15 else None
    arguments = _arguments(dice, name, [*named], managed=managed)

    def fill(space: dict[str, Any]) -> None:
        space |= {"__module__": __name__, "__annotations__": {}, **indexes, **search}
        if rule is not None:
            space["rules"] = Rules(read=rule, anonymous=True)
        for column, sort in fields.items():
            nullable = optional.get(column, False)
            space["__annotations__"][column] = sort.annotation | None if nullable else sort.annotation
            if nullable:
                space[column] = None

    table = types.new_class(name.title(), (Table,), arguments, fill)
    created = [] if managed else [_created(dice, name, fields, [*named], optional, store)]
    said = f"{created or 'managed'} {sorts} {optional} {indexes} {search} {arguments} rule={rule is not None}"
    return Made(table, fields, optional, created, said)


def _search(dice: Random, sorts: dict[str, str]) -> dict[str, SearchIndex]:
    """A search index over a column of texts, if there is one; the others may be its filters."""
    texts = [column for column, kind in sorts.items() if kind == "text"]
    if not texts or dice.random() < 0.3:
        return {}
    others = [column for column, kind in sorts.items() if kind != "json" and column != texts[0]]
    return {"by_words": SearchIndex(texts[0], filters=others[: dice.randint(0, 2)])}


def _arguments(dice: Random, name: str, keys: list[str], *, managed: bool) -> dict[str, Any]:
    if managed:
        return {"name": name, "live": dice.random() < 0.85}
    return {"source": name, "key": tuple(keys), "managed": False, "live": dice.random() < 0.8}


def _rule(dice: Random, sorts: dict[str, str]) -> Callable[[Any, Any], Any]:
    """A rule that SQL can say, or one that only Python can."""
    column = dice.choice([*sorts])
    value = dice.choice(SORTS[sorts[column]].values)
    if dice.random() < 0.5:
        return lambda row, who: getattr(row, column) == value if who is None else getattr(row, column) != value
    return lambda row, who: len(repr(getattr(row, column))) % 2 == (who is None)


def _created(
    dice: Random, name: str, fields: dict[str, Sort], keys: list[str], optional: dict[str, bool], store: str
) -> str:
    """The statement by which another program makes the table. It may allow NULL where the declaration does not."""
    columns = []
    for column, sort in fields.items():
        kind = dice.choice(sort.sqlite if store == "sqlite" else sort.postgres)
        null = "" if optional.get(column) or (column not in keys and dice.random() < 0.3) else " not null"
        columns.append(f"{column} {kind}{null}")
    return f"create table {name} ({', '.join(columns)}, primary key ({', '.join(keys)}))"


# ----- queries


class Plan(NamedTuple):
    """A query that was made up."""

    verb: str
    made: Made
    through: Index | None
    where: dict[str, Any]
    direction: Any
    size: int
    column: str
    filtered: str | None
    joined: Made
    words: str | None  # it is a search for these

    @property
    def is_live(self) -> bool:
        """Whether its table is captured."""
        return bool(self.made.table.__declared__.live)

    def __str__(self) -> str:
        index = self.through and self.through.columns
        return (
            f"{self.verb} {self.made.table.__name__} by {index} where {self.where} {self.direction} n={self.size} "
            f"column={self.column} filter={self.filtered} search={self.words}"
        )


ROWS = ["take", "take", "first", "first", "unique", "break", "break", "collect"]
VERBS = [
    *ROWS, *ROWS, "count", "sum", "min", "max", "groups", "pages", "get", "join", "sql", "any sql", "time", "who",
    "nested", "search", "search",
]  # fmt: skip


def make_plan(dice: Random, tables: list[Made], verb: str | None = None) -> Plan:
    """A query over one of the tables, through an index or none."""
    made, joined = dice.choice(tables), dice.choice(tables)
    index = dice.choice([None, *3 * made.table.__indexes__])
    filtered = dice.choice(made.columns) if dice.random() < 0.2 else None
    count, direction = dice.choice([0, 1, 1, 2, 2, 3, 5]), dice.choice(["asc", "desc"])
    column = dice.choice(made.columns)
    where = {} if index is None else _where(dice, made, index)
    verb, words = verb or dice.choice(VERBS), None
    search = definition_of(made.table).searches.get("by_words")
    if search is not None and (verb == "search" or (verb == "page" and dice.random() < 0.5)):
        words = dice.choice(["a", "A b", "ab c", "ä z", "b a", "5", "."])
        filters = [name for name in search.filters if dice.random() < 0.5]
        where = {name: dice.choice(made.sorts[name].values) for name in filters}
    verb = "take" if verb == "search" and words is None else verb
    return Plan(verb, made, index, where, direction, count, column, filtered, joined, words)


def _where(dice: Random, made: Made, index: Index) -> dict[str, Any]:
    columns = index.columns[: dice.choice([0, 0, 0, 1, 1, 2])]
    found = {
        name: None if made.optional.get(name) and dice.random() < 0.3 else dice.choice(made.sorts[name].values)
        for name in columns
    }
    if columns and dice.random() < 0.6:
        low, high = dice.choices(made.sorts[columns[-1]].values, k=2)
        lower = (low, dice.random() < 0.5) if dice.random() < 0.6 else None
        upper = (high, dice.random() < 0.5) if dice.random() < 0.6 or lower is None else None
        found[columns[-1]] = Range(lower, upper)
    return found


def scan_of(ctx: QueryCtx, plan: Plan, *, filtered: bool = True) -> Any:
    """The rows of a plan."""
    scan: Any = ctx.db.query(plan.made.table)
    if plan.words is not None:
        scan = scan.with_search_index(
            plan.made.table.by_words, plan.words, match="all" if plan.size % 2 else "any", **plan.where
        )
    elif plan.through is not None:
        scan = scan.with_index(plan.through, **plan.where)
    if filtered and plan.filtered is not None:
        column = plan.filtered
        scan = scan.filter(lambda row: len(repr(getattr(row, column))) % 2 == 0)
    return scan if plan.words is not None else scan.order(plan.direction)


async def run_plan(ctx: QueryCtx, plan: Plan, ask: Any) -> Any:
    """The answer of a plan. It may raise."""
    scan, verb = scan_of(ctx, plan), plan.verb
    if verb in {"first", "unique", "collect", "count"}:
        return await getattr(scan, verb)()
    if verb == "sum":
        return await scan.sum(plan.column)
    if verb in {"min", "max"}:
        return _one_spelling(await getattr(scan, verb)(plan.column))
    others: dict[str, Callable[[], Any]] = {
        "take": lambda: scan.take(plan.size),
        "search": lambda: scan.take(plan.size + 1),
        "break": lambda: _break_off(scan, plan.size),
        "groups": lambda: _groups(plan, scan),
        "pages": lambda: _two_pages(scan, max(plan.size, 1)),
        "get": lambda: _look_up(ctx, plan, scan),
        "join": lambda: _look_up(ctx, plan, scan),
        "sql": lambda: _by_sql(ctx, plan, [plan.made.table]),
        "any sql": lambda: _by_sql(ctx, plan, None),
        "time": lambda: _with(ctx.now(every=timedelta(minutes=1)), scan.first()),
        "who": lambda: _who(ctx, scan.take(plan.size)),
        "nested": lambda: ask(ctx, plan),
    }
    return await others[verb]()


async def _with(value: Any, call: Any) -> Any:
    return value, await call


async def _who(ctx: QueryCtx, call: Any) -> Any:
    return await _with(await ctx.auth.get_user_identity(), call)


async def _groups(plan: Plan, scan: Any) -> Any:
    following = () if plan.through is None else plan.through.columns[len(plan.where) :][:1]
    groups = scan.group_by(*following)
    return _one_spelling(await (groups.count() if plan.size % 2 else groups.max(plan.column)))


async def _by_sql(ctx: QueryCtx, plan: Plan, reads: Any) -> Any:
    name = plan.made.table.__declared__.sql_name
    sql = f"select count(*) as n, max({plan.column}) as m from {name}"
    return _one_spelling(await ctx.sql(sql, reads=reads, unruled=True))


def _one_spelling(value: Any) -> Any:
    """1.5 for 1.50, too: where both are the largest, the database gives any of them, and each time another one."""
    if isinstance(value, Decimal):
        return value.normalize(Context(prec=MAX_PREC))
    if isinstance(value, dict):
        return {_one_spelling(key): _one_spelling(one) for key, one in value.items()}
    return type(value)(map(_one_spelling, value)) if isinstance(value, list | tuple) else value


async def _break_off(scan: Any, count: int) -> list[Any]:
    found: list[Any] = []
    async for row in scan:
        found.append(row)
        if len(found) >= count:
            break
    return found


async def _two_pages(scan: Any, size: int) -> list[Page[Any]]:
    first = await scan.paginate(num_items=size)
    return [first, await scan.paginate(cursor=first.continue_cursor, num_items=size)]


async def _look_up(ctx: QueryCtx, plan: Plan, scan: Any) -> list[Any]:
    """Rows by the ids of others, or by their values."""
    rows, found = await scan.take(3), []
    indexes = [index for index in plan.joined.table.__indexes__ if plan.joined.sorts.get(index.columns[0])]
    for row in rows:
        if plan.verb == "get" or not indexes:
            found.append(await ctx.db.get(plan.made.table, key_of(plan.made, row)))
            continue
        index = indexes[0]
        value = next(
            (value for name, value in row if plan.made.sorts.get(name) == plan.joined.sorts[index.columns[0]]),
            plan.joined.sorts[index.columns[0]].values[0],
        )
        if value is not None or plan.joined.optional.get(index.columns[0]):
            found.append(await ctx.db.query(plan.joined.table).with_index(index, **{index.columns[0]: value}).first())
    return found


def key_of(made: Made, row: Any) -> Any:
    """The id of a row, as `get` takes it."""
    keys = [name for name in made.sorts if name.startswith("k")]
    if not keys:
        return row.id
    values = tuple(getattr(row, name) for name in keys)
    return values if len(values) > 1 else values[0]


def page_options(dice: Random) -> PaginationOptions:
    """A page that a client asks for."""
    return PaginationOptions(
        num_items=dice.randint(1, 3),
        maximum_rows_read=dice.choice([None, None, 2, 4]),
        maximum_bytes_read=dice.choice([None, None, 100]),
        id=dice.choice([None, 1]),
    )


_MOST_ROWS = 14
_NOCASE = "provider = icu, locale = 'und-u-ks-level2', deterministic = false"
_INSIDE = ["insert", "patch", "patch", "replace", "delete", "several"]
_OUTSIDE = ["update", "update", "null", "odd", "copy column", "twice", "delete some", "load", "load", "move key"]
_OUTSIDE += ["clear"]
_Statements = list[tuple[str, tuple[Any, ...]]]


@contextmanager
def other_program(url: str) -> Iterator[Any]:
    """A connection of another program."""
    connection: Any
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        connection.create_collation("penstock_decimal", compare_decimals)
        connection.execute("pragma recursive_triggers = on")  # without it, a row that is replaced is lost
    else:
        connection = psycopg.connect(url, autocommit=True)
        connection.execute("set timezone = 'Asia/Tokyo'; set lock_timeout = '20ms'")  # a snapshot may be open
        connection.execute("create type side as enum ('b', 'C', 'a')")
        try:
            connection.execute(f"create collation nocase ({_NOCASE})")
        except psycopg.Error:  # a server without ICU
            connection.execute('create collation nocase from "C"')
    try:
        yield connection
    finally:
        connection.close()


class Writer:
    """Writes what the dice say; another program does so in a thread, as it may wait for this one.

    Args:
        dice: They.
        tables: The tables.
        outside: A connection of another program.
        test: The backend.
        write: A mutation that runs a part of a test.
    """

    def __init__(self, dice: Random, tables: list[Made], outside: Any, test: TestApp, write: Any) -> None:
        self.dice, self.tables, self.outside, self.test, self._write = dice, tables, outside, test, write
        self._is_lite = isinstance(outside, sqlite3.Connection)
        self._mark = "?" if self._is_lite else "%s"
        self._numbers = itertools.count(1)

    async def write(self) -> str:
        """Write to a table; how."""
        dice, made = self.dice, self.dice.choice(self.tables)
        keys = self._keys(made)
        if len(keys) > _MOST_ROWS and dice.random() < 0.7:
            return await asyncio.to_thread(self._run, made, "delete some", keys)
        how = dice.choice([*_INSIDE, *_INSIDE, *_OUTSIDE] if keys else ["insert", "several", "load"])
        if how == "load":
            return await asyncio.to_thread(self._load, made)
        if how in _OUTSIDE:
            return await asyncio.to_thread(self._run, made, how, keys)
        try:
            await self.test.run_mutation(self._write, lambda ctx: self._mutate(ctx, made, how))
        except PenstockError as error:
            return f"{how} in {made.table.__name__}: {type(error).__name__}"
        return f"{how} in {made.table.__name__}"

    async def _mutate(self, ctx: MutationCtx, made: Made, how: str) -> None:
        dice = self.dice
        if how == "several":
            for one in dice.choices(["insert", "patch", "delete"], k=3):
                await self._mutate(ctx, made, one)
            return
        if how == "insert":
            await ctx.db.insert_many([made.table(**self._fields(made)) for _ in range(dice.randint(1, 3))])
            return
        rows = await ctx.db.query(made.table).take(30)
        if not rows:
            return
        key, fields = key_of(made, dice.choice(rows)), self._fields(made, keys=False)
        if how == "delete":
            await ctx.db.delete(made.table, key)
        elif how == "replace":
            kept = {name: value for name, value in dice.choice(rows) if name.startswith("k")}
            await ctx.db.replace(made.table, key, made.table(**kept, **fields))
        else:
            changed = dice.sample([*fields], k=dice.randint(1, len(fields)))
            await ctx.db.patch(made.table, key, **{name: fields[name] for name in changed})

    def _fields(self, made: Made, *, keys: bool = True) -> dict[str, Any]:
        dice = self.dice
        return {
            name: None if made.optional.get(name) and dice.random() < 0.35 else dice.choice(made.sorts[name].values)
            for name in (made.sorts if keys else made.columns)
        }

    # ----- another program

    def _run(self, made: Made, how: str, keys: list[tuple[Any, ...]]) -> str:
        """Write by plain SQL."""
        statements = self._statements(made, how, keys)
        return f"{statements}: {self._transact(statements)}"

    def _statements(self, made: Made, how: str, keys: list[tuple[Any, ...]]) -> _Statements:
        dice, definition, mark = self.dice, definition_of(made.table), self._mark
        name, key = definition.name, dice.choice(keys)
        column, other = dice.choice(made.columns), dice.choice(made.columns)
        is_it = " and ".join(f"{one} = {mark}" for one in definition.key)
        value = self._stored(made, column, dice.choice(made.sorts[column].values))
        if how == "move key":
            column = definition.key[0]
            value = self._stored(made, column, self._new_key(made)[0])
        one, delete = f"update {name} set {column} =", f"delete from {name} where"
        if how in {"update", "move key"}:
            where, args = dice.choice([(is_it, key), (is_it, key), (f"{other} is null", ())])
            return [(f"{one} {mark} where {where}", (value, *args))]
        if how == "twice":
            return [(f"{one} {mark} where {is_it}", (value, *key)), (f"{delete} {is_it}", key)]
        if how == "delete some":
            return [(f"{delete} {is_it}", one) for one in dice.sample(keys, k=min(4, len(keys)))]
        if how == "clear":
            all_rows = "truncate " if not self._is_lite and dice.random() < 0.2 else "delete from "
            part = f"{delete} {other} is {dice.choice(['', 'not '])}null"
            return [(dice.choice([all_rows + name, part, part]), ())]
        odd = made.sorts[column].odd_sqlite if self._is_lite else made.sorts[column].odd_postgres
        if how == "null" or not odd:
            return [(f"{one} null where {is_it}", key)]
        given = dice.choice(odd) if how == "odd" else f"(select max({column}) from {name})"
        return [(f"{one} {given} where {is_it}", key)]

    def _load(self, made: Made) -> str:
        """Load rows: with COPY on PostgreSQL."""
        definition = definition_of(made.table)
        rows = []
        for _ in range(self.dice.randint(1, 4)):
            fields = self._fields(made) | dict(zip(definition.key, self._new_key(made), strict=True))
            if definition.managed:
                fields["creation_time"] = self.test.clock.now()
            rows.append(tuple(self._stored(made, column.name, fields[column.name]) for column in definition.columns))
        names, said = ", ".join(column.name for column in definition.columns), f"{rows} into {definition.name}"
        if self._is_lite:
            marks = ", ".join("?" for _ in definition.columns)
            verb = self.dice.choice(["insert", "insert or replace", "insert or ignore"])
            sql = f"{verb} into {definition.name} ({names}) values ({marks})"
            return f"{verb} {said}: {self._transact([(sql, row) for row in rows])}"
        try:
            with self.outside.cursor() as cursor, cursor.copy(f"copy {definition.name} ({names}) from stdin") as copy:
                for row in rows:
                    copy.write_row(row)
        except psycopg.Error as error:
            return f"copy {said}: {type(error).__name__}"
        return f"copy {said}"

    def _new_key(self, made: Made) -> list[Any]:
        definition = definition_of(made.table)
        if definition.managed:
            return [f"{definition.name}_01{next(self._numbers):024d}"]
        return [self.dice.choice(made.sorts[name].values) for name in definition.key]

    def _stored(self, made: Made, name: str, value: Any) -> Any:
        """A value as another program writes it."""
        column = definition_of(made.table).column(name)
        if value is None:
            return None
        neutral = value if name in {"id", "creation_time"} else column.encode(value)
        if not self._is_lite:
            return neutral
        return str(neutral) if column.long else SQLITE.encode_value(column.kind, neutral)

    def _keys(self, made: Made) -> list[tuple[Any, ...]]:
        definition = definition_of(made.table)
        found = self.outside.execute(f"select {', '.join(definition.key)} from {definition.name}").fetchall()
        return sorted(found, key=repr)

    def _transact(self, statements: _Statements) -> str:
        """Run statements in one transaction; how it ended."""
        try:
            self.outside.execute("begin")
            for sql, args in statements:
                self.outside.execute(sql, args)
            self.outside.execute("commit")
        except (sqlite3.Error, psycopg.Error, OverflowError) as error:
            if not self._is_lite or self.outside.in_transaction:
                self.outside.execute("rollback")
            return type(error).__name__
        return "done"
