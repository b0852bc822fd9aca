"""Writers of made-up tables, for `stage.livefuzz`: penstock's mutations, and another program with SQL and COPY."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from stage.livetables import Made, key_of

from penstock import MutationCtx, PenstockError
from penstock.clock import Random
from penstock.schema.table import definition_of
from penstock.store.sqlite.dialect import SQLITE
from penstock.store.sqlite.functions import compare_decimals
from penstock.testing import TestApp

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
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
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
    """Writes what the dice say.

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
            return self._run(made, "delete some", keys)
        how = dice.choice([*_INSIDE, *_INSIDE, *_OUTSIDE] if keys else ["insert", "several", "load"])
        if how == "load":
            return self._load(made)
        if how in _OUTSIDE:
            return self._run(made, how, keys)
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
