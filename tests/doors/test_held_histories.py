"""Whole histories of migrations that hold a table: from an empty database, and on one that penstock watches already."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import alembic.command
import psycopg
import pytest
from alembic.config import Config
from sqlalchemy import make_url
from stage.guests import library_url
from stage.outboxes import run_sql

from penstock.api.holding import hold, release

if TYPE_CHECKING:
    from doors.cli_fixtures import Console

pytest_plugins = ("doors.cli_fixtures",)

OWNED = """
from penstock import ActionCtx, App, Table, TaskCtx

app = App()


class Van(Table, source="shop_van", key="id", managed=False):
    id: int
    plate: str | None = None


@app.outbox(Van, name="vans", fields=("plate",), on=("insert", "update"), start="end")
async def vans(ctx: ActionCtx, van: Van) -> None: ...


@app.reactive_task(Van, name="park", watch=("plate",))
async def park(ctx: TaskCtx[Van]) -> None: ...
"""
MAKE = "create table shop_van (id integer primary key, plate text, pla text, wheels integer)"
DROP = "alter table shop_van drop column pla"
ENV = """
from alembic import context
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool
with create_engine(context.config.get_main_option("url"), poolclass=NullPool).connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
"""
REVISIONS = {
    "one": 'op.create_table("shop_van", sa.Column("id", sa.Integer, primary_key=True), sa.Column("plate", sa.Text), '
    'sa.Column("pla", sa.Text), sa.Column("wheels", sa.Integer))',
    "two": 'with held(op.get_bind(), "shop_van"): op.drop_column("shop_van", "pla")',
    "three": 'with held(op.get_bind(), "shop_van"), op.batch_alter_table("shop_van") as table: '
    'table.alter_column("wheels", type_=sa.Text)',
}
SETTINGS = """
SECRET_KEY, USE_TZ, DEFAULT_AUTO_FIELD = "x", True, "django.db.models.AutoField"
DATABASES = {{"default": {database}}}
INSTALLED_APPS = ["shop", "penstock.django"]
PENSTOCK_APP = "owned:app"
"""
MODELS = {
    "0001_van": """
    operations = [migrations.CreateModel("Van", [("id", models.AutoField(primary_key=True)),
        ("plate", models.TextField(null=True)), ("pla", models.TextField(null=True)),
        ("wheels", models.IntegerField(null=True))])]
""",
    "0002_pla": """
    dependencies = [("shop", "0001_van")]
    operations = [HoldCapture("shop_van"), migrations.RemoveField("van", "pla"), ReleaseCapture("shop_van")]
""",
    "0003_wheels": """
    dependencies = [("shop", "0002_pla")]
    operations = [HoldCapture("shop_van"), migrations.AlterField("van", "wheels", models.TextField(null=True)),
        ReleaseCapture("shop_van")]
