"""Queries at a snapshot over HTTP: all calls with one `ts` read one state, for a moment; nothing else does."""

from __future__ import annotations

import asyncio
import base64
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from penstock.clock import SystemClock
from penstock.errors import DatabaseUnavailable

if TYPE_CHECKING:
    import httpx
    from doors.http_fixtures import Api, Door, Shop

pytest_plugins = ("doors.http_fixtures",)

SECOND = timedelta(seconds=1)


async def take(api: Api) -> str:
    """A new ts, asked for as the official client does: without a body, though its type is named."""
    response = await api.http.post("/api/query_ts", headers={"content-type": "application/json"})
    assert response.status_code == 200, response.text
    assert response.json().keys() == {"ts"}
    ts = response.json()["ts"]
    assert len(base64.b64decode(ts, validate=True)) == 8
    return str(ts)


async def at(api: Api, ts: Any, function: str = "count", /, **args: Any) -> httpx.Response:
    body = {"path": f"doors.http_fixtures:{function}", "args": [args], "ts": ts, "format": "convex_encoded_json"}
    return await api.post("/api/query_at_ts", body)


async def value_at(api: Api, ts: str, function: str = "count", /, **args: Any) -> Any:
    response = await at(api, ts, function, **args)
    assert response.status_code == 200, response.text
    assert response.json()["status"] == "success", response.text
    return response.json()["value"]


async def turns() -> None:
    """Let others do all that they can."""
    for _ in range(20):
        await SystemClock().sleep(0)


async def test_all_queries_at_one_ts_read_one_state_at_one_time(shop: Shop) -> None:
    async with shop() as (api, test):
        await api.value("mutation", "add", title="Emma")
        ts = await take(api)
        now = await value_at(api, ts, "now")
        await api.value("mutation", "add", title="Persuasion")
        assert await api.value("query", "count") == 2
        test.clock.advance(SECOND)
        assert (await value_at(api, ts), await value_at(api, ts, "read_all")) == (1, 1)
        assert await value_at(api, ts, "find", title="Persuasion") is None
        assert await value_at(api, ts, "now") == now
        assert await value_at(api, await take(api)) == 2, "a new one shows what was committed before"


async def test_an_error_of_one_query_leaves_the_snapshot_to_the_others(shop: Shop) -> None:
    async with shop() as (api, _):
        ts = await take(api)
        await api.value("mutation", "add", title="Emma")
        for by in ("raise", "break the transaction", "be canceled"):
            assert (await at(api, ts, "fail", by=by)).json()["status"] == "error"
        for function in ("sell", "hidden", "nothing"):
            body = (await at(api, ts, function)).json()
            assert (body["status"], "errorData" in body) == ("error", False), function
        assert await value_at(api, ts) == 0
        assert await value_at(api, ts, "echo", value={"$integer": "AQAAAAAAAAA="}) == 1


async def test_a_snapshot_is_closed_after_three_seconds_though_a_query_in_it_ends(shop: Shop) -> None:
    async with shop() as (api, test), shop() as (other, _):
        ts, held = await take(api), api.hold("slow")
        slow = asyncio.create_task(value_at(api, ts, "wait_and_count", title="slow"))
        await held.running.wait()
        test.clock.advance(3 * SECOND)
        await turns()
        response = await at(api, ts)
        assert (response.status_code, response.json()["code"]) == (503, "OutOfRetention")
        assert "/api/query_ts" in response.json()["message"]
        assert response.headers["retry-after"] == "1"
        held.may_go_on.set()
        assert await slow == 0
        again = await take(api)
        assert await value_at(api, again) == 0
        assert (await at(other, again)).json()["code"] == "OutOfRetention", "it means nothing in another process"
        assert (await at(api, "AAAAAAAAAAA=")).json()["code"] == "OutOfRetention"
        for wrong in (None, 1, "", "AAAA", "not base 64!", "AAAAAAAAAAAAAAAA", ["AAAAAAAAAAA="]):
            response = await at(api, wrong)
            assert (response.status_code, response.json()["code"]) == (400, "BadRequest"), wrong


