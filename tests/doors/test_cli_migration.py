"""`penstock migration`: files that rename, split, retype and require columns while old and new processes write."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from stage.outboxes import run_sql

from penstock import App, MutationCtx, QueryCtx, Table, TaskCtx
from penstock.testing import TestApp

if TYPE_CHECKING:
    from doors.cli_fixtures import Console

pytest_plugins = ("doors.cli_fixtures",)


class Release:
    """A release of a program: the field in which it keeps who travels, and its calls."""

    def __init__(self, table: type[Table], field: str) -> None:
        self.app = app = App(tables=[table])

        @app.mutation
        async def book(ctx: MutationCtx, name: str) -> str:
            return await ctx.db.insert(table(**{field: name}))

        @app.mutation
        async def rebook(ctx: MutationCtx, trip: str, name: str) -> None:
            await ctx.db.patch(table, trip, **{field: name})

        @app.query
        async def names(ctx: QueryCtx) -> list[str]:
            return sorted(getattr(one, field) for one in await ctx.db.query(table).collect())

        @app.reactive_task(table, name="greet", cleanup="never")
        async def greet(ctx: TaskCtx[Any]) -> None: ...

        self.book, self.rebook, self.names = book, rebook, names


def old_release() -> Release:
    class Trip(Table, name="trip"):
        customer: str
        price: int = 0

    return Release(Trip, "customer")


def new_release() -> Release:
    class Trip(Table, name="trip"):
        client: str
        price: int = 0

    return Release(Trip, "client")


PROGRAM = """
from penstock import App, Table



class Trip(Table, name="trip"):
    {}
    price: {} = 0


app = App(tables=[Trip])
"""


@pytest.fixture
def trips(console: Console, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Console:
    console.write("trips.py", PROGRAM.format("client: str", "int"))
    monkeypatch.setenv("DATABASE_URL", database_url)
    return console


def test_a_rename_keeps_data_while_processes_of_both_releases_write(trips: Console, database_url: str) -> None:
    old, new = old_release(), new_release()

    async def story() -> None:
        async with TestApp(old.app, database_url) as before:
            first = await before.run_mutation(old.book, "ann")
            asked = await asyncio.to_thread(trips, "migration", "new", "client")
            assert asked.code, asked
            assert "trip.customer is not declared any more, and client is new. Was it renamed?" in asked.err
            await asyncio.to_thread(trips.ok, "migration", "new", "client", "--rename", "trip.customer=client")
            ran = await asyncio.to_thread(trips.ok, "migration", "run")
            assert "0001_client: waits for run --contract" in ran.out
            async with TestApp(new.app, database_url) as after:
                await before.run_mutation(old.book, "bob")
                await after.run_mutation(new.book, "cid")
                await before.run_mutation(old.rebook, first, "anna")
                assert await before.run_query(old.names) == await after.run_query(new.names) == ["anna", "bob", "cid"]
        async with TestApp(new.app, database_url) as after:
            await asyncio.to_thread(trips.ok, "migration", "run", "--contract")
            await after.run_mutation(new.book, "dan")
            assert await after.run_query(new.names) == ["anna", "bob", "cid", "dan"]

    asyncio.run(story())
    assert trips.ok("migration", "status", "--json").json["files"][0]["step"] == "done"
    assert trips("migration", "new", "more").err.count("There is nothing that needs a migration file")
    assert "fits" in trips.ok("migrate").err
