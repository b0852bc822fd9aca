"""The HTTP API under input that nobody sends by mistake, and callers that go away."""

from __future__ import annotations

import asyncio
import json
import threading
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from doors.http_fixtures import Api, Door
from hypothesis import given, settings
from hypothesis import strategies as st
from stage.needs import examples
from stage.stories import one_backend

from penstock import App, asgi_app
from penstock.functions.signature import Signature
from penstock.testing import TestApp, gate
from penstock.wire.incoming import Message

COUNT = {"path": "doors.http_fixtures:count"}
MIB = 1024 * 1024
LARGE = 20 * 1024


async def refused(api: Api, status: int, code: str, body: Any, path: str = "/api/query", **options: Any) -> None:
    """Expect that a body is refused, in JSON, and that the server goes on."""
    response = await api.post(path, body, **options)
    assert (response.status_code, response.json().get("code")) == (status, code), response.text
    assert response.json().keys() == {"code", "message"}
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    assert "Traceback" not in response.text


async def test_bodies_that_are_no_calls_are_refused(near_door: Door) -> None:
    """What is no JSON, and what stands where, is attacked in `rules/test_wire`: here each door refuses it."""

    def echo(value: str) -> str:
        return f'{{"path": "doors.http_fixtures:echo", "args": {{"value": {value}}}}}'

    async with near_door() as api:
        for body in ("", b"\xff\xfe", "[" * 10_000, echo("NaN"), echo("1" * 5000)):
            for path in ("/api/query", "/api/query_batch", "/api/run/a/b"):
                await refused(api, 400, "BadJson", body, path)
        for body in ("[]", '{"path": 1}', echo('{"$integer": 1}'), echo("1e400")):
            await refused(api, 400, "BadRequest", body)
        more: dict[str, Any]
        for more in ({"args": "x"}, {"args": [1]}, {"args": [{}, {}]}, {"format": "xml"}, {"format": ["json"]}):
            await refused(api, 400, "BadRequest", COUNT | more)
        for queries in (None, [1], [COUNT, {"path": "a:b", "args": 1}]):
            await refused(api, 400, "BadRequest", {"queries": queries}, "/api/query_batch")
        await refused(api, 400, "TooManyQueries", {"queries": [COUNT] * 1001}, "/api/query_batch")
        await refused(api, 400, "NestedTooDeeply", echo("[" * 64 + "]" * 64))
        assert await api.value("query", "echo", value=json.loads("[" * 63 + "]" * 63))
        assert (await api.error("query", "echo", value=2**64)).endswith("Server Error"), "it cannot leave again"
        for url, status in (({}, 400), ({**COUNT, "args": "{"}, 400), ({**COUNT, "args": ""}, 200)):
            assert (await api.http.get("/api/query", params=url)).status_code == status, url
        get = {"path": "doors.http_fixtures:add", "args": '{"title": "x"}'}
        assert (await api.http.get("/api/query", params=get)).json()["status"] == "error"
        assert await api.value("query", "count") == 0


async def test_paths_that_name_no_function_are_refused(near_door: Door) -> None:
    async with near_door() as api:
        for path in ("", ":b", "a:b:c", "a..b:c", "../a:b", "a//b:c", "a:b\n", "a\0:b", "1a:b", "a-b:c", "x" * 513):
            await refused(api, 400, "BadConvexFunctionIdentifier", {"path": path})
        for path in ("/api/run/", "/api/run//count", "/api/run/a%20b/c"):
            await refused(api, 400, "BadConvexFunctionIdentifier", {}, path)
        for path in ("module", "été:ça", "a.b/c:d"):
            response = await api.post("/api/query", {"path": path})
            name, fix = (path, "") if ":" in path else (f"{path}:default", " Name it as module:function, with a colon.")
            assert response.json()["errorMessage"] == f"Could not find public function for '{name}'.{fix}"


