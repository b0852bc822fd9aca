"""The HTTP API: what callers send and get, on both stores, with and without a socket."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import math
import re
import struct
from typing import Any

import httpx
import pytest
from doors.http_fixtures import Api, Door
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from penstock.errors import Conflict, DatabaseFull, DatabaseUnavailable
from penstock.testing import gate, raising

INTERNAL = "call an internal one wrongly"
SECRET = "the-secret-of-the-house"


# ----- stories


def _tag(name: str, layout: str, value: float) -> dict[str, str]:
    return {name: base64.b64encode(struct.pack(layout, value)).decode()}


VALUES: tuple[tuple[str, Any, Any, Any], ...] = (  # an argument, what is sent, and what comes back in each format
    ("number", 1.0, 1, 1),
    ("number", 2**53, 2**53, 2**53),
    ("large", _tag("$integer", "<q", -(2**63)), _tag("$integer", "<q", -(2**63)), str(-(2**63))),
    ("real", 5e-324, 5e-324, 5e-324),
    ("real", _tag("$float", "<d", -math.inf), _tag("$float", "<d", -math.inf), "-Infinity"),
    ("real", {"$float": "AAAAAAAAAIA="}, {"$float": "AAAAAAAAAIA="}, 0.0),
    ("raw", {"$bytes": "AP/+"}, {"$bytes": "AP/+"}, "AP/+"),
)


async def test_values_come_back_as_convex_encodes_them(near_door: Door) -> None:
    async with near_door(admin_token="the-admin-token") as api:
        for argument, sent, encoded, clean in VALUES:
            for form, wanted in (("convex_encoded_json", encoded), ("json", clean)):
                args = [{argument: sent}]
                body: dict[str, Any] = {"path": f"doors.http_fixtures:same_{argument}", "args": args, "format": form}
                (found,) = {
                    (await api.post("/api/query", body)).text,
                    (await api.post("/api/function", body, headers={"authorization": "Convex the-admin-token"})).text,
                    (await api.http.get("/api/query", params=body | {"args": json.dumps(args)})).text,
                }
                value = json.loads(found)["value"]
                assert (type(value), value) == (type(wanted), wanted), found
        headers = {"convex-client": "python-0.8.1"}  # which takes no integers
        for form, value in (("convex_encoded_json", b"1.0"), ("json", b"1")):
            body = {"path": "doors.http_fixtures:same_number", "args": {"number": 1.0}, "format": form}
            assert (await api.post("/api/query", body, headers=headers)).content.endswith(b":%b}" % value)


async def test_the_other_ways_to_call(near_door: Door) -> None:
    async with near_door() as api:
        await api.value("mutation", "add", title="Emma")
        success = {"status": "success", "value": await api.value("query", "find", title="Emma")}
        args = {"title": "Emma"}
        for form in ({}, {"format": "convex_encoded_json"}):
            in_url = {"path": "doors.http_fixtures:find", "args": json.dumps(args), **form}
            assert (await api.http.get("/api/query", params=in_url)).json() == success
        assert (await api.post("/api/run/doors.http_fixtures/find", {"args": args})).json() == success
        named = {"path": "doors.http_fixtures:find", "args": [args], "format": "convex_json"}
        assert (await api.post("/api/query", named)).json() == success


async def test_a_batch_reads_one_snapshot_whatever_is_committed_meanwhile(door: Door) -> None:
    def queries(*functions: str, **args: Any) -> list[dict[str, Any]]:
        return [{"path": f"doors.http_fixtures:{function}", "args": args} for function in functions]

    async with door() as api:
        runner, added = (await api.asgi.opening.backend()).runner, asyncio.Event()
        once = runner._in_transaction

        async def add_after_the_first(*args: Any, **more: Any) -> Any:
            found = await once(*args, **more)
            if not added.is_set():
                added.set()
                await api.value("mutation", "add", title="Emma")
            return found

        runner._in_transaction = add_after_the_first  # type: ignore[method-assign]
        asked = queries("count", "now")
        for by in ("exit", "be canceled", "break the transaction"):
            asked += queries("fail", by=by)
        asked += queries("sell", title="Emma") + queries("hidden", number=1) + queries("find", title=1)
        asked += queries("find", title="Emma") + queries("now", "count")
        response = await api.post("/api/query_batch", {"queries": asked})
        assert response.status_code == 200
        assert SECRET not in response.text
        results = response.json()["results"]
        assert [one["status"] for one in results] == ["success"] * 2 + ["error"] * 6 + ["success"] * 3
        assert [one["value"] for one in (results[0], *results[-3:])] == [0, None, results[1]["value"], 0]
        assert results[6]["errorMessage"] == "Could not find public function for 'doors.http_fixtures:hidden'."
        assert await api.value("query", "count") == 1
        assert (await api.post("/api/query_batch", {"queries": []})).json() == {"results": []}


async def test_the_queries_of_a_batch_share_one_budget(near_door: Door) -> None:
    async def results(api: Api, *queries: dict[str, Any]) -> list[Any]:
        response = await api.post("/api/query_batch", {"queries": list(queries)})
        return [found.get("value", found.get("errorMessage")) for found in response.json()["results"]]

    async with near_door(max_bytes_read=10_000) as api:
        echo = {"path": "doors.http_fixtures:echo", "args": {"value": "x" * 4000}}
        count = {"path": "doors.http_fixtures:count"}
        refused = "LimitExceeded: The queries of this batch have {} more than 10000 bytes together."
        *first, third, last = await results(api, echo, echo, echo, count)
        assert first == ["x" * 4000] * 2
        assert third.startswith(refused.format("returned"))
        assert last.startswith(refused.format("returned"))
        await api.value("mutation", "add", title="Emma", cover="A" * 8000)
        read = {"path": "doors.http_fixtures:read_all"}
        *first, third = await results(api, read, read, count)
        assert first == [1, 1]
        assert third.startswith(refused.format("read"))
        assert await results(api, read, count) == [1, 1], "the next batch has its own"


# ----- errors


async def test_errors_for_callers_reach_them_with_their_data(near_door: Door) -> None:
    async with near_door() as api:
        found = await api.call("mutation", "sell", "convex_encoded_json", title="Emma")
        assert found["errorData"]["n"] == {"$integer": "AAAAAAAAABA="}
        told = r'\[Request ID: .*\] Server Error\nUncaught ConvexError: \{"kind":"unknown book".*'
        assert re.fullmatch(told, found["errorMessage"])
        data: Any
        for data in (None, False, 0, "", [], {}, {"code": 1, "raw": {"$bytes": "AP8="}}):
            found = await api.call("query", "raise_for_callers", "convex_encoded_json", data=data)
            assert found == {"status": "error", "errorMessage": found["errorMessage"], "errorData": data}


async def test_wrong_calls_are_told_what_is_wrong(near_door: Door) -> None:
    async with near_door() as api:
        for args, said in (
            ({}, "title: Field required"),
            ({"title": "x", "added": "2001-02-03T00:00:00"}, "added: Input should have timezone info"),
        ):
            message = await api.error("mutation", "add", **args)
            assert message.startswith("ArgumentValidationError: doors.http_fixtures:add: invalid arguments:"), message
            assert said in message
        assert (await api.error("mutation", "rate", stars=7)).endswith(
            "stars: Value error, a book has one to five stars."
        )
        for name in ("hidden", "nowhere", "app", "__class__"):  # what is internal is not told from what is not there
            said = f"Could not find public function for 'doors.http_fixtures:{name}'."
            for kind in ("query", "mutation", "action"):
                assert await api.error(kind, name, number="x") == said
        assert await api.value("query", "count") == 0


async def test_a_developer_learns_which_function_he_may_have_meant(near_door: Door) -> None:
    told = {
        "hidden": "It is internal: only this program calls it.",
        "nowhere": "",
        "Count": "Did you mean 'MODULE:count'?",
    }
    async with near_door(dev=True) as api:
        for name, hint in told.items():
            found = (await api.error("query", name)).replace("doors.http_fixtures", "MODULE").split("\n")[0]
            assert found == f"Could not find public function for 'MODULE:{name}'. {hint}".rstrip()


async def test_secrets_of_functions_stay_in_the_log(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    async with door() as api:
        within = {"exit", "be canceled", "time out"}  # what an action does without a transaction
        calls = [("query", "fail", {"by": by}) for by in api.failures if by not in {"insert too much", INTERNAL}]
        calls += [("mutation", "add_and_fail", {"by": by}) for by in api.failures if by != "cast it"]
        calls += [("action", "fail_in_action", {"by": by}) for by in within]
        calls += [("query", "leave_in_thread", {}), ("mutation", "add", {"title": "a\0b"})]
        calls += [("mutation", "add_and_return_nonsense", {"title": "c"})]
        for kind, name, args in calls:
            caplog.clear()
            response = await api.post(f"/api/{kind}", {"path": f"doors.http_fixtures:{name}", "args": args})
            request_id = response.headers["x-request-id"]
            message = f"[Request ID: {request_id}] Server Error"
            assert response.json() == {"status": "error", "errorMessage": message}, args
            (record,) = [found for found in caplog.records if found.levelno == logging.ERROR]
            assert request_id in record.getMessage()
            assert record.exc_info
        assert await api.value("query", "count") == 0, "what failed has left nothing"


async def test_in_development_the_text_of_an_error_and_what_is_logged_are_shown(
    near_door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Web sockets tell what is logged alike: more of that is in `test_socket`."""
    monkeypatch.setattr(logging, "raiseExceptions", False)  # of the line that does not fit its arguments
    async with near_door(dev=True) as api:
        message = await api.error("query", "fail")
        assert message.split("\n")[1] == f"Uncaught ValueError: cannot open the door with {SECRET}"
        two = await asyncio.gather(*[api.call("mutation", "say", text=text, fails=True) for text in "ab"])
        assert [one["logLines"][0] for one in two] == ["[WARNING] said a", "[WARNING] said b"]
        long = (await api.call("mutation", "say", text="x" * 5000, times=300))["logLines"]
        assert (len(long), {len(line) for line in long}) == (100, {2000 + len("[WARNING] ")})
    async with near_door() as api:
        assert await api.value("mutation", "say", text="Emma") is None


