"""What a start takes on PostgreSQL: few connections, none of which keeps the right to change the schema."""

from __future__ import annotations

from typing import Any

import pytest
from stage.databases import connected

from penstock import App, MutationCtx, MutationTaskCtx, Table
from penstock.store.postgres import catalog
from penstock.store.postgres.route import Connection, Route
from penstock.testing import TestApp

app = App()
LOCKS = """
select count(*) from pg_locks l join pg_database d on d.oid = l.database
where d.datname = current_database() and l.locktype = 'advisory'"""


class Parcel(Table):
    name: str


@app.reactive_task(Parcel)
async def weigh(ctx: MutationTaskCtx[Parcel]) -> None:
    """Weigh a parcel."""


@app.mutation
async def send(ctx: MutationCtx) -> None:
    await ctx.db.insert(Parcel(name="a"))


async def test_a_start_opens_a_connection_each_for_calls_services_and_the_schema(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, open_one = list[Connection](), Route.open

    async def noted(route: Route, *args: Any) -> Connection:
        opened.append(await open_one(route, *args))
        return opened[-1]

    monkeypatch.setattr(Route, "open", noted)
    async with TestApp(app, postgres_url) as backend:
        assert len(opened) == 3, "of which one has changed tables, tried out triggers and made them"
        await backend.run_mutation(send)
        await backend.engine.store.signals.close()  # type: ignore[attr-defined]  # when it has told the others
        assert len(opened) == 3, "no connection of its own tells of work"


async def test_whoever_has_started_holds_no_right_to_change_the_schema(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "_KEPT", 3600.0)
    async with TestApp(app, postgres_url), connected(postgres_url) as connection:
        assert await connection.fetchval(LOCKS) == 0
        monkeypatch.setattr(catalog, "LOCK_WAIT", 0.0)
        async with TestApp(app, postgres_url) as other:
            await other.run_mutation(send)