async def test_a_query_that_takes_too_long_ends_the_snapshot(shop: Shop) -> None:
    async with shop(call_timeout=1.0) as (api, _):
        ts = await take(api)
        api.hold("slow")
        slow = await at(api, ts, "wait_and_count", title="slow")
        assert (slow.status_code, slow.json()["code"]) == (503, "CallTimeout")
        response = await at(api, ts)
        assert (response.status_code, response.json()["code"]) == (503, "OutOfRetention")


async def test_a_crowd_shares_few_snapshots_and_leaves_connections_to_others(shop: Shop) -> None:
    async with shop(max_connections=4) as (api, test):
        first = await take(api)
        crowd = [asyncio.create_task(take(api)) for _ in range(50)]
        await turns()
        assert not any(one.done() for one in crowd), "its snapshot is still to come"
        await api.value("mutation", "add", title="Emma")
        assert await value_at(api, first) == 0
        test.clock.advance(3 * SECOND)
        (ts,) = set(await asyncio.gather(*crowd))
        assert await value_at(api, ts) == 1
        assert await asyncio.gather(*[api.value("query", "count") for _ in range(20)]) == [1] * 20


async def test_a_lost_database_ends_snapshots_and_the_next_one_is_taken_once_it_is_back(shop: Shop) -> None:
    async with shop() as (api, test):
        ts = await take(api)

        async def lost(*_given: Any) -> Any:
            raise DatabaseUnavailable("The server has gone.")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(test.engine.store, "begin_read", lost)
            patch.setattr(test.runner, "_queries_in", lost)
            test.clock.advance(SECOND)
            for response in (await at(api, ts), await api.http.post("/api/query_ts")):
                assert (response.status_code, response.json()["code"]) == (503, "DatabaseUnavailable")
        assert (await at(api, ts)).json()["code"] == "OutOfRetention"
        test.clock.advance(SECOND)
        assert await value_at(api, await take(api)) == 0


async def test_a_backend_closes_while_snapshots_are_open_and_waited_for(shop: Shop) -> None:
    async with asyncio.timeout(20):
        async with shop(max_connections=4) as (api, _):
            await take(api)
            waiting = asyncio.create_task(take(api))
            await turns()
        with pytest.raises(asyncio.CancelledError):
            await waiting


# ----- functions of any kind


async def test_whoever_has_the_admin_token_and_nobody_else_calls_any_function(near_door: Door) -> None:
    async with near_door(admin_token="top-secret-of-all") as api:

        async def answer(function: str, token: str | None = "Bearer top-secret-of-all", /, **more: Any) -> Any:
            headers = {} if token is None else {"authorization": token}
            body = {"path": f"doors.http_fixtures:{function}", "args": {}, **more}
            return await api.post("/api/function", body, headers=headers)

        three = {"args": [{"number": 3}], "componentPath": None, "format": "convex_encoded_json"}
        for token in ("Bearer top-secret-of-all", "Convex top-secret-of-all"):
            assert (await answer("hidden", token, **three)).json() == {"status": "success", "value": 3}
        for name, args in (("add", {"title": "Emma"}), ("count", {}), ("restock", {"title": "Persuasion"})):
            assert (await answer(name, args=args, componentPath="")).json()["status"] == "success", name
        assert await api.value("query", "count") == 2
        assert "Could not find" in (await answer("nothing")).json()["errorMessage"]
        response = await answer("count", componentPath="sms")
        assert (response.status_code, response.json()["code"]) == (400, "BadRequest")
        assert "componentPath" in response.json()["message"]

        for token in (
            None,
            "Convex wrong",
            "Basic top-secret-of-all",
            "top-secret-of-all",
            "Convex prod:shop|top-secret-of-all",
        ):
            response = await answer("hidden", token, **three)
            assert (response.status_code, response.json()["code"]) == (401, "Unauthenticated"), token
        wrong = {"authorization": "Bearer wrong"}
        assert (await api.post("/api/function", "{", headers=wrong)).status_code == 401, "before the body is read"
        body = {"path": "doors.http_fixtures:hidden", "args": {"number": 3}}
        for path in ("query", "mutation", "action"):  # the token opens nothing else
            response = await api.post(f"/api/{path}", body, headers={"authorization": "Convex top-secret-of-all"})
            assert "Could not find public function" in response.json()["errorMessage"]
    async with near_door() as api:
        assert (await api.post("/api/function", body)).status_code == 404
