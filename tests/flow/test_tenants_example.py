"""The example of tenants: one app on a database for each of them."""

from __future__ import annotations

import asyncio

import pytest
import shops
from stage.databases import name_of
from stage.processes import run_example
from tenants import Tenants

from penstock.clock import SystemClock
from penstock.errors import DatabaseUnavailable


def test_each_shop_has_its_own_orders_and_all_share_one_worker(sqlite_url: str) -> None:
    said = run_example("tenants/shops", sqlite_url)
    assert said.splitlines() == [
        "bakery: [0, 1, 2, 3, 4]",
        "bikes: [10, 11, 12, 13, 14]",
        "books: [20, 21, 22, 23, 24]",
    ]


async def test_tenants_on_both_stores_are_opened_once_and_closed_when_idle(sqlite_url: str, postgres_url: str) -> None:
    away = postgres_url.replace(name_of(postgres_url), "none")
    urls = {"file": sqlite_url, "server": postgres_url, "away": away}
    async with Tenants(shops.app, urls.__getitem__, most=1) as tenants:
        async with tenants.backend("file") as here, tenants.backend("server") as there:
            await here.run_mutation(shops.order, number=1)
            async with tenants.backend("file") as again:
                assert again is here, "it is in use, so it stays though there are too many"
            jobs = [(await backend.job_counts())["ready"] for backend in (here, there)]
            assert jobs == [1, 0], "the job is where its row is"
        with pytest.raises(KeyError):
            async with tenants.backend("nobody"):
                pass
        for _ in range(2):
            with pytest.raises(DatabaseUnavailable):
                async with tenants.backend("away"):
                    pass

        async def opened() -> object:
            async with tenants.backend("server") as backend:
                await SystemClock().sleep(0)
                return backend

        first, second = await asyncio.gather(opened(), opened())
        assert first is second, "who comes while it opens waits for the same one"
        async with tenants.backend("file") as other:
            assert other is not here, "it was idle, and has made room"