async def test_other_methods_and_places_are_refused(near_door: Door) -> None:
    async with near_door() as api:
        for method, path, allowed in (
            ("GET", "/api/mutation", "POST"),
            ("PUT", "/api/query", "GET, HEAD, POST"),
            ("PATCH", "/healthz", "GET, HEAD"),
            ("HEAD", "/api/mutation", "POST"),
        ):
            response = await api.http.request(method, path)
            assert response.status_code == 405, path
            assert method == "HEAD" or response.json()["code"] == "MethodNotAllowed"
            assert set(response.headers["allow"].split(", ")) == set(allowed.split(", "))
            response = await api.http.request("OPTIONS", path)
            assert (response.status_code, response.content) == (204, b"")
        for path in ("/", "/api/query/", "/API/query"):
            assert (await api.http.get(path)).json()["code"] == "NotFound", path
        head = await api.http.head("/api/query", params=COUNT)
        assert (head.status_code, head.content) == (200, b"")


async def test_bodies_of_other_kinds_are_refused(near_door: Door) -> None:
    """A body without a type, or of text, needs no preflight: any page could send it."""
    async with near_door() as api:
        for kind in ("text/plain", "multipart/form-data; boundary=x"):
            await refused(api, 415, "UnsupportedMediaType", COUNT | {"a": kind}, headers={"content-type": kind})
        add = json.dumps({"path": "doors.http_fixtures:add", "args": {"title": "x"}})
        page = {"origin": "https://evil.example"}
        await refused(api, 415, "UnsupportedMediaType", add, "/api/mutation", headers=page)
        zipped = {"content-type": "application/json", "content-encoding": "gzip"}
        await refused(api, 415, "UnsupportedEncoding", b"\x1f\x8b", headers=zipped)
        for kind in ("Application/JSON; charset=utf-8", "application/vnd.shop+json"):
            response = await api.post("/api/query", json.dumps(COUNT), headers={"content-type": kind})
            assert response.json() == {"status": "success", "value": 0}


# ----- sizes


async def test_bodies_over_the_limit_are_refused_while_they_arrive(near_door: Door) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b'"' + b"x" * 100

    async with near_door(max_argument_bytes=1000) as api:
        body = json.dumps({"path": "doors.http_fixtures:echo", "args": {"value": ""}})
        fits = body.replace('""', '"' + "x" * (1000 - len(body)) + '"')
        assert (await api.post("/api/query", fits)).status_code == 200
        await refused(api, 413, "RequestTooLarge", fits + " ")
        query = {"path": "doors.http_fixtures:echo", "args": json.dumps({"value": "x" * 1000})}
        assert (await api.http.get("/api/query", params=query)).status_code == 413
        response = await api.http.post("/api/mutation", content=pieces())  # without a length
        assert (response.status_code, response.json()["code"]) == (413, "RequestTooLarge")


