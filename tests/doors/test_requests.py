"""Functions with names and time limits of their own, and the request that they see, at each door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest
from stage.sockets import listening, socket_client

from penstock import (
    ActionCtx,
    App,
    JobId,
    MutationCtx,
    QueryCtx,
    RequestInfo,
    Success,
    Table,
    asgi_app,
    public,
    sync,
)
from penstock.clock import SystemClock
from penstock.errors import CallTimeout, DeclarationError
from penstock.testing import TestApp

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
    await SystemClock().sleep(0.8)
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
    async with served(database_url, call_timeout=0.5) as http:  # no call that took too long has written
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
            with pytest.raises(CallTimeout, match=r"Query `look` execution timed out \(maximum duration 0\.3 s\)"):
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


# ----- ctx.request


async def from_here(ctx: QueryCtx) -> bool:
    return ctx.request is None or ctx.request.user_agent != "robot"


@app.query(access=from_here)
async def who(ctx: QueryCtx) -> RequestInfo | None:
    return await ctx.run_query(who_within)


@app.internal_query
def who_within(ctx: sync.QueryCtx) -> RequestInfo | None:
    return ctx.request


@app.mutation(access=from_here)
async def who_in_mutation(ctx: MutationCtx) -> RequestInfo | None:
    await ctx.scheduler.run_after(timedelta(0), note, "mutation")
    return ctx.request


@app.action(access=from_here)
async def who_in_action(ctx: ActionCtx) -> RequestInfo | None:
    return ctx.request


@app.internal_mutation
async def note(ctx: MutationCtx, name: str) -> None:
    await ctx.db.insert(Visit(name=f"{name} {ctx.request}"))


@app.query(access=public)
async def sometimes(ctx: QueryCtx) -> str:
    """Read the request once there is a visit."""
    found = await ctx.db.query(Visit).take(1)
    return f"{ctx.request.user_agent if found and ctx.request else ''} {len(found)}"


@app.internal_query
async def visits(ctx: QueryCtx) -> list[Visit]:
    return await ctx.db.query(Visit).collect()


@app.mutation(access=public)
async def add(ctx: MutationCtx) -> None:
    await ctx.db.insert(Visit(name="x"))


async def test_functions_and_guards_see_the_request_of_their_call(database_url: str) -> None:
    async with served(database_url) as http:
        agent = {"user-agent": "curl/8", "x-request-id": "mine"}
        for kind, name in (("query", "who"), ("mutation", "who_in_mutation"), ("action", "who_in_action")):
            path = f"test_requests:{name}"
            for answer in (
                await http.post(f"/api/{kind}", json={"path": path}, headers=agent),
                await http.post(f"/rest/test_requests/{name}", json={}, headers=agent),
            ):
                found = answer.json().get("value", answer.json())
                assert found == {"address": "127.0.0.1", "user_agent": "curl/8", "request_id": "mine"}, answer.text
                assert answer.headers["x-request-id"] == "mine"
            refused = await http.post(f"/api/{kind}", json={"path": path}, headers={"user-agent": "robot" * 200})
            assert refused.json()["value"]["user_agent"] == "robot" * 100, "a long name is cut"
            refused = await http.post(f"/api/{kind}", json={"path": path}, headers={"user-agent": "robot"})
            assert "errorMessage" in refused.json()
        batch = {"queries": [{"path": "test_requests:who"}]}
        answer = await http.post("/api/query_batch", json=batch, headers=agent)
        assert answer.json()["results"][0]["value"]["request_id"] == "mine"
    async with TestApp(app, database_url) as test:
        assert await test.run_query(who) is None
        await test.run_mutation(who_in_mutation)
        await test.run_until_idle()
        assert "mutation None" in [one.name for one in await test.run_query(visits)]


async def test_a_watched_answer_that_read_the_request_is_of_its_connection_alone(database_url: str) -> None:
    async with served(database_url) as http:
        url, module = str(http.base_url), "test_requests"
        async with (
            socket_client(url, module, user_agent_header="one") as one,
            socket_client(url, module, user_agent_header="two") as two,
            socket_client(url, module, user_agent_header="robot") as robot,
        ):
            for client in (one, two, robot):
                await client.connect()
                await client.modify([client.added(0, "sometimes"), client.added(1, "who")])
                await client.until(0, " 0")
            assert robot.answers[1].get("type") == "QueryFailed", (robot.answers, one.answers, two.answers)
            assert [client.answers[1]["user_agent"] for client in (one, two)] == ["one", "two"]
            assert one.answers[1]["request_id"] != two.answers[1]["request_id"]
            assert (await http.post("/api/mutation", json={"path": f"{module}:add"})).status_code == 200
            for client, name in ((one, "one"), (two, "two"), (robot, "robot")):
                await client.until(0, f"{name} 1")
