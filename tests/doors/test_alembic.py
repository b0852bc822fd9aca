"""Alembic beside penstock: what autogenerate sees, and histories of migrations that hold a table."""

from __future__ import annotations

import asyncio
import io
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import alembic.command
import psycopg
import pytest
from alembic.config import Config
from doors.cli_fixtures import Console
from stage.databases import run_sql
from stage.guests import library_url

from penstock import App
from penstock.migrations import include_name

PROGRAM = """
from penstock import ActionCtx, App, Index, Table, TaskCtx

app = App()


class Stay(Table):
    phone: str
    floor: int = 0
    by_phone = Index("phone", unique=True)


class SpecialStay(Table, name="stay_special"):
    phone: str


class Van(Table, source="shop_van", key="id", managed=False):
    id: int
    plate: str | None = None


@app.outbox(Van, name="vans", start="end")
async def vans(ctx: ActionCtx, van: Van) -> None: ...


@app.reactive_task(Stay, name="call", watch=("phone",))
async def call(ctx: TaskCtx[Stay]) -> None: ...
"""
ENV = """
from alembic import context
from sqlalchemy import Column, Integer, MetaData, Table, Text, create_engine
from sqlalchemy.pool import NullPool

import shop_tables
from penstock.migrations import include_name

metadata = MetaData()
Table("shop_van", metadata, Column("id", Integer, primary_key=True), Column("plate", Text, index=True))
Table("penstock_notes", metadata, Column("id", Integer, primary_key=True))
for schema in context.config.attributes["schemas"]:
    Table("stay", metadata, Column("id", Integer, primary_key=True), schema=schema)


def mine(name, type_, parent_names):
    asked.append((type_, name))
    return include_name(name, type_, parent_names) and name not in {"left", "postgis"}


asked = context.config.attributes["asked"]
url = context.config.get_main_option("url")
with create_engine(url, poolclass=NullPool).connect() as connection:
    given = {"include_name": mine if context.config.attributes["combined"] else include_name}
    context.configure(connection=connection, target_metadata=metadata, include_schemas=True, **given)
    with context.begin_transaction():
        context.run_migrations()
"""
TABLES = (
    "create table shop_van (id integer not null primary key, plate text)",
    "create index ix_shop_van_plate on shop_van (plate)",
    "create table penstock_notes (id integer not null primary key)",
)
INDEXES = (  # of its owner, on a managed table
    "create index stay_floor_idx on stay (floor)",
    "create unique index stay_both on stay (phone, floor)",
    "create index stay_lower on stay (lower(phone))",
    "create index stay_some on stay (floor) where floor > 1",
    "create index stay_down on stay (floor desc, phone)",
)
SCHEMAS = (  # one that only begins as penstock's does, with a table that is called as a managed one
    "create schema penstock_stays",
    "create table penstock_stays.stay (id integer not null primary key)",
    "create schema postgis",
    "create table postgis.grid (id integer not null primary key)",
)


def configure(folder: Path, url: str, *, combined: bool) -> Config:
    config = Config(stdout=io.StringIO())
    config.set_main_option("script_location", str(folder))
    config.set_main_option("path_separator", "os")
    lite = url.startswith("sqlite")
    driver = "sqlite" if lite else "postgresql+psycopg"
    config.set_main_option("url", str(library_url(url, driver)).replace("%", "%%"))
    config.attributes = {"asked": [], "combined": combined, "schemas": [] if lite else ["penstock_stays"]}
    return config


def generate(config: Config) -> str:
    """The body of the upgrade that Alembic proposes."""
    revision: Any = alembic.command.revision(config, "found", autogenerate=True)
    text = Path(revision.path).read_text("utf-8")
    Path(revision.path).unlink()
    return text.partition("def upgrade()")[2].partition("def downgrade()")[0]