async def test_what_may_succeed_later_is_no_answer_of_the_function(door: Door) -> None:
    async def told(api: Api, error: BaseException) -> tuple[str, str]:
        with raising("commit.before", error, times=100):
            body = {"path": "doors.http_fixtures:add", "args": {"title": "Emma"}}
            response = await api.post("/api/mutation", body)
        assert response.status_code == 503
        assert response.json().keys() == {"code", "message"}
        assert SECRET not in response.text
        return response.json()["code"], response.headers["retry-after"]

    async with door(conflict_attempts=2) as api:
        assert await told(api, DatabaseUnavailable(SECRET)) == ("DatabaseUnavailable", "2")
        assert await told(api, DatabaseUnavailable(SECRET, uncertain=True)) == ("CommitUncertain", "2")
        assert await told(api, DatabaseFull(SECRET)) == ("DatabaseFull", "60")
        assert await told(api, Conflict(SECRET)) == ("OptimisticConcurrencyControlFailure", "1")
        assert await api.value("query", "count") == 0


# ----- around the calls


async def test_the_server_tells_of_itself_and_is_not_ready_without_the_database_and_at_its_end(near_door: Door) -> None:
    async with near_door() as api:

        async def told(path: str) -> tuple[int, str]:
            response = await api.http.get(path)
            assert SECRET not in response.text
            return response.status_code, response.json().get("code") or response.json()["status"]

        store = (await api.asgi.opening.backend()).engine.store

        async def away() -> None:
            raise DatabaseUnavailable(SECRET)

        was, store.ping = store.ping, away  # type: ignore[method-assign]
        assert [await told("/readyz"), await told("/healthz")] == [(503, "NotReady"), (200, "alive")]
        store.ping = was  # type: ignore[method-assign]
        assert await told("/readyz") == (200, "ready")
        assert (await api.http.get("/version")).text[0].isdigit()
        api.asgi.opening.draining = True
        assert [await told("/readyz"), await told("/healthz")] == [(503, "ShuttingDown"), (200, "alive")]
        response = await api.post("/api/query", {"path": "doors.http_fixtures:count"})
        assert (response.status_code, response.json()["code"]) == (503, "ShuttingDown")
        api.asgi.opening.draining = False


