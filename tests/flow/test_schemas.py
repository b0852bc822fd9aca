"""Two programs that know nothing of each other share a database and a table of the user's, each with a schema."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import AsyncExitStack, closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from stage.databases import run_sql
from stage.waits import SOON

from penstock import ActionCtx, App, MutationCtx, QueryCtx, Table, TaskCtx, TokenBucket
from penstock.api.holding import hold, release
from penstock.config import Config, load_config
from penstock.errors import ConfigError, DeclarationError
from penstock.store.postgres.capture import Own
from penstock.store.push.migrate import load_migrations
from penstock.testing import TestApp

ORDERS = "create table orders (id integer primary key, what text)"
CAPTURED = ("all", "some")  # whether a condition keeps triggers from telling whole statements
SCHEMAS = ("penstock", "order", "a" * 30)  # the last one is as long as may be


class Order(Table, source="orders", key="id", managed=False, live=True):
    id: int  # type: ignore[assignment]  # it is a column of theirs
    what: str


class Shop:
    """A program: all of them declare the same names."""

    def __init__(self, schema: str, *, some: bool = False) -> None:
        self.app = app = App(schema=schema)
        self.schema, self.did = schema, list[str]()
        did = self.did
        mail = self.mail = app.workpool("mail", max_parallelism=1)
        self.calls = calls = app.rate_limit("calls", TokenBucket(rate=1, period=timedelta(days=1)))

        @app.internal_action
        async def send(ctx: ActionCtx, what: str) -> None:
            did.append(f"sent {what}")

        @app.mutation
        async def ask(ctx: MutationCtx, what: str) -> bool:
            await mail.enqueue(ctx, send, what=what)
            await app.outboxes.send(ctx, "news", what)
            return (await calls.take(ctx)).ok

        @app.query
        async def all_orders(ctx: QueryCtx) -> list[str]:
            return [row.what for row in await ctx.db.query(Order).collect()]

        @app.cron("0 0 * * *", name="nightly")
        async def nightly(ctx: MutationCtx) -> None:
            did.append("nightly")

        @app.outbox("news", name="news")
        async def news(ctx: ActionCtx, payload: str) -> None:
            did.append(f"news {payload}")

        condition: Any = (lambda row: row.what != "www.penstock.dev") if some else None

        @app.reactive_task(Order, name="react", filter=condition)
        async def react(ctx: TaskCtx[Order]) -> None:
            did.append(f"task {(await ctx.get_document()).what}")

        @app.outbox(Order, name="deliver")
        async def deliver(ctx: ActionCtx, row: Order) -> None:
            did.append(f"row {row.what}")

        self.send, self.ask, self.all_orders = send, ask, all_orders

    def on(self, url: str) -> TestApp:
        return TestApp(self.app, url)

    def enqueues(self, what: str, url: str) -> str:
        """The SQL that enqueues a job."""
        values = f"'mail', '{self.send.name}', '{{\"what\": \"{what}\"}}'"
        if url.startswith("postgres"):
            return f'select "{self.schema}".enqueue({values})'
        return f"insert into {self.schema}_enqueue (pool, function, args) values ({values})"

    def took(self) -> list[str]:
        found = sorted(self.did)
        self.did.clear()
        return found


def connect(url: str) -> Any:
    return psycopg.connect(url) if url.startswith("postgres") else sqlite3.connect(url.removeprefix("sqlite:///"))


async def idle(*tests: TestApp) -> None:
    for test in tests:
        await test.run_until_idle(advance=False)


async def watched(test: TestApp) -> set[str]:
    return {one.state for one in await test.engine.store.interests.list()}


@pytest.mark.parametrize("captured", CAPTURED)
async def test_programs_with_the_same_names_leave_each_other_alone(empty_database_url: str, captured: str) -> None:
    url = empty_database_url
    await run_sql(url, ORDERS)
    shops = one, other, _ = [Shop(schema, some=captured == "some") for schema in SCHEMAS]
    async with AsyncExitStack() as stack:
        first, second, third = tests = [await stack.enter_async_context(shop.on(url)) for shop in shops]
        live = [test.live(shop.all_orders) for test, shop in zip(tests, shops, strict=True)]
        watches = [await stack.enter_async_context(one) for one in live]
        assert [await asyncio.wait_for(anext(watch), SOON) for watch in watches] == [[]] * 3

        # A row of the user's own is told to each, once.
        await run_sql(url, "insert into orders values (1, 'tea'), (2, 'www.penstock.dev')")
        await idle(*tests)
        both = ["row tea", "row www.penstock.dev", "task tea", *["task www.penstock.dev"] * (captured == "all")]
        assert [shop.took() for shop in shops] == [both] * 3
        for test, watch in zip(tests, watches, strict=True):
            test.live_queries.wake.set()
            assert await asyncio.wait_for(anext(watch), SOON) == ["tea", "www.penstock.dev"]
        assert [await watched(test) for test in tests] == [{"ok"}] * 3, "none takes the others' triggers for changed"
        assert len(Own(SCHEMAS[2], 2**31 - 1).trigger("held_truncate")) <= 63

        # Jobs, messages and tokens of limits are of one program.
        assert await second.run_mutation(other.ask, "x") is True
        assert await second.run_mutation(other.ask, "y") is False
        assert (await first.jobs("pending"), len(await second.jobs("pending"))) == ([], 2)
        assert await first.run_mutation(one.ask, "z") is True
        await idle(third, first, second)
        assert [shop.took() for shop in shops] == [["news z", "sent z"], ["news x", "news y", "sent x", "sent y"], []]

        # So are locks and crons, and what is written in plain SQL.
        async with first.with_lock("key"), second.with_lock("key") as lock:
            assert lock.fence == 1
        await second.run_until(second.clock.now() + timedelta(days=1))
        await idle(*tests)
        assert [shop.took() for shop in shops] == [[], ["nightly"], []]
        await run_sql(url, other.enqueues("sql", url))
        await idle(*tests)
        assert [shop.took() for shop in shops] == [[], ["sent sql"], []]

        # So is work in transactions of the user's own.
        with closing(connect(url)) as connection:
            job = other.mail.enqueue(connection, other.send, what="guest")
            assert await second.job(job) is None
            connection.commit()
        assert (await first.job(job), await second.job(job) is not None) == (None, True)
        await idle(*tests)
        assert [shop.took() for shop in shops] == [[], ["sent guest"], []]


async def test_the_triggers_of_one_program_go_without_those_of_the_other(empty_database_url: str) -> None:
    url = empty_database_url
    await run_sql(url, ORDERS)
    one, other = shops = [Shop(schema) for schema in SCHEMAS[:2]]
    async with one.on(url) as first, other.on(url) as second:
        store = first.engine.store
        await store.interests.drop([each.id for each in await store.interests.list()])
        await run_sql(url, "insert into orders values (1, 'tea')")
        await idle(first, second)
        assert [shop.took() for shop in shops] == [[], ["row tea", "task tea"]]
        assert await watched(second) == {"ok"}
    if url.startswith("postgres"):
        await run_sql(url, "drop schema penstock cascade")
    async with other.on(url) as second:
        await run_sql(url, "insert into orders values (2, 'salt')")
        await idle(second)
        assert other.took() == ["row salt", "task salt"]


def test_a_table_is_held_for_all_programs_that_watch_it(empty_database_url: str) -> None:
    url = empty_database_url
    shops = [Shop(schema, some=True) for schema in SCHEMAS[1:]]

    async def opened() -> None:
        async with shops[0].on(url) as first, shops[1].on(url) as second:
            await idle(first, second)

    asyncio.run(run_sql(url, ORDERS))
    asyncio.run(opened())
    with closing(connect(url)) as connection:
        held = hold(connection, "orders")
        assert held == ["task:react", "outbox:deliver", "live orders"] * 2
        if url.startswith("postgres"):
            connection.execute("alter table orders alter column what type varchar(20)")
        assert release(connection, "orders") == []
        connection.commit()
        connection.execute("insert into orders values (1, 'tea')")
        connection.commit()
    asyncio.run(opened())
    assert [shop.took() for shop in shops] == [["row tea", "task tea"]] * 2


def test_a_name_that_cannot_be_a_schema_is_refused_where_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = ["", "Shop", "1shop", 'sh"op', "shop.x", "pg_shop", "sqlite", "public", "information_schema"]
    for name in (*wrong, "a" * 31):
        for declare in (App, Config):
            with pytest.raises(ConfigError, match="letters"):
                declare(schema=name)
    monkeypatch.setenv("PENSTOCK_SCHEMA", "shop")
    assert load_config().schema == "shop"
    assert load_config({"schema": "a" * 30}).schema == "a" * 30


def test_no_two_schemas_make_the_same_names_on_sqlite() -> None:
    made = {name for _, sql in load_migrations("sqlite") for name in re.findall(r"(?<![a-z])penstock_(\w+)", sql)}
    between = {one.removesuffix(f"_{other}") for one in made for other in made if one.endswith(f"_{other}")}
    assert "running" in between, "x_running_job_key is an index of the schema x, and a table of x_running"
    for name in between:
        with pytest.raises(ConfigError, match="letters"):
            Config(schema=f"x_{name}")


async def test_tables_with_names_of_the_schema_are_refused(empty_database_url: str) -> None:
    source = "shop.orders" if empty_database_url.startswith("postgres") else "Shop_orders"

    class Taken(Table, source=source, key="id", managed=False):
        id: int  # type: ignore[assignment]  # it is a column of theirs

    with pytest.raises(DeclarationError, match="schema='shop'"):
        async with TestApp(App(schema="shop", tables=[Taken]), empty_database_url):
            pass
