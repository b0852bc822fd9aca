"""Functions with names and time limits of their own, at each door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest
from stage.sockets import listening, socket_client

from penstock import ActionCtx, App, JobId, MutationCtx, QueryCtx, Success, Table, asgi_app, public, sync
from penstock.clock import SystemClock
from penstock.errors import CallTimeout, DeclarationError

SHORT, LONG = timedelta(seconds=0.3), timedelta(minutes=20)
app = App(admin_token="the-gate-keeper")
pool = app.workpool("cpu", max_parallelism=1)


class Visit(Table):
    name: str


@app.query(access=public, name="slow:look", timeout=SHORT)
async def look(ctx: QueryCtx) -> int:
    await asyncio.Event().wait()
    return 1


@app.mutation(access=public, name="slow:put", timeout=SHORT)
async def put(ctx: MutationCtx) -> None:
    await ctx.db.insert(Visit(name="late"))
    await asyncio.Event().wait()


@app.action(access=public, name="slow:think", timeout=SHORT)
async def think(ctx: ActionCtx) -> None:
    await asyncio.Event().wait()


@app.query(access=public, name="http:patient", timeout=LONG)
async def patient(ctx: QueryCtx) -> list[str]:
    await SystemClock().sleep(0.6)
    return [one.name for one in await ctx.db.query(Visit).collect()]


@app.internal_action(name="cpu:double", runtime="process")
def double(ctx: sync.ActionCtx, number: int) -> int:
    return 2 * number


@app.mutation(access=public, name="jobs.of:start")
async def start(ctx: MutationCtx) -> str:
    return await pool.enqueue(ctx, double, 4)


@asynccontextmanager
async def served(database: str, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    asgi = asgi_app(app, config=app.config(database=database, **settings))
    async with listening(asgi) as url, httpx.AsyncClient(base_url=url, timeout=30) as http:
        yield http


async def test_a_function_has_a_time_limit_of_its_own_at_each_door(database_url: str) -> None:
    slow: list[tuple[str, dict[str, Any]]] = [
        ("/api/query", {"path": "slow:look"}),
        ("/api/query_batch", {"queries": [{"path": "slow:look"}]}),
        ("/api/mutation", {"path": "slow:put"}),
        ("/api/action", {"path": "slow:think"}),
        ("/api/run/slow/put", {}),
        ("/rest/slow/think", {}),
    ]
    async with served(database_url) as http:
        for path, body in slow:
            answer = await http.post(path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (503, "CallTimeout"), path
        async with socket_client(str(http.base_url), "slow") as client:
            await client.connect()
            await client.watch(0, "look")
            assert (await client.transition())[0]["type"] == "QueryFailed"
    async with served(database_url, call_timeout=0.2) as http:  # no call that took too long has written
        assert (await http.post("/api/query", json={"path": "http:patient"})).json()["value"] == []
        batch = await http.post("/api/query_batch", json={"queries": [{"path": "http:patient"}]})
        assert batch.json()["results"][0]["value"] == []
    async with served(database_url, call_timeout=1.0) as http:
        began = asyncio.get_running_loop().time()
        headers = {"authorization": "Bearer the-gate-keeper"}
        answer = await http.post("/api/function", json={"path": "slow:look"}, headers=headers)
        assert answer.json()["code"] == "CallTimeout"
        assert asyncio.get_running_loop().time() - began > 0.9, "an administrator has the time of the setting"


async def test_a_function_is_called_by_its_name(database_url: str) -> None:
    async with app.open(database_url, services=["worker"]) as backend:
        job = await backend.run_mutation(start)
        assert await pool.result(backend, JobId[int](job)) == Success(8)
        status = await backend.job(JobId(job))
        assert status is not None
        assert status.function == "cpu:double"
        async with backend.live(look) as watch:
            with pytest.raises(CallTimeout, match=r"slow:look took longer than 0\.3"):
                await anext(watch)
        assert await backend.dispatch.call("http:patient", None, "{}") == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "patient"}, r"'patient' \(.*test_requests.py:\d+\) is not a function name. Names have the form"),
        ({"name": ""}, r"'' \(.*\) is not a function name"),
        ({"name": 5}, r"5 \(.*\) is not a function name"),
        ({"name": "http:" + "x" * 600}, r"is not a function name"),
        ({"name": "slow:look"}, r"Two functions are named slow:look: .*test_requests.py:\d+ and .*test_requests.py"),
        ({"timeout": 5}, r"test_requests:wrong \(.*\): timeout is a timedelta greater than 0, .* not 5\. Write"),
        ({"timeout": timedelta(0)}, r"not datetime.timedelta"),
        ({"timeout": timedelta(days=8)}, r"at most 7 days"),
    ],
)
def test_wrong_names_and_limits_are_refused(options: dict[str, Any], said: str) -> None:
    async def wrong(ctx: QueryCtx) -> int:
        return 1

    with pytest.raises(DeclarationError, match=said):
        app.query(access=public, **options)(wrong)
