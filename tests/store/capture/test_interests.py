"""Interests where others are at work too: tables take the place of others, rights are missing, locks are held."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from stage.databases import run_sql
from stage.feed import NOW, opened

from penstock.changes.interest import Interest
from penstock.changes.position import BEGINNING
from penstock.errors import DatabaseBusy
from penstock.store.postgres import catalog
from penstock.store.store import Store

if TYPE_CHECKING:
    pass

ORDERS = "create table orders (id integer primary key, status text)"
ALL = Interest(name="all", table="orders", key=["id"], after=["status"])
SWAP = (
    "create table orders_new (id integer primary key, status text)",
    "alter table orders rename to orders_old",
    "alter table orders_new rename to orders",
)
PATIENCE = 30.0


async def kinds(store: Store) -> list[tuple[str, Any]]:
    changes = (await store.changes.read(BEGINNING, 1000)).changes
    return [(one.kind, one.key_values()[0] if one.key else None) for one in changes]


async def states(store: Store) -> list[str]:
    return [row.state for row in await store.interests.list()]


# ----- tables that take the place of others


async def test_of_tables_that_were_swapped_only_the_new_one_is_captured(database_url: str) -> None:
    async with opened(database_url) as store:
        await run_sql(database_url, ORDERS)
        await store.interests.declare([ALL], NOW)
        await run_sql(database_url, "insert into orders values (1, 'a')", *SWAP)
        assert await states(store) == ["missing"]
        assert await store.interests.mend(1)
        await run_sql(database_url, "insert into orders values (2, 'b')", "delete from orders_old")
        assert await kinds(store) == [("enter", 1), ("lost", None), ("enter", 2)]
        await run_sql(database_url, "drop table orders_old")
        assert await states(store) == ["ok"], "nothing of it was left there"


# ----- rights


async def test_an_interest_in_a_schema_without_rights_keeps_nobody_from_theirs(postgres_url: str) -> None:
    name = "stranger_to_schema"
    hidden = Interest(name="hidden", table="hidden.entry", key=["id"])
    async with opened(postgres_url) as store:
        await run_sql(
            postgres_url, "create schema hidden", "create table hidden.entry (id integer primary key)", ORDERS
        )
        await store.interests.declare([hidden], NOW)
        other = await asyncpg.connect(postgres_url)
        try:
            await other.execute(
                f"create role {name} login; grant all on schema penstock, public to {name};"
                f"grant all on all tables in schema penstock to {name}; alter table orders owner to {name}"
            )
            parts = urlsplit(postgres_url)
            async with opened(urlunsplit(parts._replace(netloc=f"{name}@"))) as theirs:
                await theirs.interests.declare([ALL], NOW)
                assert await states(theirs) == ["ok", "ok"]
        finally:
            await other.execute(f"reassign owned by {name} to current_user; drop owned by {name}; drop role {name}")
            await other.close()


# ----- locks


async def test_what_is_in_order_is_checked_without_a_lock(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "LOCK_WAIT", 0.0)
    async with opened(database_url) as store, opened(database_url) as other:
        await run_sql(database_url, ORDERS)
        await store.interests.declare([ALL], NOW)
        async with other.catalog.lock():
            await store.interests.check([ALL], NOW)
            if store.dialect.schemas:
                with pytest.raises(DatabaseBusy):  # nobody tries out triggers while others make theirs
                    await store.interests.check([replace(ALL, name="new")], NOW)


async def test_a_table_in_use_is_not_waited_for_to_check_an_interest(postgres_url: str) -> None:
    async with opened(postgres_url, statement_timeout=10 * PATIENCE) as store:
        await run_sql(postgres_url, ORDERS)
        other = await asyncpg.connect(postgres_url)
        try:
            await other.execute("begin; insert into orders values (1, 'a')")
            async with asyncio.timeout(PATIENCE):
                await store.interests.check([ALL], NOW)
            await other.execute("commit")
        finally:
            await other.close()
        assert await store.interests.list() == []