async def test_a_server_whose_connections_are_all_in_use_is_ready(door: Door) -> None:
    async with door(max_connections=1) as api:
        held = api.hold("Emma")
        adding = asyncio.create_task(api.value("mutation", "wait_and_add", title="Emma"))
        await held.running.wait()
        assert (await api.http.get("/readyz")).json() == {"status": "ready"}
        held.may_go_on.set()
        await adding


async def test_every_answer_has_a_request_id_and_a_line_in_the_log(
    near_door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    def line() -> dict[str, Any]:
        (found,) = [record for record in caplog.records if getattr(record, "event", "") == "http.request"]
        caplog.clear()
        facts: dict[str, Any] = found.facts  # type: ignore[attr-defined]
        return facts

    caplog.set_level(logging.DEBUG, "penstock")
    async with near_door() as api:
        caplog.clear()
        response = await api.post("/api/query", {"path": "doors.http_fixtures:count"})
        found = line()
        assert found["request_id"] == response.headers["x-request-id"]
        assert (found["method"], found["path"], found["status"]) == ("POST", "/api/query", 200)
        assert (found["function"], found["ms"] >= 0) == ("doors.http_fixtures:count", True)
        await api.http.get("/no%0Awhere%20?token=secret")
        found = line()
        assert (found["path"], found["status"]) == ("/no%0Awhere%20", 404)
        given = {"x-request-id": "from-the-proxy.1"}
        assert (await api.http.get("/version", headers=given)).headers["x-request-id"] == "from-the-proxy.1"
        assert line()["request_id"] == "from-the-proxy.1"
        odd = {"x-request-id": "a b"}
        assert (await api.http.get("/version", headers=odd)).headers["x-request-id"] != "a b"
        line()
        await api.post("/api/query", {"path": "doors.http_fixtures:find"})
        assert line()["error"] == "ArgumentsInvalid"


async def test_web_pages_of_known_origins_may_call_also_what_is_mounted(near_door: Door) -> None:
    async def hook(request: Request) -> Response:
        if request.method == "OPTIONS":
            return Response(status_code=204, headers={"allow": "PUT"})
        own = {"access-control-allow-origin": "https://own.example"} if request.url.path.endswith("own") else {}
        return PlainTextResponse("done", headers=own)

    def allowed(response: httpx.Response) -> list[str]:
        return response.headers.get_list("access-control-allow-origin")

    page, other = "https://shop.example", "https://evil.example"
    ask = {"access-control-request-method": "PUT", "access-control-request-headers": "content-type,convex-client"}
    count = {"path": "doors.http_fixtures:count"}
    async with near_door(cors_origins=f"{page}, https://admin.example") as api:
        post = {**ask, "access-control-request-method": "POST"}
        asked = await api.http.options("/api/mutation", headers={"origin": page, **post})
        assert (asked.status_code, allowed(asked)) == (200, [page])
        assert asked.headers["access-control-allow-headers"] == "content-type,convex-client"
        assert "POST" in asked.headers["access-control-allow-methods"]
        assert allowed(await api.http.options("/api/mutation", headers={"origin": other, **post})) == []
        response = await api.post("/api/query", "{", headers={"origin": page, "content-type": "application/json"})
        assert allowed(response) == [page]
        assert "x-request-id" in response.headers["access-control-expose-headers"]
        assert allowed(await api.post("/api/query", count, headers={"origin": other})) == []

        routes = [Route(path, hook, methods=["PUT", "OPTIONS"]) for path in ("/hook", "/own")]
        api.asgi.mount("/hooks", Starlette(routes=routes))
        outer = FastAPI()
        outer.mount("/inner", api.asgi)
        outer.add_middleware(CORSMiddleware, allow_origins=[page], allow_methods=["*"], allow_headers=["*"])
        async with httpx.AsyncClient(base_url="http://outer", transport=httpx.ASGITransport(outer)) as through:
            for http, path in (api.http, "/hooks"), (through, "/inner/hooks"):
                asked = await http.options(f"{path}/hook", headers={"origin": page, **ask})
                assert (asked.status_code, allowed(asked)) == (200, [page])
                assert "PUT" in asked.headers["access-control-allow-methods"]
                assert allowed(await http.put(f"{path}/hook", headers={"origin": page})) == [page], "it comes once"
                assert allowed(await http.put(f"{path}/hook", headers={"origin": other})) == []
        assert allowed(await api.http.put("/hooks/own", headers={"origin": page})) == ["https://own.example"]
        left = await api.http.options("/hooks/hook", headers={"origin": other, **ask})
        assert (left.status_code, left.headers["allow"], allowed(left)) == (204, "PUT", [])
    async with near_door(cors_origins="*") as api:
        response = await api.post("/api/query", count, headers={"origin": other})
        assert allowed(response) == [other]
        assert "access-control-allow-credentials" not in response.headers


# ----- limits and time


async def test_too_many_calls_at_once_are_refused(near_door: Door) -> None:
    async with near_door(max_calls=1) as api:
        held = api.hold("first")
        first = asyncio.create_task(api.value("action", "wait_in_action", title="first"))
        await held.running.wait()
        for path, body in (
            ("/api/query", {"path": "doors.http_fixtures:count"}),
            ("/api/query_batch", {"queries": [{"path": "doors.http_fixtures:count"}]}),
        ):
            response = await api.post(path, body)
            assert (response.status_code, response.json()["code"]) == (503, "Overloaded")
            assert response.headers["retry-after"] == "1"
        held.may_go_on.set()
        assert await first == "done"
        assert await api.value("query", "count") == 0


async def test_a_call_that_takes_too_long_has_no_effect(door: Door) -> None:
    async with door(call_timeout=1.0) as api:
        api.hold("slow")
        body = {"path": "doors.http_fixtures:wait_and_add", "args": {"title": "slow"}}
        response = await api.post("/api/mutation", body)
        assert (response.status_code, response.json()["code"]) == (503, "CallTimeout")
        assert await api.value("query", "count") == 0


async def test_a_commit_under_way_is_never_cut_off(door: Door) -> None:
    async with door(call_timeout=1.0) as api:
        with gate("commit.before", most=1) as commit:
            adding = asyncio.create_task(api.value("mutation", "add", title="Emma"))
            await commit.arrived()
            api.hold("slow")
            body = {"path": "doors.http_fixtures:wait_in_action", "args": {"title": "slow"}}
            response = await api.post("/api/action", body)  # until the time of both is over
            assert response.json()["code"] == "CallTimeout"
            commit.open()
            await adding
        assert await api.value("query", "count") == 1
