"""Queries at a snapshot over HTTP: all calls with one `ts` read one state, for a moment; nothing else does."""

from __future__ import annotations

import asyncio
import base64
import json
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
        for function in ("fail", "break_the_transaction", "cancel_within", "sell", "hidden", "nothing"):
            body = (await at(api, ts, function)).json()
            assert (body["status"], "errorData" in body) == ("error", False), function
        assert await value_at(api, ts) == 0
        assert await value_at(api, ts, "echo", value={"$integer": "AQAAAAAAAAA="}) == 1


async def test_a_snapshot_is_closed_after_three_seconds(shop: Shop) -> None:
    async with shop() as (api, test):
        ts = await take(api)
        test.clock.advance(3 * SECOND)
        await turns()
        response = await at(api, ts)
        assert (response.status_code, response.json()["code"]) == (503, "OutOfRetention")
        assert "/api/query_ts" in response.json()["message"]
        assert response.headers["retry-after"] == "1"
        assert await value_at(api, await take(api)) == 0


async def test_a_ts_means_nothing_in_another_process(shop: Shop) -> None:
    async with shop() as (api, _), shop() as (other, _):
        response = await at(other, await take(api))
        assert (response.status_code, response.json()["code"]) == (503, "OutOfRetention")


async def test_what_is_no_ts_is_refused(shop: Shop) -> None:
    async with shop() as (api, _):
        for ts in (None, 1, "", "AAAA", "not base 64!", "AAAAAAAAAAAAAAAA", ["AAAAAAAAAAA="]):
            response = await at(api, ts)
            assert (response.status_code, response.json()["code"]) == (400, "BadRequest"), ts
        response = await at(api, "AAAAAAAAAAA=")
        assert (response.status_code, response.json()["code"]) == (503, "OutOfRetention")


async def test_a_query_that_has_begun_ends_though_its_snapshot_is_closed_meanwhile(shop: Shop) -> None:
    async with shop() as (api, test):
        ts, held = await take(api), api.hold("slow")
        slow = asyncio.create_task(value_at(api, ts, "wait_and_count", title="slow"))
        await held.running.wait()
        test.clock.advance(3 * SECOND)
        await turns()
        assert (await at(api, ts)).status_code == 503
        held.may_go_on.set()
        assert await slow == 0


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


async def test_open_snapshots_keep_no_server_from_closing(far_door: Door) -> None:
    async with asyncio.timeout(10):
        async with far_door() as api:
            ts = await take(api)
            assert await value_at(api, ts) == 0


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


async def any_function(api: Api, body: Any, token: str | None = "Bearer top-secret-of-all") -> httpx.Response:
    return await api.post("/api/function", body, headers={} if token is None else {"authorization": token})


async def test_whoever_has_the_admin_token_calls_any_function(door: Door) -> None:
    async with door(admin_token="top-secret-of-all") as api:
        for token in ("Bearer top-secret-of-all", "Convex top-secret-of-all"):
            body: dict[str, Any] = {"path": "doors.http_fixtures:hidden", "args": {"number": 3}}
            assert (await any_function(api, body, token)).json() == {"status": "success", "value": 3}
            body |= {"args": [{"number": 4}], "componentPath": None, "format": "convex_encoded_json"}
            assert (await any_function(api, body, token)).json() == {"status": "success", "value": 4}
        for name, args in (("add", {"title": "Emma"}), ("count", {}), ("restock", {"title": "Persuasion"})):
            body = {"path": f"doors.http_fixtures:{name}", "args": args, "componentPath": ""}
            assert (await any_function(api, body)).json()["status"] == "success", name
        assert await api.value("query", "count") == 2
        unknown = await any_function(api, {"path": "doors.http_fixtures:nothing"})
        assert "Could not find" in unknown.json()["errorMessage"]
        response = await any_function(api, {"path": "doors.http_fixtures:count", "componentPath": "sms"})
        assert (response.status_code, response.json()["code"]) == (400, "BadRequest")
        assert "componentPath" in response.json()["message"]


async def test_without_the_admin_token_nobody_learns_anything(door: Door) -> None:
    body = json.dumps({"path": "doors.http_fixtures:hidden", "args": {"number": 3}})
    async with door(admin_token="top-secret-of-all") as api:
        for token in (
            None,
            "Bearer wrong",
            "Convex wrong",
            "Basic top-secret-of-all",
            "top-secret-of-all",
            "Convex prod:shop|top-secret-of-all",
        ):
            response = await any_function(api, body, token)
            assert (response.status_code, response.json()["code"]) == (401, "Unauthenticated"), token
        assert (await any_function(api, "{", "Bearer wrong")).status_code == 401
        for path in ("query", "mutation", "action"):  # the token opens nothing else
            response = await api.post(f"/api/{path}", body, headers={"authorization": "Convex top-secret-of-all"})
            assert "Could not find public function" in response.json()["errorMessage"]
    async with door() as api:
        assert (await any_function(api, body, "Bearer x")).status_code == 404
