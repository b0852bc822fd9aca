"""The client: what it sends, what answers mean to it, and when it sends again."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from doors.http_fixtures import Api, Door

from penstock.client import AsyncClient, Client, FunctionError, ServerError, ServerUnreachable
from penstock.client import client as client_module
from penstock.client.encoding import encode
from penstock.errors import (
    AccessDenied,
    ApplicationError,
    CallTimeout,
    ConfigError,
    Conflict,
    CursorInvalid,
    DatabaseBusy,
    DatabaseUnavailable,
    InputError,
    LimitExceeded,
    NotSignedIn,
    Overloaded,
    PenstockError,
    TryAgain,
    Unauthenticated,
    ValueInvalid,
)

WHEN = datetime(2024, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


# ----- against a server


async def test_an_async_client_calls(door: Door) -> None:
    async with door() as api:
        await use_async(api)


async def use_async(api: Api) -> None:
    if api.http.base_url.host == "shop":
        client = AsyncClient("http://shop", transport=httpx.ASGITransport(api.asgi))
    else:
        client = AsyncClient(str(api.http.base_url))
    async with client:
        book = await client.mutation("doors.http_fixtures:add", title="Emma", copies=2**60, added=WHEN, cover=b"\xff")
        found = await client.query("doors.http_fixtures:find", title="Emma")
        assert found["_id"] == book
        assert (found["copies"], found["cover"]) == (2**60, b"\xff")
        assert datetime.fromisoformat(found["added"]) == WHEN
        assert await client.query("doors.http_fixtures:find", {"title": "Ulysses"}) is None
        assert await client.action("doors.http_fixtures:restock", {}, title="Ulysses")
        assert math.isinf(await client.query("doors.http_fixtures:echo", value=math.inf))
        with pytest.raises(ApplicationError) as refused:
            await client.mutation("doors.http_fixtures:sell", title="Dune")
        assert refused.value.data == {"kind": "unknown book", "title": "Dune", "raw": b"\xff", "n": 2**60}
        with pytest.raises(FunctionError, match=r"^Could not find public function") as unknown:
            await client.query("doors.http_fixtures:hidden", number=1)
        assert unknown.value.request_id
        with pytest.raises(FunctionError, match=r"^\[Request ID: .*\] Server Error$"):
            await client.query("doors.http_fixtures:fail")
        with pytest.raises(InputError, match="not the name of a function") as malformed:
            await client.query("nonsense nonsense")
        assert malformed.value.facts["reason"] == "BadConvexFunctionIdentifier"
        with pytest.raises(LimitExceeded):
            await client.query("doors.http_fixtures:echo", value="x" * (17 * 1024 * 1024))


# ----- what is sent


def test_values_that_no_function_can_take_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value in (2**63, {"$a": 1}, {1: 2}, object(), "\ud800", {"a": [object()]}, endless):
        with pytest.raises(ValueInvalid):
            encode({"value": value})


def test_a_path_in_the_url_and_headers_are_kept() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert str(request.url) == "https://shop.example/backend/api/query"
        assert request.headers["authorization"] == "Bearer x"
        assert request.headers["content-type"] == "application/json"
        assert json.loads(request.content) == {"path": "a:b", "args": {"path": 1}, "format": "convex_encoded_json"}
        return httpx.Response(200, json={"status": "success", "value": None})

    for url in ("https://shop.example/backend", "https://shop.example/backend/"):
        with Client(url, headers={"Authorization": "Bearer x"}, transport=httpx.MockTransport(answer)) as client:
            assert client.query("a:b", path=1) is None


def test_a_url_that_is_none_and_a_missing_httpx_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("localhost:8000", "", "ws://x", "/api"):
        with pytest.raises(ConfigError):
            Client(url)
    monkeypatch.setitem(sys.modules, "httpx", None)
    for client in (Client, AsyncClient):
        with pytest.raises(ConfigError, match=r"penstock-backend\[client\]"):
            client("http://x")


# ----- what answers mean


def answered(*answers: httpx.Response | Exception) -> tuple[Callable[[httpx.Request], httpx.Response], list[str]]:
    """A server that gives these answers in turn, and the paths that it was asked for."""
    left, asked = list(answers), []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return httpx.Response(found.status_code, headers=found.headers, content=found.content)

    return answer, asked


def refusal(status: int, code: str) -> httpx.Response:
    return httpx.Response(status, json={"code": code, "message": "why"}, headers={"retry-after": "0"})


DONE = httpx.Response(200, json={"status": "success", "value": 1})


def failed(**more: Any) -> httpx.Response:
    return httpx.Response(200, json={"status": "error", "errorMessage": "no", **more})


ANSWERS: tuple[tuple[httpx.Response | Exception, type[PenstockError], bool | None], ...] = (
    (refusal(503, "Conflict"), Conflict, False),
    (refusal(503, "OptimisticConcurrencyControlFailure"), Conflict, False),
    (refusal(503, "DatabaseUnavailable"), DatabaseUnavailable, False),
    (refusal(503, "CommitUncertain"), DatabaseUnavailable, True),
    (refusal(503, "CallTimeout"), CallTimeout, False),
    (refusal(503, "Overloaded"), Overloaded, False),
    (refusal(503, "ShuttingDown"), TryAgain, True),
    (refusal(503, "SomethingNew"), TryAgain, False),
    (httpx.Response(503, text="<html>proxy</html>"), ServerUnreachable, True),
    (httpx.Response(504, json=[]), ServerUnreachable, True),
    (httpx.Response(429), Overloaded, False),
    (refusal(400, "BadRequest"), InputError, None),
    (refusal(401, "NoAuthProvider"), Unauthenticated, None),
    (refusal(413, "RequestTooLarge"), LimitExceeded, None),
    (httpx.Response(413, text="too large"), LimitExceeded, None),
    (refusal(404, "NotFound"), ServerError, None),
    (refusal(500, "InternalServerError"), ServerError, None),
    (httpx.Response(200, text="<html>"), ServerError, None),
    (httpx.Response(200, content=b'{"status":"success","value":{"$odd":1}}'), ServerError, None),
    (failed(), FunctionError, None),
    (failed(errorData=CursorInvalid.data), CursorInvalid, None),
    (failed(errorData=NotSignedIn().data), NotSignedIn, None),
    (failed(errorData=AccessDenied("why").data), AccessDenied, None),
    (failed(errorData=None), ApplicationError, None),
    (httpx.ConnectError("refused"), ServerUnreachable, False),
    (httpx.PoolTimeout("busy"), ServerUnreachable, False),
    (httpx.ReadTimeout("slow"), ServerUnreachable, True),
    (httpx.RemoteProtocolError("closed"), ServerUnreachable, True),
)


def test_each_answer_has_its_error() -> None:
    for response, error, uncertain in ANSWERS:
        transport = httpx.MockTransport(answered(response)[0])
        with Client("http://x", transport=transport) as client, pytest.raises(PenstockError) as caught:
            client.mutation("a:b")
        assert (type(caught.value), caught.value.facts.get("uncertain")) == (error, uncertain), response


# ----- when it is sent again


def calls_of(kind: str, *answers: httpx.Response | Exception, **options: Any) -> tuple[Any, int]:
    """What a call ends with, and how often it was sent; both clients alike."""
    server, asked = answered(*answers)

    def ask() -> Any:
        with Client("http://x", transport=httpx.MockTransport(server), **options) as client:
            return getattr(client, kind)("a:b")

    async def ask_async() -> Any:
        async with AsyncClient("http://x", transport=httpx.MockTransport(again), **options) as client:
            return await getattr(client, kind)("a:b")

    def outcome(run: Callable[[], Any]) -> Any:
        try:
            return run()
        except PenstockError as error:
            return type(error)

    found = outcome(ask)
    again, asked_again = answered(*answers)
    assert outcome(lambda: asyncio.run(ask_async())) == found
    assert len(asked_again) == len(asked)
    return found, len(asked)


def test_queries_are_sent_again() -> None:
    busy, gone = refusal(503, "DatabaseBusy"), refusal(503, "CommitUncertain")
    assert calls_of("query", busy, gone, DONE) == (1, 3)
    assert calls_of("query", busy, busy, busy, DONE) == (DatabaseBusy, 3)
    assert calls_of("query", busy, DONE, retries=0) == (DatabaseBusy, 1)
    assert calls_of("query", httpx.Response(200, json={"status": "error", "errorMessage": "x"})) == (FunctionError, 1)


def test_mutations_are_sent_once_unless_asked_for_and_certain_and_actions_always() -> None:
    conflict, gone = refusal(503, "Conflict"), refusal(503, "CommitUncertain")
    assert calls_of("mutation", conflict, DONE) == (Conflict, 1)
    assert calls_of("mutation", conflict, DONE, mutation_retries=1) == (1, 2)
    assert calls_of("mutation", gone, DONE, mutation_retries=5) == (DatabaseUnavailable, 1)
    assert calls_of("mutation", httpx.ReadTimeout("slow"), DONE, mutation_retries=5) == (ServerUnreachable, 1)
    assert calls_of("action", conflict, DONE, retries=5, mutation_retries=5) == (Conflict, 1)


# ----- what it needs


def test_it_loads_little() -> None:
    code = "import sys, penstock.client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    heavy = {"asyncio", "pydantic", "pydantic_core", "httpx", "starlette", "uvicorn", "sqlite3", "asyncpg", "inspect"}
    loaded = set(done.stdout.split())
    assert not loaded & heavy
    assert {name for name in loaded if name.startswith("penstock.")} == {
        "penstock.client", "penstock.client.answers", "penstock.client.client", "penstock.client.encoding",
        "penstock.distribution", "penstock.errors", "penstock.wire", "penstock.wire.tags",
    }  # fmt: skip


# ----- live answers


def events(*answers: Any) -> httpx.Response:
    """A stream of answers, which then ends."""
    text = ":\n\n" + "".join(f"id: 1\ndata: {json.dumps(one, ensure_ascii=False)}\n\n" for one in answers)
    return httpx.Response(200, content=text.encode(), headers={"content-type": "text/event-stream; charset=utf-8"})


def test_a_live_query_outlasts_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_LONGEST_PAUSE", 0.0)
    one, two = ({"status": "success", "value": value} for value in ("a\u2028\x85", {"$bytes": "/w=="}))
    failed = {"status": "error", "errorMessage": "no", "errorData": "sold out"}
    gone, draining = httpx.ConnectError("refused"), refusal(503, "ShuttingDown")
    answers: list[httpx.Response | Exception]
    answers = [gone, events(one), *[gone] * 9, draining, events(one, two), httpx.ReadError("cut"), events(two, failed)]

    def wait() -> list[Any]:
        server, asked = answered(*answers)
        with (
            Client("http://x", transport=httpx.MockTransport(server)) as client,
            client.live("a:b") as found,
        ):
            seen = [next(found), next(found)]
            with pytest.raises(ApplicationError):
                next(found)
        return [*seen, len(asked)]

    async def await_it() -> list[Any]:
        server, asked = answered(*answers)
        async with (
            AsyncClient("http://x", transport=httpx.MockTransport(server)) as client,
            client.live("a:b") as found,
        ):
            seen = [await anext(found), await anext(found)]
            with pytest.raises(ApplicationError):
                await anext(found)
        return [*seen, len(asked)]

    assert wait() == asyncio.run(await_it()) == ["a\u2028\x85", b"\xff", len(answers)]


def test_a_live_query_that_was_never_answered_gives_up() -> None:
    server, asked = answered(*[refusal(503, "Overloaded")] * 3, refusal(404, "NotFound"))
    with Client("http://x", transport=httpx.MockTransport(server), retries=2) as client:
        with client.live("a:b") as found, pytest.raises(Overloaded):
            next(found)
        with client.live("a:b") as found, pytest.raises(ServerError):
            next(found)
    assert len(asked) == 4
