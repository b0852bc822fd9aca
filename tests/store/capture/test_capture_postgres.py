"""What PostgreSQL alone can do to a table that is captured: partitions, COPY, replication, DDL, rights, settings."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

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
        await other.execute("update orders set note = 'not watched'")
        assert await kinds(store) == [
            *(("enter", n) for n in range(3)),
            ("change", 1),
            ("leave", 2),
            ("delete", 0),
        ]


async def test_a_session_that_applies_the_writes_of_others_is_captured(postgres_url: str) -> None:
    async with captured(postgres_url, ALL) as (store, other):
        await other.execute("set session_replication_role = replica")
        await other.execute("insert into orders values (1)")
        await other.execute("truncate orders")
        assert await kinds(store) == [("enter", 1), ("truncate", None)]


async def test_rows_that_are_loaded_as_a_replica_are_captured_once(postgres_url: str) -> None:
    """A subscription applies rows without firing triggers of statements, and copies tables with firing them."""
    async with captured(postgres_url, ALL) as (store, other):
        await other.execute("set session_replication_role = replica")
        await other.copy_records_to_table("orders", records=[(n, None, n, None) for n in range(3)])
        assert await kinds(store) == [("enter", n) for n in range(3)]


async def test_all_rows_of_one_insert_are_captured_by_one_call(postgres_url: str) -> None:
    async with captured(postgres_url, Interest(name="all", table="orders", key=["id"], after=["note"])) as (
        store,
        other,
    ):
        await other.execute("set track_functions = 'all'; begin")
        await other.execute("insert into orders (id, note) select n, 'note ' || n from generate_series(1, 500) n")
        calls = "select calls from pg_stat_xact_user_functions where funcname = 'change_1_insert'"
        assert await other.fetchval(calls) == 1
        await other.execute("commit")
        found = [(one.key_values()[0], one.values("after")) for one in await changes(store)]
        assert found == [(n, {"note": f"note {n}"}) for n in range(1, 501)]


async def test_the_condition_of_an_update_is_short_and_what_changes_nothing_is_not_told(postgres_url: str) -> None:
    """PostgreSQL parses a condition for each statement that writes."""
    definition = "select pg_get_triggerdef(oid) from pg_trigger where tgname like '%update'"
    async with captured(postgres_url, replace(ALL, before=["amount"], on_demand=True)) as (store, other):
        assert " WHEN ((txid_current() < pg_sequence_last_value('penstock.demand_1'::regclass))) " in (
            await other.fetchval(definition)
        )
        await other.execute("insert into orders values (1)")
        await store.changes.demand([1], 1000)
        await other.execute("update orders set amount = amount")
        await other.execute("update orders set id = 2")
        assert await kinds(store) == [("delete", 1), ("enter", 2)]
        await store.interests.declare([ALL], NOW)
        assert (await other.fetch(definition))[-1][0].count("record_image_ne(") == 1


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


async def test_an_insert_of_nothing_tells_nothing(postgres_url: str) -> None:
    async with captured(postgres_url, ALL) as (store, other):
        await other.execute("insert into orders select 1 where false; insert into orders values (1)")
        await other.execute("insert into orders values (1) on conflict do nothing")
        await other.execute("insert into orders values (1), (2) on conflict (id) do update set amount = 5")
        assert await kinds(store) == [("enter", 1), ("change", 1), ("enter", 2)]


async def test_a_statement_that_puts_a_row_in_the_place_of_another_tells_so_in_order(postgres_url: str) -> None:
    async with captured(postgres_url, ALL) as (store, other):
        await other.execute("insert into orders values (1), (2)")
        if other.get_server_version().major >= 15:
            await other.execute(
                "merge into orders o using (values (1, 0), (9, 1)) v (a, b) on o.id = v.a "
                "when matched then delete when not matched then insert values (v.b)"
            )
        else:
            await other.execute("delete from orders where id = 1; insert into orders values (1)")
        await other.execute(
            "with gone as (delete from orders returning id) insert into orders select id from gone where id = 2"
        )
        found = [(kind, key) for kind, key in (await kinds(store))[2:]]
        assert [kind for kind, key in found if key == 1] == ["delete", "enter", "delete"]
        assert [kind for kind, key in found if key == 2] == ["delete", "enter"]


async def test_cascades_of_foreign_keys_are_captured(postgres_url: str) -> None:
    async with captured(postgres_url, table="create table person (id integer primary key)") as (store, other):
        await other.execute(
            "create table pet (id integer primary key,"
            " owner integer references person on delete cascade on update cascade)"
        )
        await store.interests.declare([Interest(name="pets", table="pet", key=["id"], after=["owner"])], NOW)
        await other.execute("insert into person values (1), (2); insert into pet values (7, 1), (8, 2)")
        await other.execute("update person set id = 3 where id = 1; delete from person where id = 2")
        assert await kinds(store) == [("enter", 7), ("enter", 8), ("change", 7), ("delete", 8)]


async def test_triggers_of_others_that_change_the_row_are_seen(postgres_url: str) -> None:
    async with captured(postgres_url, PAID) as (store, other):
        await other.execute(
            "create function pay() returns trigger language plpgsql as"
            " $$ begin new.status := 'paid'; return new; end $$;"
            "create trigger zz before insert on orders for each row execute function pay()"
        )
        await other.execute("insert into orders values (1, 'open', 1)")
        assert await kinds(store) == [("enter", 1)]


async def test_an_error_undoes_what_was_captured(postgres_url: str) -> None:
    async with captured(postgres_url, ALL) as (store, other):
        with pytest.raises(asyncpg.UniqueViolationError):
            await other.execute("insert into orders values (1), (2), (1)")
        assert await kinds(store) == []


async def test_many_rows_of_one_statement(postgres_url: str) -> None:
    async with captured(postgres_url, ALL) as (store, other):
        await other.execute("insert into orders select n from generate_series(1, 5000) n")
        await other.execute("update orders set amount = 1")
        position, numbers = BEGINNING, []
        while True:
            batch = await store.changes.read(position, 999)
            numbers += [one.key_values()[0] for one in batch.changes]
            position = batch.position
            if batch.complete:
                break
        assert numbers[:5000] == list(range(1, 5001))
        assert sorted(numbers[5000:]) == list(range(1, 5001))


async def test_keys_that_are_equal_but_not_alike_are_two(postgres_url: str) -> None:
    interest = Interest(name="n", table="orders", key=["id"])
    async with captured(postgres_url, interest, table="create table orders (id numeric primary key)") as (store, other):
        await other.execute("insert into orders values (1.0); update orders set id = 1.00; update orders set id = 1.00")
        assert [(one.kind, one.key) for one in await changes(store)] == [
            ("enter", "[1.0]"),
            ("delete", "[1.0]"),
            ("enter", "[1.00]"),
        ]


@pytest.mark.parametrize(
    ("type_name", "key", "alike"),
    [
        ("integer", "1", "01"),
        ("numeric", "1.0", "1.00"),
        ("text", "a", "A"),
        ("varchar(9)", "a", "A"),
        ("uuid", "00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000A"),
        ("double precision", "0", "-0"),
    ],
)
async def test_a_key_is_another_if_its_bytes_are(postgres_url: str, type_name: str, key: str, alike: str) -> None:
    table = f"create table orders (id {type_name} primary key, status text)"
    interest = Interest(
        name="n", table="orders", key=["id"], matches="{row}.status = 'paid'", kinds=["enter", "delete"]
    )
    async with captured(postgres_url, interest, table=table) as (store, other):
        await other.execute(f"insert into orders values ('{key}', 'paid'); update orders set id = '{alike}'")
        (before, *after) = [(one.kind, one.key) for one in await changes(store)]
        same = await other.fetchval(f"select '{key}'::{type_name}::text = '{alike}'::{type_name}::text collate \"C\"")
        assert [kind for kind, _ in after] == ([] if same else ["delete", "enter"])
        assert (type_name in {"integer", "uuid"}) == same
        assert all((key_ == before[1]) == (kind == "delete") for kind, key_ in after)


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


@pytest.mark.parametrize("name", ["add_one", "zzz"])
@pytest.mark.parametrize("interest", [TOLD, SOME, replace(PAID, watches=None)], ids=["all", "some", "paid"])
async def test_what_a_trigger_makes_of_a_row_is_told_after_the_row(
    postgres_url: str, interest: Interest, name: str
) -> None:
    async with captured(postgres_url, interest) as (store, other):
        await add_trigger(other, name, "insert or update or delete")
        await store.interests.mend(1)
        await other.execute("insert into orders values (1, 'paid', 1)")
        await other.execute("update orders set amount = 2")
        told = await changes(store)
        assert [one.kind for one in told] == ["enter", *["change"] * 8]
        assert [one.values("after")["amount"] for one in told] == [1, 2, 3, 4, 5, 2, 3, 4, 5]
        await other.execute("delete from orders")
        assert [kind for kind, _ in (await kinds(store))[-2:]] == (
            ["change", "delete"] if interest.name == "paid" else ["delete", "enter"]
        )


async def test_a_trigger_that_is_made_later_is_noticed_and_one_that_is_gone_is_no_matter(postgres_url: str) -> None:
    async with captured(postgres_url, TOLD) as (store, other):
        await add_trigger(other, "later", "insert")
        assert await states(store) == ["altered"], "what it makes of an inserted row would be told before the row"
        assert await store.interests.mend(1)
        await other.execute("drop trigger later on orders")
        assert await states(store) == ["ok"]
        await other.execute("insert into orders values (1, 'paid', 1)")
        assert await kinds(store) == [("enter", 1)], "nothing was lost"


# ----- who writes


async def test_a_writer_needs_no_right_of_penstocks(postgres_url: str) -> None:
    async with captured(postgres_url, ALL) as (store, other):
        await other.execute(
            "do $$ begin create role feed_guest; exception when duplicate_object then null; end $$;"
            "grant select, insert, update, delete on orders to feed_guest; set role feed_guest"
        )
        await other.execute("insert into orders values (1); update orders set amount = 2; delete from orders")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await other.execute("insert into penstock.change_reader values ('x', 'x', null, now(), now())")
        await other.execute("reset role; drop owned by feed_guest; drop role feed_guest")
        assert await kinds(store) == [("enter", 1), ("change", 1), ("delete", 1)]


async def test_the_settings_of_a_writer_change_nothing_of_what_is_captured(postgres_url: str) -> None:
    table = "create table orders (id timestamptz, part bytea, primary key (id, part))"
    interest = Interest(name="odd", table="orders", key=["id", "part"], matches="{row}.id = {row}.id")
    async with captured(postgres_url, interest, table=table) as (store, other):
        await other.execute("insert into orders values ('2030-01-01T00:00:00.5Z', '\\x00ff')")
        await other.execute(
            "set timezone = 'Asia/Tokyo'; set bytea_output = 'escape'; set standard_conforming_strings = off;"
            "set search_path = ''; set datestyle = 'SQL, DMY'; set backslash_quote = on; delete from public.orders"
        )
        one, other_change = await changes(store)
        assert one.key == other_change.key
        assert one.key_values() == ("2030-01-01T00:00:00.5", "\\x00ff")


async def test_a_writer_for_whom_backslashes_escape_means_the_same(postgres_url: str) -> None:
    digits = Interest(name="d", table="orders", key=["id"], matches=r"{row}.note ~ '^\d+$'")
    async with captured(postgres_url, digits) as (store, other):
        await other.execute("set standard_conforming_strings = off; set escape_string_warning = off")
        await other.execute("insert into orders (id, note) values (1, '12'), (2, 'dd')")
        await other.execute("update orders set amount = 1; update orders set note = 'x'")
        assert await kinds(store) == [("enter", 1), ("change", 1), ("leave", 1)]


async def test_what_a_writer_puts_before_the_search_path_is_not_used(postgres_url: str) -> None:
    async with captured(postgres_url, PAID) as (store, other):
        await other.execute(
            "create schema evil; create function evil.never(text, text) returns boolean language sql as 'select false';"
            "create operator evil.= (leftarg = text, rightarg = text, function = evil.never);"
            "set search_path = evil, public, pg_catalog"
        )
        await other.execute("insert into public.orders values (1, 'paid', 1)")
        await other.execute("update public.orders set amount = 2")
        assert await kinds(store) == [("enter", 1), ("change", 1)]


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


async def test_a_new_partition_loses_nothing_for_those_that_want_no_truncation(postgres_url: str) -> None:
    table = (
        "create table orders (id integer primary key, status text) partition by range (id);"
        "create table orders_1 partition of orders for values from (0) to (10)"
    )
    rows = Interest(name="rows", table="orders", key=["id"], after=["status"], kinds=["enter"])
    async with captured(postgres_url, ALL, rows, table=table) as (store, other):
        await other.execute("create table orders_2 partition of orders for values from (10) to (20)")
        found = {row.interest.name: (row.id, row.state) for row in await store.interests.list()}
        assert {name: state for name, (_id, state) in found.items()} == {"all": "missing", "rows": "ok"}
        assert await store.interests.mend(found["all"][0])
        await other.execute("insert into orders values (11, 'a'); truncate orders_2")
        told = [(one.interest, one.kind) for one in (await store.changes.read(BEGINNING, 100)).changes]
        all_, one = found["all"][0], found["rows"][0]
        assert sorted(told) == sorted([(all_, "lost"), (all_, "enter"), (one, "enter"), (all_, "truncate")])


async def test_a_table_that_becomes_a_partition_is_noticed_and_captured_as_one(postgres_url: str) -> None:
    async with captured(postgres_url, ALL) as (store, other):
        await other.execute(
            "create table whole (id integer, status text, amount integer, note text) partition by range (id);"
            "alter table whole attach partition orders for values from (0) to (10)"
        )
        assert await states(store) == ["altered"], "what is inserted through the whole table would be missed"
        await store.interests.mend(1)
        await other.execute("insert into whole values (1); insert into orders values (2)")
        assert await states(store) == ["ok"]
        assert (await kinds(store))[:3] == [("lost", None), ("enter", 1), ("enter", 2)]
        await other.execute("delete from whole; alter table whole detach partition orders")
        assert await states(store) == ["ok"], "triggers of rows capture all the same"
        await other.execute("insert into orders values (4)")
        assert (await kinds(store))[-1] == ("enter", 4)


async def test_tables_in_other_schemas_with_odd_names(postgres_url: str) -> None:
    table = (
        'create schema "My Shop"; create table "My Shop"."Order" ("Id" bigint, "B c" uuid, primary key ("Id", "B c"))'
    )
    interest = Interest(name="odd", table="My Shop.Order", key=["Id", "B c"], matches='{row}."Id" > 0')
    async with captured(postgres_url, interest, table=table) as (store, other):
        await other.execute(
            """insert into "My Shop"."Order" values (9007199254740993, '00000000-0000-0000-0000-000000000001')"""
        )
        (one,) = await changes(store)
        assert one.key_values() == (9007199254740993, "00000000-0000-0000-0000-000000000001")
        assert await states(store) == ["ok"]


async def test_what_is_no_table_of_its_own_is_refused(postgres_url: str) -> None:
    async with captured(postgres_url) as (store, other):
        await other.execute(
            "create materialized view seen as select * from orders; create sequence numbers;"
            "create table parent (id integer primary key); create table child () inherits (parent)"
        )
        for name in ("seen", "numbers", "parent", "no_schema.no_table"):
            with pytest.raises(DeclarationError):
                await store.interests.declare([Interest(name=name, table=name, key=["id"])], NOW)
        with pytest.raises(DeclarationError, match="subquer"):
            await store.interests.declare(
                [Interest(name="asks", table="orders", key=["id"], matches="exists (select 1)")], NOW
            )
        assert await store.interests.list() == []


async def test_columns_of_any_type_can_be_watched_all_together(postgres_url: str) -> None:
    table = "create table orders (id integer primary key, a json, b point, c xml, d integer[])"
    interest = Interest(name="any", table="orders", key=["id"], before=["a", "d"], after=["a", "b", "d"])
    async with captured(postgres_url, interest, table=table) as (store, other):
        await other.execute("""insert into orders values (1, '{"x": [1]}', '(1,2)', null, '{1,2}')""")
        await other.execute("""update orders set a = '{"x": [1]}'; update orders set a = '{"x": [2]}', d = null""")
        first, second = await changes(store)
        assert first.values("after") == {"a": {"x": [1]}, "b": "(1,2)", "d": [1, 2]}
        assert (second.values("before")["a"], second.values("after")["a"]) == ({"x": [1]}, {"x": [2]})


async def test_json_that_jsonb_refuses_breaks_no_write_however_many_columns_there_are(postgres_url: str) -> None:
    names = [f"c{number}" for number in range(60)]
    table = f"create table orders (id integer primary key, j json, {', '.join(f'{name} integer' for name in names)})"
    interest = Interest(name="wide", table="orders", key=["id"], after=["j", *names])
    async with captured(postgres_url, interest, table=table) as (store, other):
        odd = '{"b": "\\u0000", "b": 1e400000,  "a": 1}'
        await other.execute("insert into orders (id, j) values (1, $1)", odd)
        await other.execute("update orders set c0 = 1")
        (entered, changed) = await changes(store)
        assert odd in str(entered.after), "as it was written"
        assert (changed.kind, changed.values("after")["c0"]) == ("change", 1)


async def test_a_column_that_is_computed_when_it_is_read_is_refused(postgres_url: str) -> None:
    """No trigger sees its value: it would be NULL there, or the write would fail."""
    virtual = "twice integer generated always as (amount * 2) virtual"
    async with captured(postgres_url, table="create table orders (id integer primary key, amount integer)") as (
        store,
        other,
    ):
        if other.get_server_version().major < 18:
            pytest.skip("PostgreSQL 18 is the first that has such columns.")
        await other.execute(f"alter table orders add column {virtual}")
        told = replace(ALL, after=["amount"])
        for refused in (
            replace(ALL, after=["twice"]),
            replace(ALL, matches='{row}."twice" > 1'),
            replace(ALL, watches=['{row}."twice"']),
        ):
            with pytest.raises(DeclarationError, match="no trigger sees twice of orders"):
                await store.interests.declare([refused], NOW)
        await store.interests.declare([told], NOW)
        await other.execute("insert into orders values (1, 1); update orders set amount = 2; delete from orders")
        assert await kinds(store) == [("enter", 1), ("change", 1), ("delete", 1)]


async def test_a_key_of_a_domain_is_spelled_as_its_type_is(postgres_url: str) -> None:
    table = "create domain moment as timestamptz; create table orders (id moment primary key, amount integer)"
    async with captured(postgres_url, ALL, table=table) as (store, other):
        await other.execute("set timezone = 'Asia/Tokyo'; insert into orders values ('2030-01-01T00:00:00Z', 1)")
        await other.execute("set timezone = 'UTC'; update orders set amount = 2")
        assert {one.key for one in await changes(store)} == {'["2030-01-01T00:00:00"]'}


async def test_very_many_columns_are_captured(postgres_url: str) -> None:
    names = [f"c{number}" for number in range(130)]
    table = f"create table orders (id integer primary key, {', '.join(f'{name} integer' for name in names)})"
    interest = Interest(name="wide", table="orders", key=["id"], after=names)
    async with captured(postgres_url, interest, table=table) as (store, other):
        await other.execute("insert into orders (id, c0, c129) values (1, 5, 6)")
        (one,) = await changes(store)
        values = one.values("after")
        assert (len(values), values["c0"], values["c1"], values["c129"]) == (130, 5, None, 6)


# ----- changes of the table


async def test_no_write_fails_as_a_captured_column_is_gone(postgres_url: str) -> None:
    async with captured(postgres_url, Interest(name="all", table="orders", key=["id"], after=["note"])) as (
        store,
        other,
    ):
        await other.execute("insert into orders values (1)")
        await other.execute("alter table orders drop column note")
        await other.execute("insert into orders values (2); update orders set amount = 1; delete from orders")
        assert [kind for kind, _ in await kinds(store)] == ["enter", *["lost"] * 3, "delete", "delete"]
        assert await states(store) == ["altered"]


async def test_no_write_fails_as_a_watched_column_has_another_name(postgres_url: str) -> None:
    async with captured(postgres_url, PAID) as (store, other):
        await other.execute("insert into orders values (1, 'paid', 1); alter table orders rename amount to total")
        assert await states(store) == ["altered"]
        await other.execute(
            "update orders set total = 2; update orders set status = 'open'; update orders set total = 3"
        )
        assert [kind for kind, _ in await kinds(store)] == ["enter", "lost", "lost"]


@pytest.mark.parametrize("watch", ["{row}.nothing", "no_such_function({row}.amount)", "{row}.amount +", "(select 1)"])
async def test_a_watch_that_cannot_be_is_refused_at_the_door(postgres_url: str, watch: str) -> None:
    async with captured(postgres_url) as (store, other):
        with pytest.raises(DeclarationError):
            await store.interests.declare(
                [Interest(name="w", table="orders", key=["id"], matches="{row}.id > 0", watches=[watch])], NOW
            )
        await other.execute("insert into orders values (1); update orders set amount = 1")
        assert await store.interests.list() == []


async def test_a_column_of_a_condition_is_not_dropped_by_mistake(postgres_url: str) -> None:
    async with captured(postgres_url, PAID) as (store, other):
        with pytest.raises(asyncpg.DependentObjectsStillExistError, match="_penstock_change_1"):
            await other.execute("alter table orders drop column status")
        await other.execute("alter table orders drop column status cascade")
        await other.execute("insert into orders values (1, 5)")
        assert await states(store) == ["missing"]


async def test_no_write_fails_as_a_column_has_another_type(postgres_url: str) -> None:
    async with captured(postgres_url, Interest(name="all", table="orders", key=["id"], after=["amount"])) as (
        store,
        other,
    ):
        await other.execute("insert into orders values (1, 'paid', 1)")
        await other.execute("alter table orders alter column amount type text")
        await other.execute("insert into orders values (2, 'paid', 'two')")
        assert await states(store) == ["altered"]
        await store.interests.declare([Interest(name="all", table="orders", key=["id"], after=["amount"])], NOW)
        await other.execute("insert into orders values (3, 'paid', 'three')")
        assert (await changes(store))[-1].values("after") == {"amount": "three"}
        assert await states(store) == ["ok"]


async def test_a_renamed_table_goes_on_and_is_noticed(postgres_url: str) -> None:
    async with captured(postgres_url, ALL) as (store, other):
        await other.execute("alter table orders rename to bookings; insert into bookings values (1)")
        assert await kinds(store) == [("enter", 1)]
        assert await states(store) == ["gone"]
        (row,) = await store.interests.list()
        await store.interests.drop([row.id])
        await other.execute("insert into bookings values (2)")
        assert await kinds(store) == [("enter", 1)], "its triggers are found wherever they are"


async def test_triggers_that_are_switched_off_are_noticed_and_mended(postgres_url: str) -> None:
    async with captured(postgres_url, ALL) as (store, other):
        for statement in (
            "disable trigger all",
            "enable replica trigger _penstock_change_1_insert",
            "enable trigger all",
        ):
            await other.execute(f"alter table orders {statement}")
            assert await states(store) == ["disabled"], statement
        await store.interests.declare([ALL], NOW)
        assert await states(store) == ["ok"]
        await other.execute("drop function penstock.change_1_insert() cascade; insert into orders values (1)")
        assert await states(store) == ["missing"]


async def test_a_dump_brings_the_triggers_along(postgres_url: str) -> None:
    """What a restored dump holds is what the catalog tells of it: the function, then the triggers, as they fire."""
    async with captured(postgres_url, ALL) as (_store, other):
        enabled = await other.fetch("select tgname, tgenabled from pg_trigger where tgname like '_penstock%'")
        fires = dict.fromkeys(("update", "delete", "truncate"), b"A") | {"insert": b"O", "applied": b"R"}
        assert dict(enabled) == {f"_penstock_change_1_{name}": when for name, when in fires.items()}
        body = await other.fetchval("select pg_get_functiondef('penstock.change_1_insert'::regproc)")
        assert "SECURITY DEFINER" in body


async def test_who_died_before_its_triggers_were_made_is_mended(postgres_url: str) -> None:
    async with captured(postgres_url) as (store, other):
        await other.execute(
            "insert into penstock.interest (name, digest, source, spec, declared_at) values ($1, $2, $3, $4, now())",
            ALL.name,
            ALL.digest,
            '"orders"',
            ALL.text(),
        )
        assert await states(store) == ["missing"]
        assert await store.interests.declare([ALL], NOW) == [1]
        assert await states(store) == ["ok"]


async def test_a_table_of_somebody_else_is_refused_with_the_right_that_is_missing(postgres_url: str) -> None:
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
            await other.execute("insert into orders values (1)")
        finally:
            await other.execute(f"drop owned by {name}; drop role {name}")


# ----- locks


async def test_a_table_in_use_is_waited_for_and_holds_up_nobody(
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
        await store.interests.declare([ALL], NOW)
        assert await states(store) == ["ok"]


async def test_what_nobody_may_read_of_others_is_not_told(postgres_url: str) -> None:
    async with captured(postgres_url, ALL) as (store, other):
        await other.execute("begin; insert into orders values (1)")
        assert await store.changes.oldest_transaction() is not None
        name = "feed_lowly"
        await other.execute(
            f"commit; create role {name} login; grant usage on schema penstock to {name};"
            f"grant select on all tables in schema penstock to {name}"
        )
        try:
            async with opened(as_user(postgres_url, name)) as lowly:
                assert await lowly.changes.oldest_transaction() is None
        finally:
            await other.execute(f"drop owned by {name}; drop role {name}")
