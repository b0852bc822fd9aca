"""The PostgreSQL store keeps the contract of stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from penstock.clock import SystemClock
from penstock.config import Config
from penstock.store.contract import Statement, Store
from penstock.store.open import make_store
from penstock.store.postgres.route import Route, _Connection
from penstock.testing.conformance.bench import StoreMaker
from penstock.testing.conformance.suite import StoreSuite


class TestPostgres(StoreSuite):
    slow = Statement("select pg_sleep(600)")

    machine_examples = 25  # each step is a round trip
    delete_lease = Statement("delete from penstock.lease where id = $1")

    @pytest.fixture(autouse=True)
    def _server(self, postgres_databases: Callable[[], str]) -> None:
        self.new_database = postgres_databases

    def make_database(self) -> StoreMaker:
        url = self.new_database()

        def make(**settings: Any) -> Store:
            return make_store(Config(database=url, **settings), SystemClock())

        return make


async def test_connections_know_the_types_of_arrays_from_each_other(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[int]] = []
    ask = asyncpg.Connection._introspect_types

    async def counted(connection: Any, types: Iterable[int], timeout: float | None) -> Any:  # noqa: ASYNC109 - its name
        asked.append(set(types))
        return await ask(connection, types, timeout)

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", counted)
    monkeypatch.setattr(_Connection, "_known", {})
    route, ids = Route(postgres_url, 30.0), [UUID(int=7), None]
    for number in range(3):
        connection = await route.open(10.0, None)
        try:
            if number == 0:
                await connection.execute("create type mood as enum ('calm')")
            assert await connection.fetchval("select $1::uuid[]", ids) == ids
            assert await connection.fetchval("select $1::int4range[]", [asyncpg.Range(1, 2)]) == [asyncpg.Range(1, 2)]
            assert await connection.fetchval("select $1::mood[]", ["calm"]) == ["calm"]
        finally:
            await connection.close()
    of_users = [types for types in asked if max(types) >= 16384]
    assert (len(asked), len(of_users)) == (5, 3), "only what is not PostgreSQL's own is asked for each time"