""",
}


def with_alembic(console: Console, url: str, *, whole: bool) -> None:
    console.write("env.py", ENV)
    before = None
    for name, step in REVISIONS.items():
        head = "from alembic import op\nimport sqlalchemy as sa\nfrom penstock.migrations import held\n"
        head += f"revision, down_revision = {name!r}, {before!r}\n"
        console.write(f"versions/{name}.py", f"{head}\n\ndef upgrade():\n    {step}\n")
        before = name
    config = Config()
    config.set_main_option("script_location", str(console.folder))
    config.set_main_option("path_separator", "os")
    driver = "sqlite" if url.startswith("sqlite") else "postgresql+psycopg"
    config.set_main_option("url", str(library_url(url, driver)).replace("%", "%%"))
    alembic.command.upgrade(config, "head" if whole else "one")


def with_django(console: Console, url: str, *, whole: bool) -> None:
    parts, lite = make_url(url), url.startswith("sqlite")
    place = {"USER": parts.username, "HOST": parts.host or parts.query.get("host"), "PORT": parts.port}
    database = {"ENGINE": f"django.db.backends.{'sqlite3' if lite else 'postgresql'}", "NAME": parts.database}
    database |= {name: str(value) for name, value in place.items() if value}
    console.write("shop_settings.py", SETTINGS.format(database=database))
    for name, body in MODELS.items():
        head = "from django.db import migrations, models\nfrom penstock.django.operations import *\n"
        head = head.replace("*", "HoldCapture, ReleaseCapture")
        console.write(f"shop/migrations/{name}.py", f"{head}\n\nclass Migration(migrations.Migration):{body}")
    console.write("shop/migrations/__init__.py", "")
    console.write("shop/__init__.py", "")
    command = [sys.executable, "-W", "error", "-m", "django", "migrate", "--settings", "shop_settings", "-v", "0"]
    command += ["--pythonpath", "."] + ([] if whole else ["shop", "0001"])
    done = subprocess.run(command, cwd=console.folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def with_sql(console: Console, url: str, *, whole: bool) -> None:
    connect: Callable[[str], Any] = psycopg.connect if url.startswith("postgres") else sqlite3.connect
    with closing(connect(url.removeprefix("sqlite:///"))) as connection, connection:
        if not connection.execute(THERE[url[:6]]).fetchall():
            connection.execute(MAKE)
        if whole:
            hold(connection, "shop_van")
            connection.execute(DROP)
            assert release(connection, "shop_van") == []


def with_the_command(console: Console, url: str, *, whole: bool) -> None:
    try:
        asyncio.run(run_sql(url, MAKE))
    except Exception:  # noqa: BLE001 - it is there already
        assert whole
    if whole:
        console.ok("hold", "shop_van")
        asyncio.run(run_sql(url, DROP))
        console.ok("release", "shop_van")


THERE = {
    "sqlite": "select 1 from sqlite_schema where name = 'shop_van'",
    "postgr": "select 1 where to_regclass('shop_van') is not null",
}
TOOLS = [with_alembic, with_django, with_sql, with_the_command]


@pytest.mark.parametrize("upgrade", TOOLS)
def test_a_history_with_held_tables_runs_from_the_beginning_and_on_a_watched_table(
    console: Console, empty_database_url: str, monkeypatch: Any, upgrade: Callable[..., None]
) -> None:
    url = empty_database_url
    monkeypatch.setenv("DATABASE_URL", url)
    console.write("owned.py", OWNED)
    upgrade(console, url, whole=True)
    console.ok("migrate")
    assert_captured(console, url)


@pytest.mark.parametrize("order", ["owner first", "penstock first"])
@pytest.mark.parametrize("upgrade", TOOLS)
def test_both_orders_work_on_a_filled_database(
    console: Console, empty_database_url: str, monkeypatch: Any, upgrade: Callable[..., None], order: str
) -> None:
    url = empty_database_url
    monkeypatch.setenv("DATABASE_URL", url)
    console.write("owned.py", OWNED)
    if order == "penstock first":
        refused = console("migrate")
        assert refused.code, refused
        assert "Create it with the program that owns it" in refused.err
    upgrade(console, url, whole=False)
    console.ok("migrate")
    asyncio.run(run_sql(url, "insert into shop_van (id, plate) values (1, 'a')"))
    if order == "penstock first":
        console.ok("migrate")
    upgrade(console, url, whole=True)
    if order == "owner first":
        console.ok("migrate")
    assert_captured(console, url)


def assert_captured(console: Console, url: str) -> None:
    schema = "penstock." if url.startswith("postgres") else "penstock_"
    asyncio.run(run_sql(url, "insert into shop_van (id, plate) values (2, 'a')"))
    listed = {one["name"]: one["state"] for one in console.ok("changes", "--json").json["interests"]}
    assert {listed[name] for name in ("outbox:vans", "task:park")} == {"ok"}
    connect: Callable[[str], Any] = psycopg.connect if url.startswith("postgres") else sqlite3.connect
    with closing(connect(url.removeprefix("sqlite:///"))) as connection:
        rows = connection.execute(f"select kinds from {schema}change order by seq").fetchall()
    assert rows[-1][0].count("enter") == 2, "each of the two was told"
    assert all("lost" not in kinds for (kinds,) in rows), "in one transaction nothing is lost"
