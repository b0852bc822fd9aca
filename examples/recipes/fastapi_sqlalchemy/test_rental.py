"""Tests with a database of their own each. Run them in this folder with ``pytest``.

They are on SQLite, or with ``TEST_SERVER=postgresql://…`` in databases of that server.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import httpx
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

os.environ.setdefault("RENTAL_SECRET", "0" * 64)
os.environ.setdefault("DATABASE_URL", "sqlite:///nowhere/none.db")  # no test may use this one

from rental.database import engine_url
from rental.models import Bike
from rental.web import backend, open_session, web
from rental.work import app, bill

from penstock.testing import TestApp, TestClock


async def on_server(sql: str) -> None:
    connection = await asyncpg.connect(os.environ["TEST_SERVER"])
    await connection.execute(sql)
    await connection.close()


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A new database with the team's tables; `TestApp` adds penstock's."""
    server = os.environ.get("TEST_SERVER")
    url = f"sqlite:///{tmp_path / 'test.db'}"
    if server:
        asyncio.run(on_server("create database rental_test"))
        url = make_url(server).set(database="rental_test").render_as_string(hide_password=False)
    monkeypatch.setenv("DATABASE_URL", url)
    command.upgrade(Config("alembic.ini"), "head")
    yield url
    if server:
        asyncio.run(on_server("drop database rental_test with (force)"))


@asynccontextmanager
async def shop(database: str) -> AsyncIterator[tuple[TestApp, httpx.AsyncClient]]:
    engine = create_async_engine(engine_url())
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    client = httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://rental")
    now = TestClock(datetime.now(UTC))  # tokens expire by the machine's clock
    async with TestApp(app, database, clock=now) as test, client as http, sessions() as session:
        web.dependency_overrides |= {backend: lambda: test, open_session: lambda: session}
        session.add(Bike(id=7, model="tandem"))
        await session.commit()
        yield test, http
        web.dependency_overrides.clear()
    await engine.dispose()


async def story(database: str) -> None:
    async with shop(database) as (test, http):
        login = {"username": "ada", "password": "secret"}
        assert (await http.post("/users", json=login)).status_code == 201
        assert (await http.post("/token", json=login | {"password": "guess"})).status_code == 401
        token = (await http.post("/token", json=login)).json()["access_token"]
        assert (await http.get("/rentals", headers={"authorization": f"Bearer {token}x"})).status_code == 401
        http.headers["authorization"] = f"Bearer {token}"
        rental = (await http.post("/bikes/7/rentals")).json()
        assert await test.run_until_idle() == 1, "the mail"
        await http.post(f"/rentals/{rental}/return")
        await test.run_until_idle()
        test.assert_task_ran(bill, rental)
        assert [one["bike_id"] for one in (await http.get("/rentals")).json()] == [7]


def test_a_bike_is_rented_and_billed(database: str) -> None:
    asyncio.run(story(database))


def test_autogenerate_has_nothing_to_do(database: str) -> None:
    async def use_penstock() -> None:
        async with TestApp(app, database):
            pass

    asyncio.run(use_penstock())
    command.check(Config("alembic.ini"))