def test_autogenerate_leaves_penstock_alone_and_penstock_the_indexes_of_others(
    console: Console, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, lite = empty_database_url, empty_database_url.startswith("sqlite")
    monkeypatch.setenv("DATABASE_URL", url)
    monkeypatch.syspath_prepend(console.folder)
    console.write("shop_tables.py", PROGRAM)
    console.write("env.py", ENV)
    console.write("script.py.mako", (Path(alembic.__file__).parent / "templates/generic/script.py.mako").read_text())
    (console.folder / "versions").mkdir()
    asyncio.run(run_sql(url, *TABLES, *(() if lite else SCHEMAS[:2])))
    monkeypatch.setenv("PENSTOCK_APP", "shop_tables:app")
    console.ok("migrate")
    asyncio.run(run_sql(url, *INDEXES))
    checked, plan = console("migrate", "--check"), console.ok("migrate", "--plan")
    assert (checked.code, checked.out) == (0, "")
    assert plan.out.count(" is stored, but not declared; it is left alone.") == plan.out.count("-- Index") == 5
    assert "schema-" not in console("doctor").out
    config = configure(console.folder, url, combined=False)
    assert "op." not in generate(config)
    alembic.command.ensure_version(config)
    alembic.command.check(config)  # also with the table in which Alembic keeps its version

    asyncio.run(run_sql(url, 'create table "left" (id integer primary key)', *SCHEMAS[2 + 2 * lite :]))
    assert "op.drop_table('left')" in generate(config)
    combined = configure(console.folder, url, combined=True)
    assert "op." not in generate(combined), "a name is compared if both say so"
    assert ("table", "left") in combined.attributes["asked"]

    asyncio.run(run_sql(url, "drop index ix_shop_van_plate", "drop table penstock_notes"))
    found = generate(combined)
    assert found.count("op.create_") == 2, "what its owner lacks is proposed, also where penstock watches"
    assert "op.create_index" in found
    assert "op.create_table('penstock_notes'" in found


def test_names_of_another_schema_are_penstocks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SCHEMA", "billing")
    App(schema="shipping")
    asked = [("billing", "schema"), ("shipping_ready_job", "table"), ("billing_task_job", "view"), ("crate", "schema")]
    said = [include_name(name, kind, {"schema_name": None}) for name, kind in asked]
    assert said == [False, False, False, True]
    assert include_name("shipping_crate", "table", {"schema_name": None})


# ----- histories that hold a table

REVISIONS = {
    "one": 'op.create_table("shop_van", sa.Column("id", sa.Integer, primary_key=True), sa.Column("plate", sa.Text), '
    'sa.Column("pla", sa.Text), sa.Column("wheels", sa.Integer))',
    "two": 'with held(op.get_bind(), "shop_van"): op.drop_column("shop_van", "pla")',
    "three": 'with held(op.get_bind(), "shop_van"), op.batch_alter_table("shop_van") as table: '
    'table.alter_column("wheels", type_=sa.Text)',
}


@pytest.mark.parametrize("order", ["from the beginning", "penstock first"])
def test_a_history_with_held_tables_runs_in_any_order_with_penstocks(
    console: Console, empty_database_url: str, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    url = empty_database_url
    monkeypatch.setenv("DATABASE_URL", url)
    console.write("shop_tables.py", PROGRAM)
    monkeypatch.syspath_prepend(console.folder)
    console.write("env.py", ENV)
    before = None
    for name, step in REVISIONS.items():
        lines = "from alembic import op\nimport sqlalchemy as sa\nfrom penstock.migrations import held\n"
        lines += f"revision, down_revision = {name!r}, {before!r}\n\n\ndef upgrade():\n    {step}\n"
        console.write(f"versions/{name}.py", lines)
        before = name
    config = configure(console.folder, url, combined=False)
    if order == "penstock first":
        assert "Create it with the program that owns it" in console("migrate").err
    if order != "from the beginning":
        alembic.command.upgrade(config, "one")
        console.ok("migrate")
        asyncio.run(run_sql(url, "insert into shop_van (id, plate) values (1, 'a')"))
    alembic.command.upgrade(config, "head")
    if order != "penstock first":
        console.ok("migrate")
    asyncio.run(run_sql(url, "insert into shop_van (id, plate) values (2, 'a')"))
    if order == "penstock first":
        assert "shop_van is held for outbox:vans" in console.ok("hold", "shop_van").err
        asyncio.run(run_sql(url, "alter table shop_van drop column plate"))
        left = console("release", "shop_van")
        assert (left.code, "cannot be captured any more: a column of shop_van is gone" in left.err) == (1, True)
        return
    listed = {one["name"]: one["state"] for one in console.ok("changes", "--json").json["interests"]}
    assert listed["outbox:vans"] == "ok"
    schema = "penstock." if url.startswith("postgres") else "penstock_"
    connect: Callable[[str], Any] = psycopg.connect if url.startswith("postgres") else sqlite3.connect
    with closing(connect(url.removeprefix("sqlite:///"))) as connection:
        rows = connection.execute(f"select kinds from {schema}change order by seq").fetchall()
    assert "enter" in rows[-1][0]
    assert all("lost" not in kinds for (kinds,) in rows), "in one transaction nothing is lost"
