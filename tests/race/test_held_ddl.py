"""Random tables, interests and changes of the schema, with and without a hold: nobody stops to hear without a word.

Two tables are alike and captured alike. The owner changes one of them under a hold and the other one without. An
interest whose columns are still there is told of each write to its table. Each other one is named, and told ``lost``.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Self

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage.examples import examples
from stage.feed import NOW, opened

from penstock import ActionCtx, App, Message, Table, TaskCtx
from penstock.api.holding import held, hold, release
from penstock.changes.interest import Interest
from penstock.clock import random_of
from penstock.errors import ContextError
from penstock.live.capture import live_interest
from penstock.schema.table import definition_of
from penstock.store.push.migrate import push
from penstock.store.sql.dialect import Dialect
from penstock.store.store import Store

# Names that lie in each other, in texts and functions of the SQL, in the words of SQL, and in those of triggers.
NAMES = (
    "total", "total_cents", "tot", "l", "row", "old", "new", "select", "order", "length", "typeof", "glob", "is",
    "text", "Shop", "Total2", "shopOrder", "interests", "größe",
)  # fmt: skip
KINDS = ("task", "task filter", "task any", "task any filter", "outbox", "outbox filter", "outbox fields", "live")
MADE = itertools.count()


def table_of(name: str, columns: Mapping[str, type]) -> type[Table]:
    body: dict[str, Any] = {"__annotations__": {"nr": int} | {one: kind | None for one, kind in columns.items()}}
    body |= dict.fromkeys(columns)
    kind: Any = type(Table)
    made: type[Table] = kind("Shop", (Table,), body | {"__module__": __name__}, source=name, key="nr", managed=False)
    return made


class Case:
    """One table with what is declared on it, and what has become of it."""

    def __init__(self, chance: Any, columns: Mapping[str, type], specs: Sequence[Any], dialect: Dialect) -> None:
        self.name = chance.choice(("shop", "Order_of", "total")) + f"_{next(MADE)}"
        self.columns = dict(columns)  # those that nobody has touched
        self.types = {one: "text" if kind is str else "integer" for one, kind in columns.items()}
        self.retyped: set[str] = set()
        self.interests = [self.interest(number, *spec, dialect=dialect) for number, spec in enumerate(specs)]

    def interest(self, number: int, kind: str, used: Sequence[str], also: str, *, dialect: Dialect) -> Interest:
        table, app = table_of(self.name, {one: self.columns[one] for one in used}), App()
        declared: Any = app.tasks if kind.startswith("task") else app.outboxes
        text = self.columns[also] is str

        def matches(row: Any) -> Any:
            field = getattr(row, also)
            return field.startswith("tot") & (field != "row.total_cents") if text else field >= 0

        if kind == "live":
            return live_interest(definition_of(table))
        name = f"{self.name}{number}"
        options: dict[str, Any] = {"filter": matches} if "filter" in kind else {}
        if kind.startswith("task"):
            app.reactive_task(table, name=name, watch=None if "any" in kind else (also,), **options)(hear)
        else:
            options |= {"fields": (also,)} if "fields" in kind else {}
            app.outbox(table, name=name, on=("insert", "update"), **options)(deliver)
        interest: Interest = next(iter(declared)).interest(dialect)
        return interest

    def fits(self, interest: Interest) -> bool | None:
        """Whether an interest fits the table as it is now; None if a type decides."""
        read = {*interest.columns} | {one for one in NAMES if f'{{row}}."{one}"' in self.sql(interest)}
        if not read <= {"nr", *self.columns, *self.retyped}:
            return False
        return None if read & self.retyped else True

    @staticmethod
    def sql(interest: Interest) -> str:
        return " ".join((interest.matches or "", *(interest.watches or ())))

    def make(self) -> str:
        listed = "".join(f', "{one}" {kind}' for one, kind in self.types.items())
        return f'create table "{self.name}" (nr integer primary key{listed})'

    def row(self, nr: int) -> str:
        """A row that all want; a column that was retyped or added stays empty."""
        names = "".join(f', "{one}"' for one in self.columns)
        values = "".join(", 'total'" if kind is str else ", 1" for kind in self.columns.values())
        return f'insert into "{self.name}" (nr{names}) values ({nr}{values})'

    def come(self, column: str, kind: str) -> str:
        """Another column of a name, which may be one that was there before."""
        self.types[column] = kind
        self.retyped.add(column)
        return column

    def change(self, chance: Any, *, postgres: bool) -> list[str]:
        """One change of the schema; the same for equal chances."""
        alter = f'alter table "{self.name}"'
        left = [*self.columns]
        what = chance.choice(("drop", "rename", "add", "retype" if postgres else "copy", "drop again"))
        column = chance.choice(left) if left else None
        free = [one for one in NAMES if one not in self.types]
        if column is None or what == "add":
            new = self.come(chance.choice(free), "text")
            return [f'{alter} add column "{new}" text']
        if what == "retype":
            self.columns.pop(column)
            self.retyped.add(column)
            to = chance.choice(("text", "bigint", "varchar(90)", "json"))
            return [f'{alter} alter column "{column}" type {to} using null']
        self.columns.pop(column)
        was = self.types.pop(column)
        if what == "rename":
            new = self.come(chance.choice(free), was)
            return [f'{alter} rename column "{column}" to "{new}"']
        if what == "copy":
            kept = ", ".join(["nr", *(f'"{one}"' for one in self.types)])
            new = self.make().replace(f'"{self.name}"', f'"new__{self.name}"', 1)
            copy = f'insert into "new__{self.name}" ({kept}) select {kept} from "{self.name}"'
            swap = f'alter table "new__{self.name}" rename to "{self.name}"'
            return [new, copy, f'drop table "{self.name}"', swap]
        made = [f'{alter} drop column "{column}"']
        if what == "drop again":  # another column of its name
            self.come(column, was)
            made += [f'{alter} add column "{column}" {was}']
        return made


async def hear(ctx: TaskCtx[Any]) -> None: ...


async def deliver(ctx: ActionCtx, message: Message[Any]) -> None: ...


@contextmanager
def connection_to(url: str, *, autocommit: bool = False) -> Iterator[Any]:
    connect = psycopg.connect(url, autocommit=autocommit) if url.startswith("postgres") else _lite(url, autocommit)
    with closing(connect) as connection:
        yield connection


def _lite(url: str, autocommit: bool) -> sqlite3.Connection:
    return sqlite3.connect(
        url.removeprefix("sqlite:///"), isolation_level=None if autocommit else "DEFERRED", timeout=60
    )


class Stop(Exception):
    """An error of the migration."""


def migrate(url: str, names: Sequence[str], statements: Sequence[str], how: str, own: str) -> list[str]:
    """Change the schema under a hold, as its owner does; the interests that were named."""
    if how == "apart":
        with connection_to(url) as first, first:
            hold(first, names[0])
        with connection_to(url, autocommit=True) as second:
            for statement in statements:
                second.execute(statement)
        with connection_to(url) as third, third:
            return release(third, names[0])
    with connection_to(url) as connection, suppress(Stop):
        with held(connection, *names):
            for statement in statements:
                connection.execute(statement)
            if how == "rolled back":
                raise Stop
        if how != "crashes":
            connection.execute(own)
            connection.commit()
    return []


class Story:
    """Three tables that are alike: one is changed under a hold, one without, and one not at all."""

    def __init__(self, store: Store, url: str, other: Any, seed: int) -> None:
        self.store, self.url, self.other = store, url, other
        self.postgres = url.startswith("postgres")
        self.chance = chance = random_of(seed)
        columns = {one: chance.choice((int, str)) for one in chance.sample(NAMES, chance.randrange(2, 7))}
        specs = []
        for _ in range(chance.randrange(1, 5)):
            used = chance.sample([*columns], chance.randrange(1, len(columns) + 1))
            specs.append((chance.choice(KINDS), used, chance.choice(used)))
        self.cases = [Case(chance, columns, specs, store.dialect) for _ in range(3)]
        self.how = chance.choice(("one", "one", "apart", "rolled back", "crashes"))
        self.numbers: list[dict[int, Interest]] = []
        self.what: tuple[Any, ...] = (seed, self.how)
        self.feed = "penstock.change" if self.postgres else "penstock_change"

    async def run(self) -> None:
        for case in self.cases:
            self.other.execute(case.make())
            unlike = {one.name + one.digest: one for one in case.interests}
            ids = await self.store.interests.declare([*unlike.values()], NOW)
            self.numbers.append(dict(zip(ids, unlike.values(), strict=True)))
            self.other.execute(case.row(1))
        started = self.last()
        seeds = [self.chance.randrange(2**30) for _ in range(self.chance.randrange(1, 4))]
        named, refused = await self.change_held(seeds), self.change_freely(seeds)
        self.what += tuple((one.name, Case.sql(one), one.columns) for one in self.cases[0].interests)
        between = self.last()
        states = {row.id: row.state for row in await self.store.interests.list()}
        heard = self.told(0, started)
        for case in self.cases:
            if case is not self.cases[1] or not refused:
                self.other.execute(case.row(3))
        after = [self.told(number, between) for number in range(3)]
        for number, without in zip(self.numbers[0], self.numbers[1], strict=True):
            one, fits = self.numbers[0][number], self.cases[0].fits(self.numbers[0][number])
            what, goes_on = (*self.what, one.name, states[number]), states[number] == "ok"
            assert fits in {None, goes_on}, what
            if goes_on and not one.on_demand:
                assert ("lost" in heard[number], one.name in named) == (False, False), what
                assert fits is None or after[0][number] == ["enter"], (what, after[0][number])
            elif not goes_on:
                assert ("lost" in heard[number], states[number] != "held", one.name in named) == (True,) * 3, what
                assert refused or not self.postgres or fits is None or "enter" not in after[1][without], what
        for number, one in self.numbers[2].items():
            assert one.on_demand or after[2][number] == ["enter"], (self.what, one.name, "of another table")

    async def change_held(self, seeds: Sequence[int]) -> list[str]:
        """Change the first table under a hold; the interests that were named."""
        case, columns = self.cases[0], dict(self.cases[0].columns)
        statements = [each for one in seeds for each in case.change(random_of(one), postgres=self.postgres)]
        self.what += tuple(statements)
        if self.how in {"rolled back", "crashes"}:
            case.columns, case.retyped = columns, set()
        names = [case.name, self.cases[2].name][: self.chance.randrange(1, 3)]
        with Logged() as logged:
            named = await asyncio.to_thread(migrate, self.url, names, statements, self.how, self.cases[2].row(2))
        assert not named or set(named) == set(logged.named), self.what
        return logged.named if self.how in {"one", "apart"} else []  # the log was right until then

    def change_freely(self, seeds: Sequence[int]) -> bool:
        """Change the second table without a hold; whether any of that was refused."""
        refused = self.how in {"rolled back", "crashes"}
        for one in [] if refused else seeds:
            for statement in self.cases[1].change(random_of(one), postgres=self.postgres):
                try:
                    self.other.execute(statement)
                except (psycopg.Error, sqlite3.Error):
                    refused = True
        return refused

    def told(self, case: int, since: int) -> dict[int, list[str]]:
        """The kinds that each interest in a table was told."""
        found: dict[int, list[str]] = {one: [] for one in self.numbers[case]}
        query = f"select interests, kinds from {self.feed} where seq > {since} order by seq"
        for ids, ways in self.other.execute(query).fetchall():
            for one, kind in zip(ids.strip("[]").split(","), ways.split(","), strict=True):
                if int(one) in found:
                    found[int(one)].append(kind.split(" ")[0])
        return found

    def last(self) -> int:
        return int(self.other.execute(f"select coalesce(max(seq), 0) from {self.feed}").fetchone()[0])

    async def end(self) -> None:
        await self.store.interests.drop([one for each in self.numbers for one in each])
        for case in self.cases:
            self.other.execute(f'drop table if exists "{case.name}"')


class Logged(logging.Handler):
    """The interests that are logged as broken."""

    def __enter__(self) -> Self:
        self.named: list[str] = []
        logging.getLogger("penstock").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("penstock").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "event", "") == "changes.interest_broken":
            self.named.append(record.facts["interest"])  # type: ignore[attr-defined]  # of penstock's events


def test_a_connection_that_commits_each_statement_by_itself_is_refused(database_url: str) -> None:
    with connection_to(database_url, autocommit=True) as connection:
        with pytest.raises(ContextError, match="commits each statement by itself"), held(connection, "shop"):
            """Nothing."""
        connection.execute("begin")
        with held(connection, "shop"):
            """Nothing."""
        connection.execute("commit")


@pytest.mark.long
def test_whatever_changes_under_a_hold_everybody_goes_on_or_is_named(empty_database_url: str) -> None:
    with asyncio.Runner() as runner:
        stores = opened(empty_database_url)
        store = runner.run(stores.__aenter__())
        runner.run(push(store, []))

        @settings(max_examples=examples(150))
        @given(st.integers(0, 2**32))
        def tried(seed: int) -> None:
            with connection_to(empty_database_url, autocommit=True) as other:
                story = Story(store, empty_database_url, other, seed)
                try:
                    runner.run(story.run())
                finally:
                    runner.run(story.end())

        try:
            tried()
        finally:
            runner.run(stores.__aexit__(None, None, None))
