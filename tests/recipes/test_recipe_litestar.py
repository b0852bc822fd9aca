"""Litestar: a backend in its lifespan, errors with their statuses, and penstock's own API mounted in it."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from recipes.running import Recipe
from stage.sockets import socket_client

RECIPE = "litestar"


@pytest.mark.long
@pytest.mark.both_stores
def test_endpoints_call_functions_and_the_api_is_mounted(recipe: Recipe, database_url: str) -> None:
    recipe.environment["DATABASE_URL"] = database_url
    web = recipe.start("litestar", "--app", "desk:web", "run", "--port", "{port}")
    with httpx.Client(base_url=web.url) as http:
        planned = http.post("/visits/ada")
        assert (planned.status_code, planned.text[:6]) == (201, "visit_")
        assert http.get(f"/visits/{planned.text}").json()["guest"] == "ada"
        refused = http.post("/visits/nobody")
        assert (refused.status_code, refused.json()["data"]) == (409, "Who comes?")
        wrong = http.get("/visits/job_1")
        assert (wrong.status_code, wrong.json()["code"]) == (422, "ArgumentsInvalid")
        call = {"path": "desk:visit", "args": {"visit": planned.text}}
        assert http.post("/backend/api/query", json=call).json()["value"]["guest"] == "ada"
        assert http.get("/backend/readyz").status_code == 200

    async def watch() -> None:
        async with socket_client(f"{web.url}/backend", "desk") as client:
            await client.connect()
            await client.watch(0, "visit", visit=planned.text)
            while 0 not in client.answers:
                await client.transition()

    asyncio.run(watch())
    web.stop()
    assert "Finished server process" in web.log
