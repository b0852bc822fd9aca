"""What PostgreSQL alone can do to a table that is captured: partitions, COPY, replication, DDL, rights, settings."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import asyncpg
import pytest
from stage.databases import as_user
from stage.feed import NOW, opened

from penstock.changes.change import CapturedChange
from penstock.changes.interest import Interest
from penstock.changes.position import BEGINNING
from penstock.errors import ConfigError, DatabaseBusy, DeclarationError
from penstock.store.postgres import catalog
from penstock.store.store import Store

ORDERS = "create table orders (id integer primary key, status text, amount integer, note text)"
PAID = Interest(
    name="paid", table="orders", key=["id"], matches="{row}.status = 'paid'", watches=["{row}.amount"], after=["amount"]
)
ALL = Interest(name="all", table="orders", key=["id"])
TOLD = replace(ALL, after=["amount"])
SOME = replace(TOLD, matches="{row}.id > 0")


@asynccontextmanager
async def captured(url: str, *interests: Interest, table: str = ORDERS) -> AsyncIterator[tuple[Store, Any]]:
    """A store with a table that is captured, and a connection of another program."""
    connection = await asyncpg.connect(url)
    try:
        async with opened(url) as store:
            await connection.execute(table)
            await store.interests.declare(interests, NOW)
            yield store, connection
    finally:
        await connection.close()


async def changes(store: Store) -> list[CapturedChange]:
    return (await store.changes.read(BEGINNING, 1000)).changes


async def kinds(store: Store) -> list[tuple[str, Any]]:
    return [(one.kind, one.key_values()[0] if one.key else None) for one in await changes(store)]


async def states(store: Store) -> list[str]:
    return [row.state for row in await store.interests.list()]


# ----- ways to write


async def test_every_way_to_write_is_captured(postgres_url: str) -> None:
    async with captured(postgres_url, PAID) as (store, other):
        await other.copy_records_to_table("orders", records=[(n, "paid", n, None) for n in range(3)])
        upsert = "insert into orders values (1, 'paid', 7) on conflict (id) do update set amount = excluded.amount"
        await other.execute(upsert)
        await other.execute("insert into orders values (1, 'paid', 8) on conflict do nothing")
        merge = (
            "merge into orders o using (values (2)) v (id) on o.id = v.id when matched then update set status = 'open'"
        )
        old = other.get_server_version().major < 15
        await other.execute("update orders set status = 'open' where id = 2" if old else merge)
        await other.execute("with gone as (delete from orders where id = 0 returning id) select * from gone")
        await other.execute("update orders set note = 'not watched'; set session_replication_role = replica")
        await other.copy_records_to_table("orders", records=[(n, "paid", n, None) for n in range(7, 9)])
        assert await kinds(store) == [
            *(("enter", n) for n in range(3)),
            ("change", 1),
            ("leave", 2),
            ("delete", 0),
            *(("enter", n) for n in range(7, 9)),
        ], "also what a replica loads, which fires other triggers"


async def test_numbers_are_spelled_as_the_functions_of_json_spell_them(postgres_url: str) -> None:
    """Keys are compared as texts with those that other statements build."""
    columns = ['a "b" \\ c', "{d} $1 %s é", "none"]
    names = [f'"{name.replace(chr(34), chr(34) * 2)}"' for name in columns]
    table = f"create table orders (id bigint, small smallint, {', '.join(f'{name} integer' for name in names)})"
    interest = Interest(name="all", table="orders", key=["id", "small"], after=columns, before=columns)
    async with captured(postgres_url, interest, table=table) as (store, other):
        await other.execute(f"insert into orders values ({-(2**63)}, 7, 1, -2, null), (8, {-(2**15)}, 0, 3, null)")
        await other.execute("update orders set none = 4 where id = 8")
        await other.execute("delete from orders where id = 8")
        pairs = ", ".join(f"'{column}', {name}" for column, name in zip(columns, names, strict=True))
        spelled = f"json_build_array(id, small)::text, json_build_object({pairs})::text"
        rows = [tuple(row) for row in await other.fetch(f"select {spelled} from orders")]
        found = [(one.kind, one.key, one.before, one.after) for one in await changes(store)]
        key, entered, changed = f"[8, {-(2**15)}]", _spelled(columns, 0, 3, "null"), _spelled(columns, 0, 3, 4)
        assert found == [
            ("enter", *rows[0][:1], None, rows[0][1]),
            ("enter", key, None, entered),
            ("change", key, entered, changed),
            ("delete", key, changed, None),
        ]


def _spelled(columns: list[str], *values: Any) -> str:
    pairs = zip(columns, values, strict=True)
    return f"{{{', '.join(f'{json.dumps(name, ensure_ascii=False)} : {value}' for name, value in pairs)}}}"


class Case(NamedTuple):
    """What other programs do to a table, and the kinds and keys that are told of it."""

    statements: tuple[str, ...]
    told: list[tuple[str, str | None]]
    interest: Interest = ALL
    table: str = ORDERS
    state: str = "ok"


CASES = {
    "foreign keys cascade": Case(
        (
            "insert into person values (1), (2); insert into orders values (7, 1), (8, 2)",
            "update person set id = 3 where id = 1; delete from person where id = 2",
        ),
        [("enter", "[7]"), ("enter", "[8]"), ("change", "[7]"), ("delete", "[8]")],
        replace(ALL, after=["owner"]),
        "create table person (id integer primary key); create table orders (id integer primary key,"
        " owner integer references person on delete cascade on update cascade)",
    ),
    "a writer needs no right of penstock's": Case(
        (
            (
                "do $$ begin create role feed_guest; exception when duplicate_object then null; end $$;"
                "grant select, insert, update, delete on orders to feed_guest; set role feed_guest"
            ),
            "insert into orders values (1); update orders set amount = 2; delete from orders",
            (
                "do $$ begin insert into penstock.change_reader values ('x', 'x', null, now(), now()); raise 'it may';"
                " exception when insufficient_privilege then null; end $$"
            ),
            "reset role; drop owned by feed_guest; drop role feed_guest",
        ),
        [("enter", "[1]"), ("change", "[1]"), ("delete", "[1]")],
    ),
    "the settings of a writer change nothing": Case(
        (
            "insert into orders values ('2030-01-01T00:00:00.5Z', '\\x00ff')",
            (
                "set timezone = 'Asia/Tokyo'; set bytea_output = 'escape'; set standard_conforming_strings = off;"
                "set search_path = ''; set datestyle = 'SQL, DMY'; set backslash_quote = on; delete from public.orders"
            ),
        ),
        [(kind, '["2030-01-01T00:00:00.5", "\\\\x00ff"]') for kind in ("enter", "delete")],
        replace(ALL, key=["id", "part"], matches="{row}.id = {row}.id"),
        "create table orders (id timestamptz, part bytea, primary key (id, part))",
    ),
    "backslashes escape for a writer": Case(
        (
            "set standard_conforming_strings = off; set escape_string_warning = off",
            "insert into orders (id, note) values (1, '12'), (2, 'dd')",
            "update orders set amount = 1; update orders set note = 'x'",
        ),
        [("enter", "[1]"), ("change", "[1]"), ("leave", "[1]")],
        replace(ALL, matches=r"{row}.note ~ '^\d+$'"),
    ),
    "a writer puts a schema before the search path": Case(
        (
            (
                "create schema evil;"
                "create function evil.never(text, text) returns boolean language sql as 'select false';"
                "create operator evil.= (leftarg = text, rightarg = text, function = evil.never);"
                "set search_path = evil, public, pg_catalog"
            ),
            "insert into public.orders values (1, 'paid', 1)",
            "update public.orders set amount = 2",
        ),
        [("enter", "[1]"), ("change", "[1]")],
        PAID,
    ),
    "a table in another schema has odd names": Case(
        ("""insert into "My Shop"."Order" values (9007199254740993, '00000000-0000-0000-0000-000000000001')""",),
        [("enter", '[9007199254740993, "00000000-0000-0000-0000-000000000001"]')],
        Interest(name="odd", table="My Shop.Order", key=["Id", "B c"], matches='{row}."Id" > 0'),
        'create schema "My Shop"; create table "My Shop"."Order" ("Id" bigint, "B c" uuid, primary key ("Id", "B c"))',
    ),
    "a watched column has another name": Case(
        (
            "insert into orders values (1, 'paid', 1); alter table orders rename amount to total",
            "update orders set total = 2; update orders set status = 'open'; update orders set total = 3",
        ),
        [("enter", "[1]"), ("lost", None), ("lost", None)],
        PAID,
        state="altered",
    ),
    "a column of a condition is dropped": Case(
        (
            (
                "do $$ begin alter table orders drop column status; raise 'dropped by mistake';"
                " exception when dependent_objects_still_exist then null; end $$"
            ),
            "alter table orders drop column status cascade; insert into orders values (1, 5)",
        ),
        [],
        PAID,
        state="missing",
    ),
}
CLEAR = "reset all; drop table if exists orders, person cascade; drop schema if exists evil cascade"


async def test_whatever_other_programs_do_is_told(postgres_url: str) -> None:
    async with captured(postgres_url) as (store, other):
        for name, case in CASES.items():
            await other.execute(CLEAR)
            await other.execute(case.table)
            (number,) = await store.interests.declare([case.interest], NOW)
            for statement in case.statements:
                await other.execute(statement)
            found = [(one.kind, one.key) for one in (await store.changes.read(BEGINNING, 1000, [number])).changes]
            assert found == case.told, name
            assert await states(store) == [case.state], name
            await store.interests.drop([number])


async def test_keys_of_any_type_are_others_if_their_bytes_are(postgres_url: str) -> None:
    async with captured(postgres_url) as (store, other):
        for type_name, key, alike in (
            ("integer", "1", "01"),
            ("numeric", "1.0", "1.00"),
            ("text", "a", "A"),
            ("varchar(9)", "a", "A"),
            ("uuid", "00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000A"),
            ("double precision", "0", "-0"),
        ):
            await other.execute(f"drop table orders; create table orders (id {type_name} primary key, status text)")
            paid = replace(ALL, matches="{row}.status = 'paid'", kinds=["enter", "delete"])
            (number,) = await store.interests.declare([paid], NOW)
            await other.execute(f"insert into orders values ('{key}', 'paid'); update orders set id = '{alike}'")
            told = (await store.changes.read(BEGINNING, 1000, [number])).changes
            (before, *after) = [(one.kind, one.key) for one in told]
            same = type_name in {"integer", "uuid"}
            assert [kind for kind, _ in after] == ([] if same else ["delete", "enter"]), type_name
            assert all((key_ == before[1]) == (kind == "delete") for kind, key_ in after), type_name
            await store.interests.drop([number])


async def test_columns_of_any_type_and_number_are_captured(postgres_url: str) -> None:
    names = [f"c{number}" for number in range(130)]
    table = f"create table orders (id integer primary key, {', '.join(f'{name} integer' for name in names)})"
    odd = '{"b": "\\u0000", "b": 1e400000,  "a": 1}'
    async with captured(postgres_url, table=table) as (store, other):
        await store.interests.declare([replace(ALL, after=names)], NOW)
        await other.execute("insert into orders (id, c0, c129) values (1, 5, 6)")
        (one,) = await changes(store)
        wide = one.values("after")
        assert (len(wide), wide["c0"], wide["c1"], wide["c129"]) == (130, 5, None, 6)
        await store.interests.drop([one.interest])
        await other.execute("alter table orders add column j json")
        await store.interests.declare([replace(ALL, after=["j", *names[:60]])], NOW)
        await other.execute("insert into orders (id, j) values (2, $1)", odd)
        await other.execute("update orders set c0 = 1 where id = 2")
        (entered, changed) = (await changes(store))[1:]
        assert odd in str(entered.after), "as it was written, though jsonb refuses it"
        assert (changed.kind, changed.values("after")["c0"]) == ("change", 1)
        await other.execute(
            "drop table orders cascade;"
            "create table orders (id integer primary key, a json, b point, c xml, d integer[])"
        )
        await store.interests.declare([replace(ALL, name="any", before=["a", "d"], after=["a", "b", "d"])], NOW)
        await other.execute("""insert into orders values (1, '{"x": [1]}', '(1,2)', null, '{1,2}')""")
        await other.execute("""update orders set a = '{"x": [1]}'; update orders set a = '{"x": [2]}', d = null""")
        first, second = (await changes(store))[3:]
        assert first.values("after") == {"a": {"x": [1]}, "b": "(1,2)", "d": [1, 2]}
        assert (second.values("before")["a"], second.values("after")["a"]) == ({"x": [1]}, {"x": [2]})


async def test_what_cannot_be_captured_is_refused_at_the_door(postgres_url: str) -> None:
    async with captured(postgres_url) as (store, other):
        await other.execute(
            "create materialized view seen as select * from orders; create sequence numbers;"
            "create table parent (id integer primary key); create table child () inherits (parent)"
        )
        refused = [
            (Interest(name=name, table=name, key=["id"]), r"\w") for name in ("seen", "numbers", "parent", "no.table")
        ]
        refused.append((replace(ALL, matches="exists (select 1)"), "subquer"))
        watches = ("{row}.nothing", "no_such_function({row}.amount)", "{row}.amount +", "(select 1)")
        refused += [(replace(ALL, matches="{row}.id > 0", watches=[watch]), r"\w") for watch in watches]
        if other.get_server_version().major >= 18:  # the first that computes columns when they are read
            await other.execute("alter table orders add column twice integer generated always as (amount * 2) virtual")
            unseen = "no trigger sees twice of orders"
            refused += [
                (replace(ALL, after=["twice"]), unseen),
                (replace(ALL, matches='{row}."twice" > 1'), unseen),
                (replace(ALL, watches=['{row}."twice"']), unseen),
            ]
        for interest, message in refused:
            with pytest.raises(DeclarationError, match=message):
                await store.interests.declare([interest], NOW)
        assert await store.interests.list() == []
        await store.interests.declare([TOLD], NOW)
        await other.execute("insert into orders values (1); update orders set amount = 2; delete from orders")
        assert await kinds(store) == [("enter", 1), ("change", 1), ("delete", 1)]


# ----- triggers of others


async def add_trigger(other: Any, name: str, when: str) -> None:
    """One that adds one to the amount of the row that was written."""
    await other.execute(
        "create or replace function add_one() returns trigger language plpgsql as $$ begin"
        " if tg_op = 'DELETE' then insert into orders (id, amount) values (old.id, 9);"
        " elsif new.amount < 5 then update orders set amount = new.amount + 1 where id = new.id; end if;"
        " return null; end $$;"
        f'create trigger "{name}" after {when} on orders for each row execute function add_one()'
    )


async def test_what_a_trigger_makes_of_a_row_is_told_after_the_row(postgres_url: str) -> None:
    async with captured(postgres_url) as (store, other):
        for interest in (TOLD, SOME, replace(PAID, watches=None)):
            for name in ("add_one", "zzz"):
                await other.execute(CLEAR)
                await other.execute(ORDERS)
                (number,) = await store.interests.declare([interest], NOW)
                await add_trigger(other, name, "insert or update or delete")
                await store.interests.mend(number)
                await other.execute("insert into orders values (1, 'paid', 1)")
                await other.execute("update orders set amount = 2")
                told = (await store.changes.read(BEGINNING, 1000, [number])).changes
                assert [one.kind for one in told] == ["enter", *["change"] * 8], (interest, name)
                assert [one.values("after")["amount"] for one in told] == [1, 2, 3, 4, 5, 2, 3, 4, 5], (interest, name)
                await other.execute("delete from orders")
                told = (await store.changes.read(BEGINNING, 1000, [number])).changes
                last = ["change", "delete"] if interest.name == "paid" else ["delete", "enter"]
                assert [one.kind for one in told[-2:]] == last, (interest, name)
                await store.interests.drop([number])


async def test_triggers_that_are_not_as_they_were_made_are_noticed_and_mended(postgres_url: str) -> None:
    async with captured(postgres_url, TOLD) as (store, other):
        enabled = await other.fetch("select tgname, tgenabled from pg_trigger where tgname like '_penstock%'")
        fires = dict.fromkeys(("update", "delete", "truncate"), b"A") | {"insert": b"O", "applied": b"R"}
        assert dict(enabled) == {f"_penstock_change_1_{name}": when for name, when in fires.items()}, (
            "as a dump has them"
        )
        body = await other.fetchval("select pg_get_functiondef('penstock.change_1_insert'::regproc)")
        assert "SECURITY DEFINER" in body
        await add_trigger(other, "later", "insert")
        assert await states(store) == ["altered"], "what it makes of an inserted row would be told before the row"
        assert await store.interests.mend(1)
        await other.execute("drop trigger later on orders")
        assert await states(store) == ["ok"]
        await other.execute("insert into orders values (1, 'paid', 1)")
        assert await kinds(store) == [("enter", 1)], "nothing was lost"
        for statement in (
            "disable trigger all",
            "enable replica trigger _penstock_change_1_insert",
            "enable trigger all",
        ):
            await other.execute(f"alter table orders {statement}")
            assert await states(store) == ["disabled"], statement
        await store.interests.declare([TOLD], NOW)
        assert await states(store) == ["ok"]
        await other.execute(
            "alter table orders alter column amount type text; insert into orders values (2, 'a', 'two')"
        )
        assert await states(store) == ["altered"]
        await store.interests.declare([TOLD], NOW)
        await other.execute("insert into orders values (3, 'paid', 'three')")
        assert ((await changes(store))[-1].values("after"), await states(store)) == ({"amount": "three"}, ["ok"])
        await other.execute("drop function penstock.change_1_insert() cascade; insert into orders values (4)")
        assert await states(store) == ["missing"]
        told = len(await changes(store))
        await store.interests.mend(1)
        await other.execute("alter table orders rename to bookings; insert into bookings values (5)")
        assert [one.kind for one in (await changes(store))[told:]] == ["lost", "enter"]
        assert await states(store) == ["gone"]
        await store.interests.drop([1])
        await other.execute("insert into bookings values (6)")
        assert len(await changes(store)) == told + 2, "its triggers are found wherever they are"


async def test_who_died_before_its_triggers_were_made_is_mended_once_the_table_is_free(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "TABLE_LOCK_WAIT", 0.05)
    monkeypatch.setattr(catalog, "TABLE_LOCK_ATTEMPTS", 2)
    async with captured(postgres_url) as (store, other):
        await other.execute("begin; insert into orders values (1)")
        with pytest.raises(DatabaseBusy):
            await store.interests.declare([ALL], NOW)
        assert await store.interests.list() == []
        await other.execute("commit")
        await other.execute(
            "insert into penstock.interest (name, digest, source, spec, declared_at) values ($1, $2, $3, $4, now())",
            ALL.name,
            ALL.digest,
            '"orders"',
            ALL.text(),
        )
        assert await states(store) == ["missing"]
        assert len(await store.interests.declare([ALL], NOW)) == 1
        assert await states(store) == ["ok"]


async def test_others_may_neither_capture_nor_see_what_they_have_no_right_to(postgres_url: str) -> None:
    async with captured(postgres_url) as (store, other):
        name = "feed_stranger"
        await other.execute(
            f"create role {name} login; grant all on schema penstock to {name};"
            f"grant all on all tables in schema penstock to {name}; grant all on schema public to {name}"
        )
        try:
            async with opened(as_user(postgres_url, name)) as stranger:
                with pytest.raises(ConfigError):
                    await stranger.interests.declare([ALL], NOW)
                assert await store.interests.list() == []
                await other.execute("begin; insert into orders values (1)")
                assert await store.changes.oldest_transaction() is not None
                await other.execute("commit")
                assert await stranger.changes.oldest_transaction() is None
        finally:
            await other.execute(f"drop owned by {name}; drop role {name}")


# ----- partitions, inheritance, schemas


async def test_partitions_are_captured_also_those_that_come_later(postgres_url: str) -> None:
    table = (
        "create table orders (id integer, amount integer, primary key (id)) partition by range (id);"
        "create table orders_1 partition of orders for values from (0) to (10);"
        "create table orders_2 partition of orders for values from (10) to (20)"
    )
    async with captured(postgres_url, ALL, table=table) as (store, other):
        await other.execute("insert into orders values (1, 1), (11, 1); insert into orders_2 values (12, 1)")
        await other.execute("update orders set amount = 2 where id = 1; update orders set id = 13 where id = 1")
        await other.execute(
            "truncate orders_1; set session_replication_role = replica; delete from orders where id = 11"
        )
        found = await kinds(store)
        assert found[:4] == [("enter", 1), ("enter", 11), ("enter", 12), ("change", 1)]
        assert found[4:] == [("delete", 1), ("enter", 13), ("truncate", None), ("delete", 11)]
        assert await states(store) == ["ok"]
        await other.execute("create table orders_3 partition of orders for values from (20) to (30)")
        assert await states(store) == ["missing"], "that it is truncated would not be seen"
        await other.execute("insert into orders values (21, 1)")
        assert (await kinds(store))[-1] == ("enter", 21)
        await store.interests.declare([ALL], NOW)
        assert await states(store) == ["ok"]
        await other.execute("truncate orders_3")
        assert (await kinds(store))[-1] == ("truncate", None)