async def test_bodies_of_very_many_parts_are_not_read(near_door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    async with near_door() as api:
        numbers = ", ".join(["1.5"] * 200_000)
        body = f'{{"path": "doors.http_fixtures:total", "args": {{"numbers": [{numbers}]}}}}'
        message = (await api.post("/api/query", body)).json()["errorMessage"]
        assert message.endswith("invalid arguments: numbers.0: Input should be a valid integer."), "in few words"
        names = {f"name{number}": 1 for number in range(1001)}
        await refused(api, 400, "BadRequest", {"path": "doors.http_fixtures:total", "args": names})
        monkeypatch.setattr(Message, "__init__", lambda *_: pytest.fail("it was read"))
        for path in ("query", "query_batch", "run/a/b", "work/x"):
            await refused(api, 413, "RequestTooLarge", f'{{"path": "a:b", "args": {"[{" * 17_000}}}', f"/api/{path}")


async def test_large_bodies_are_read_and_checked_beside_the_event_loop(
    near_door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop has to answer others while the check of a large body waits in its thread."""
    checking, may_go_on = threading.Event(), threading.Event()
    read, check = Message.__init__, Signature.check_json

    def read_apart(message: Message, text: bytes | str) -> None:
        assert (threading.current_thread() is threading.main_thread()) == (len(text) < LARGE)
        read(message, text)

    def hold(signature: Signature, text: bytes | str) -> dict[str, Any]:
        if len(text) > LARGE:
            checking.set()
            assert may_go_on.wait(30)
        return check(signature, text)

    monkeypatch.setattr(Message, "__init__", read_apart)
    monkeypatch.setattr(Signature, "check_json", hold)

    async with near_door() as api:
        large = asyncio.create_task(api.call("query", "find", title="x" * LARGE))
        await asyncio.to_thread(checking.wait, 30)
        assert await api.value("query", "count") == 0
        may_go_on.set()
        assert (await large)["status"] == "success"


async def test_large_bodies_are_read_one_at_a_time_whoever_sends_them(
    near_door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, most, at_once = Message.__init__, [0], list[Message]()

    def count(message: Message, text: bytes | str) -> None:
        at_once.append(message)
        most[0] = max(most[0], len(at_once))
        threading.Event().wait(0.001)  # lets other threads in
        read(message, text)
        at_once.pop()

    monkeypatch.setattr(Message, "__init__", count)

    async with near_door() as api:
        calls = [api.call("query", "echo", value="x" * (300 * 1024)) for _ in range(4)]
        assert {answer["status"] for answer in await asyncio.gather(*calls)} == {"success"}
    assert most == [1]


async def test_huge_and_broken_requests_do_not_harm(far_door: Door) -> None:
    async with far_door(call_timeout=1.0) as api:
        for request, status in (
            (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * MIB + b"\r\n\r\n", b" 4"),  # by its parser, or answered
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b" 400 "),
            (b"POST /api/query HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", b" 400 "),
            (b"POST /api/query HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n", b" 400 "),
            (b"POST /api/query HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n\r\n", b" 413 "),
            (b"POST /api/query HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{", b" 408 "),  # the rest never comes
        ):
            answer = await raw(api, request)
            assert status in answer.split(b"\r\n")[0] or not answer, (request[:100], answer[:200])
            assert b"Traceback" not in answer
        assert await api.value("query", "count") == 0


async def raw(api: Api, request: bytes) -> bytes:
    """What the server says to bytes on a connection of their own, until it closes or has said a whole answer."""
    url = urlsplit(str(api.http.base_url))
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        writer.write(request)
        return await reader.read(MIB)
    except ConnectionError:
        return b""
    finally:
        writer.close()


# ----- callers that go away


async def test_a_caller_that_goes_away_leaves_nothing_half_done(far_door: Door) -> None:
    async with far_door() as api:
        body = json.dumps({"path": "doors.http_fixtures:add", "args": {"title": "Emma"}}).encode()
        request = b"POST /api/mutation HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        url = urlsplit(str(api.http.base_url))
        with gate("commit.before") as before, gate("commit.after") as after:
            _, writer = await asyncio.open_connection(url.hostname, url.port)
            writer.write(request + body)
            await before.arrived()
            writer.transport.abort()
            before.open()
            await after.arrived()
            after.open()
        assert await api.value("query", "count") == 1, "what had begun has ended"


# ----- anything at all


def test_whatever_is_sent_gets_an_answer(bookshop: App, sqlite_url: str) -> None:
    json_values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    )
    names = st.sampled_from(["add", "find", "echo", "typed", "by_id", "hidden", "count", "sell"])
    bodies = st.fixed_dictionaries(
        {"path": names.map(lambda name: f"doors.http_fixtures:{name}") | st.text(max_size=10), "args": json_values},
        optional={
            "format": st.sampled_from(["json", "convex_json", "x"]),
            "ts": st.binary(min_size=8, max_size=8).map(lambda raw: b64encode(raw).decode()) | json_values,
            "componentPath": json_values,
            "extra": json_values,
        },
    )
    kinds = st.sampled_from(["query", "mutation", "action", "run/a/b", "query_at_ts", "function"])
    statuses = {"query_at_ts": 503, "function": 404}  # nobody took a snapshot; there is no token

    with one_backend(bookshop, sqlite_url) as tell:

        @given(st.lists(st.tuples(kinds, bodies), max_size=5))
        @settings(max_examples=examples(40))
        def whatever(sent: list[tuple[str, dict[str, Any]]]) -> None:
            async def story(backend: TestApp) -> None:
                transport = httpx.ASGITransport(asgi_app(bookshop, backend=backend))
                async with httpx.AsyncClient(base_url="http://shop", transport=transport) as http:
                    for kind, body in sent:
                        response = await http.post(f"/api/{kind}", content=json.dumps(body))
                        if response.status_code == 200:
                            assert response.json()["status"] in {"success", "error"}
                        else:
                            assert response.status_code in {400, statuses.get(kind)}
                            assert response.json().keys() == {"code", "message"}

            tell(story)

        whatever()
