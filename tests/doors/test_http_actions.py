"""HTTP actions: their paths, callers, limits and streams, signed webhooks, and mounts; also with hostile clients."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import httpx
import pytest
from asgiref.wsgi import WsgiToAsgi
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path as django_path
from django.views.decorators.csrf import csrf_exempt
from doors.board_fixtures import board
from fastapi import FastAPI
from fastapi.openapi.models import OpenAPI
from flask import Flask
from flask import request as flask_request
from stage.guests import django_connection
from stage.sockets import listening
from stage.waits import SOON, events, until
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from penstock import (
    ActionCtx,
    App,
    ApplicationError,
    Index,
    MutationCtx,
    QueryCtx,
    Table,
    TokenBucket,
    asgi_app,
    public,
    signed_in,
    sync,
)
from penstock.codegen.description import describe
from penstock.codegen.functionspec import function_spec
from penstock.codegen.openapi import openapi
from penstock.errors import ContextError, DeclarationError
from penstock.fastapi import install
from penstock.testing import TestApp

SECRET = "whsec_test"
ADMIN = "the-admin-token"
ADA = base64.b64encode(b'{"issuer": "test", "subject": "ada"}').decode()
AS_ADA = {"authorization": f"Convex {ADMIN}:{ADA}"}
app = App()
app.rate_limit("hooks", TokenBucket(rate=1, period=timedelta(hours=1), capacity=2))
seen: list[str] = []
ended: list[str] = []  # the ends of streams


class Payment(Table):
    event: str
    amount: int
    sent: bool = False

    by_event = Index("event", unique=True)


@app.internal_mutation
async def record(ctx: MutationCtx, event: str, amount: int) -> bool:
    """Store an event once, with the work that it calls for."""
    if await ctx.db.query(Payment).with_index(Payment.by_event, event=event).first():
        return False
    await ctx.db.insert(Payment(event=event, amount=amount))
    await ctx.scheduler.run_after(timedelta(0), send_receipt, event=event)
    return True


@app.internal_mutation
async def send_receipt(ctx: MutationCtx, event: str) -> None:
    payment = await ctx.db.query(Payment).with_index(Payment.by_event, event=event).unique()
    assert payment is not None
    assert not payment.sent
    await ctx.db.patch(Payment, payment.id, sent=True)


@app.internal_query
async def payments(ctx: QueryCtx) -> list[tuple[str, int, bool]]:
    return [(one.event, one.amount, one.sent) for one in await ctx.db.query(Payment).take(100)]


@app.internal_query
async def whoami(ctx: QueryCtx) -> str:
    identity = await ctx.auth.get_user_identity()
    return "nobody" if identity is None else identity.subject


def signature(key: str, *parts: bytes) -> str:
    return hmac.new(key.encode(), b".".join(parts), hashlib.sha256).hexdigest()


async def test_a_page_at_the_root_hides_neither_the_dashboard_nor_the_keys() -> None:
    site = App()

    @site.http("GET", "/{path:path}", access=public)
    async def page(_ctx: ActionCtx, request: Request) -> Response:
        return PlainTextResponse(f"page {request.path_params['path']}")

    async with board(site, dev=True, public_url="https://shop.example") as one, one.browser() as browser:
        for path in ("/", "/main.js", "/.well-known/security.txt"):
            assert (await browser.get(f"http://127.0.0.1{path}")).text == f"page {path[1:]}"
        for path in ("/dashboard/", "/docs", "/healthz", "/.well-known/jwks.json", "/.well-known/openid-configuration"):
            assert not (await browser.get(f"http://127.0.0.1{path}")).text.startswith("page"), path


@app.http("POST", "/stripe", access=public)
async def stripe(ctx: ActionCtx, request: Request) -> Response:
    body, header = await request.body(), request.headers.get("stripe-signature", "")
    given = dict(part.partition("=")[::2] for part in header.split(","))
    wanted = signature(SECRET, given.get("t", "").encode(), body)
    if not hmac.compare_digest(given.get("v1", "").encode(), wanted.encode()):
        raise HTTPException(400, "wrong signature")
    if abs(ctx.now().timestamp() - float(given["t"])) > 300:
        raise HTTPException(400, "too old")
    event = json.loads(body)
    is_new = await ctx.run_mutation(record, event["id"], event["amount"])
    return JSONResponse({"new": is_new})


@app.http("POST", "/github", access=public)
def github(ctx: sync.ActionCtx, request: sync.Request) -> Response:
    given = request.headers.get("x-hub-signature-256", "")
    if not hmac.compare_digest(given.encode(), f"sha256={signature(SECRET, request.body())}".encode()):
        return Response(status_code=401)
    return JSONResponse({"new": ctx.run_mutation(record, request.headers["x-github-delivery"], 1)})


@app.http("POST", "/form", access=public)
async def form(ctx: ActionCtx, request: Request) -> Response:
    given = await request.form()
    return JSONResponse(
        {name: one if isinstance(one, str) else (await one.read()).decode() for name, one in given.items()}
    )


@app.http("POST", "/form/thread", access=public, max_body=1_000)
def form_in_thread(ctx: sync.ActionCtx, request: sync.Request) -> Response:
    return JSONResponse({name: str(one) for name, one in request.form().items()})


@app.http("POST", "/", access=public)
async def root(ctx: ActionCtx, request: Request) -> Response:
    return Response(await request.body(), headers={"x-url": str(request.url)})


@app.http("GET", "/files/{rest:path}", access=public)
async def file(ctx: ActionCtx, request: Request) -> Response:
    return PlainTextResponse(f"file {request.path_params['rest']}")


@app.http("GET", "/files/deep/{name:path}", access=public)
def deep(ctx: sync.ActionCtx, request: sync.Request) -> Response:
    return PlainTextResponse(f"deep {request.path_params['name']}")


@app.http("GET", "/files/exact", access=public)
async def exact(ctx: ActionCtx, request: Request) -> Response:
    return PlainTextResponse("exact")


@app.http("DELETE", "/files/exact", access=signed_in)
async def drop(ctx: ActionCtx, request: Request) -> Response:
    return PlainTextResponse(await ctx.run_query(whoami))


@app.http("OPTIONS", "/files/exact", access=public)
async def options(ctx: ActionCtx, request: Request) -> Response:
    return PlainTextResponse("own options")


@app.http("GET", "/me", access=public)
async def me(ctx: ActionCtx, request: Request) -> Response:
    if ctx.auth.error is not None and request.headers["authorization"].startswith("Basic "):
        return PlainTextResponse(f"{request.headers['authorization']} {type(ctx.auth.error).__name__}")
    return PlainTextResponse(await ctx.run_query(whoami))


async def has_key(ctx: QueryCtx, request: Request) -> bool:
    return request.headers.get("x-key") == SECRET


@app.http("POST", "/limited", access=has_key, rate_limit="hooks", max_body=10)
async def limited(ctx: ActionCtx, request: Request) -> Response:
    return PlainTextResponse(str(sum([len(part) async for part in request.stream()])))


RESULTS: dict[str, Callable[[], Any]] = {  # of handlers, which are no answers or odd ones
    "nothing": lambda: None,
    "text": lambda: "text",
    "raise": lambda: _raise(ValueError(SECRET)),
    "exit": lambda: _raise(SystemExit(SECRET)),
    "teapot": lambda: _raise(HTTPException(418, "short and stout", {"x-pot": "1"})),
    "conflict": lambda: _raise(ApplicationError({"message": "taken"}, status=409)),
    "header": lambda: PlainTextResponse("x", headers={"location": "/a\r\nset-cookie: admin=1"}),
    "name": lambda: PlainTextResponse("x", headers={"x: y\r\nset-cookie": "admin=1"}),
    "status": lambda: PlainTextResponse("x", status_code=101),
    "background": lambda: PlainTextResponse("x", background=BackgroundTask(seen.append, "background")),
}


def _raise(error: BaseException) -> Any:
    raise error


@app.http("GET", "/odd/{by:path}", access=public)
async def odd(ctx: ActionCtx, request: Request) -> Response:
    result: Response = RESULTS[request.path_params["by"]]()
    return result


@app.http("POST", "/stream", access=public, timeout=timedelta(minutes=10), max_body=100_000_000)
async def stream(ctx: ActionCtx, request: Request) -> Response:
    """Answer each part of the body while the next ones come, with the ctx."""

    async def parts() -> AsyncIterator[bytes]:
        try:
            async for part in request.stream():
                yield b"data: %d %b\n\n" % (len(part), (await ctx.run_query(whoami)).encode())
            if "fail" in request.query_params:
                raise ValueError(SECRET)
            while "flood" in request.query_params:
                yield b"data: x\n\n" * 10_000  # waits for nothing
            if "for_ever" in request.query_params:
                await asyncio.Event().wait()
        finally:
            ended.append("stream")

    return StreamingResponse(parts(), media_type="text/event-stream")


@app.http("GET", "/wait", access=public, timeout=timedelta(seconds=0.2))
async def wait(ctx: ActionCtx, request: Request) -> Response:
    await asyncio.Event().wait()
    return Response()


# ----- paths, callers and answers


async def test_a_request_finds_its_action_and_nothing_else_does(database_url: str) -> None:
    cases = (
        ("GET", "/files/exact", 200, "exact"),
        ("HEAD", "/files/exact", 200, ""),
        ("GET", "/http/files/exact", 200, "exact"),
        ("GET", "/files/%65xact", 200, "exact"),
        ("GET", "/files/exact/", 200, "file exact/"),
        ("GET", "/files/deep/exact", 200, "deep exact"),
        ("GET", "/files/deep/", 200, "deep "),
        ("GET", "/files/deep", 200, "file deep"),
        ("GET", "/files//a%2F..%2F%00%C3%A9", 200, "file /a/../\0é"),
        ("GET", "/files", 404, "There is nothing at this path."),
        ("GET", "//files/exact", 404, "There is nothing at this path."),
        ("GET", "/me/", 404, "There is nothing at this path."),
        ("GET", "/http/http/me", 404, "There is nothing at this path."),
        ("POST", "/files/exact", 405, "This path takes DELETE, GET, HEAD, OPTIONS."),
        ("BREW", "/me", 405, "This path takes GET, HEAD."),
        ("OPTIONS", "/me", 204, ""),
        ("OPTIONS", "/files/exact", 200, "own options"),
        ("DELETE", "/files/exact", 401, "Sign in to do this."),
        ("GET", "/version", 200, None),
        ("POST", "/api/action", 400, None),
    )
    async with TestApp(app, database_url) as test:
        for method, path, status, text in cases:
            url = httpx.URL("http://test", raw_path=path.encode())
            answer = await test.http.request(method, url)
            assert answer.status_code == status, (method, path, answer.text)
            if text is not None:
                said = answer.json()["message"] if answer.text.startswith("{") else answer.text
                assert said == text, (method, path)
        raw = await test.http.post("/", content=bytes(range(256)), headers={"host": "shop.example"})
        assert (raw.content, raw.headers["x-url"]) == (bytes(range(256)), "http://shop.example/")
        by_name = {"path": file.name, "args": {}}
        assert "Could not find" in (await test.http.post("/api/action", json=by_name)).text
    async with board(app, database_url) as seen_there:
        listed = await seen_there.here.get("/functions")
        assert '<td class="name">GET /files/exact<br>' in listed.text
    async with TestApp(app, database_url, cors_origins="https://page.example") as test:
        asks = {"origin": "https://page.example", "access-control-request-method": "GET"}
        assert (await test.http.options("/me", headers=asks)).headers["access-control-allow-origin"] == asks["origin"]
        assert (await test.http.options("/files/exact", headers=asks)).text == "own options"
        assert (await test.http.get("/odd/raise", headers=asks)).headers["access-control-allow-origin"] == asks[
            "origin"
        ]


async def test_a_wrong_token_is_the_handlers_to_judge(database_url: str) -> None:
    cases: tuple[tuple[dict[str, str], int, str], ...] = (
        ({}, 200, "nobody"),
        (AS_ADA, 200, "ada"),
        ({"authorization": f"Bearer {ADMIN}"}, 200, "nobody"),
        ({"authorization": "Basic YQ=="}, 200, "Basic YQ== Unauthenticated"),
        ({"authorization": "Bearer a.b.c"}, 401, "InvalidAuthHeader"),
        ({"authorization": "a.b.c"}, 401, "InvalidAuthHeader"),
        ({"authorization": "x"}, 401, "Unauthenticated"),
        ({"authorization": "Convex wrong"}, 401, "Unauthenticated"),
    )
    async with TestApp(app, database_url, admin_token=ADMIN) as test:
        for headers, status, said in cases:
            answer = await test.http.get("/me", headers=headers)
            assert (answer.status_code, said in answer.text) == (status, True), (headers, answer.text)
        assert (await test.http.delete("/files/exact", headers=AS_ADA)).text == "ada"
        wrong = await test.http.delete("/files/exact", headers={"authorization": "Bearer a.b.c"})
        assert (wrong.status_code, wrong.json()["code"]) == (401, "InvalidAuthHeader")


async def test_what_a_handler_gives_or_raises(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "penstock")
    uncaught = dict.fromkeys(("nothing", "text", "raise", "exit", "header", "name", "status"), 500)
    for dev in (False, True):
        async with TestApp(app, sqlite_url, dev=dev) as test:
            for by, status in {**uncaught, "teapot": 418, "conflict": 409, "background": 200}.items():
                caplog.clear()
                answer = await test.http.get(f"/odd/{by}", headers={"x-request-id": "request-7"})
                assert (answer.status_code, answer.headers["x-request-id"]) == (status, "request-7"), by
                assert "set-cookie" not in answer.headers
                if status == 500:
                    found, code = answer.json(), "[Request ID: request-7] Server Error"
                    assert found["code"].startswith(f"{code}: Uncaught " if dev else code), by
                    assert ("Uncaught" in answer.text) is dev, by
                    assert found.get("trace", "").startswith("Uncaught ") is dev, by
                    assert SECRET not in answer.text or (dev and by in {"raise", "exit"})
                    assert [one.levelname for one in caplog.records if getattr(one, "event", "") == "call.failed"]
                if by == "conflict":
                    code = """[Request ID: request-7] Server Error: Uncaught ConvexError: {"message":"taken"}"""
                    assert answer.json() | {"trace": ""} == {"code": code, "data": {"message": "taken"}, "trace": ""}
            assert seen.pop() == "background"
            told = {
                getattr(one, "event", "")
                for one in caplog.records
                if getattr(one, "facts", {}).get("function") == odd.name
            }
            assert told == ({"call.ran", "http.request"} if dev else {"http.request"})
            assert await test.engine.write_logbook()
            counted = await test.engine.store.logbook.sums(test.clock.now() - timedelta(hours=1))
            assert counted[f"function {odd.name}"]["success"] >= 1


async def test_a_request_is_limited(database_url: str) -> None:
    async def in_parts(size: int) -> AsyncIterator[bytes]:
        for _ in range(size):
            yield b"x"

    async with TestApp(app, database_url) as test:
        key = {"x-key": SECRET}
        assert (await test.http.post("/limited", content=b"x")).status_code == 401
        assert (await test.http.post("/limited", content=b"x" * 11, headers=key)).status_code == 413
        late = await test.http.get("/wait")
        assert (late.status_code, late.json()["code"]) == (503, "CallTimeout")
        assert (await test.http.post("/limited", content=in_parts(11), headers=key)).status_code == 413
    async with TestApp(app, database_url) as test:
        test.clock.advance(timedelta(hours=2))
        assert (await test.http.post("/limited", content=in_parts(10), headers=key)).text == "10"
        assert (await test.http.post("/limited", content=b"", headers=key)).text == "0"
        refused = await test.http.post("/limited", content=b"", headers=key)
        assert (refused.status_code, int(refused.headers["retry-after"]) > 0) == (429, True)


# ----- webhooks


@pytest.mark.parametrize("path", ["/form", "/form/thread"])
async def test_forms_are_read_within_the_limit(sqlite_url: str, path: str) -> None:
    async with TestApp(app, sqlite_url) as test:
        assert (await test.http.post(path, data={"a": "1 é", "b": ""})).json() == {"a": "1 é", "b": ""}
        given = (await test.http.post(path, data={"a": "1"}, files={"f": ("../n.txt", b"two")})).json()
        assert (given["a"], "two" in given["f"] or "n.txt" in given["f"]) == ("1", True)
        large = b"x" * (test.engine.config.max_argument_bytes + 1)
        assert (await test.http.post(path, files={"f": ("n", large)})).status_code == 413
        broken = {"content-type": "multipart/form-data; boundary=x"}
        assert (await test.http.post(path, content=b"--y", headers=broken)).status_code == 400


async def test_signed_webhooks_take_effect_once(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        body, now = b'{"id": "evt_1", "amount": 700}', int(test.clock.now().timestamp())

        async def of_stripe(sent: bytes, signed: bytes, at: int, key: str = SECRET) -> int | bool:
            given = f"t={at},v1={signature(key, str(at).encode(), signed)},v0=old"
            answer = await test.http.post("/stripe", content=sent, headers={"stripe-signature": given})
            return answer.json()["new"] if answer.status_code == 200 else answer.status_code

        async def of_github(sent: bytes, signed: bytes, delivery: str, key: str = SECRET) -> int | bool:
            headers = {"x-hub-signature-256": f"sha256={signature(key, signed)}", "x-github-delivery": delivery}
            answer = await test.http.post("/github", content=sent, headers=headers)
            return answer.json()["new"] if answer.status_code == 200 else answer.status_code

        found = [
            await of_stripe(body, body, now),
            await of_stripe(body, body, now),  # sent again
            await of_stripe(body, body, now - 301),  # late
            await of_stripe(body, body, now, "other key"),
            await of_stripe(body.replace(b"700", b"900"), body, now),
            await of_stripe(b" " + body, body, now),  # the same JSON, other bytes
            await of_github(b"{}", b"{}", "d-1"),
            await of_github(b"{}", b"{}", "d-1"),
            await of_github(b"{}", b"{ }", "d-2"),
            await of_github(b"{}", b"{}", "d-2", "other key"),
        ]
        assert found == [True, False, 400, 400, 400, 400, True, False, 401, 401]
        unsigned = await test.http.post("/stripe", content=body)
        assert (unsigned.status_code, unsigned.text) == (400, "wrong signature")
        at_once = await asyncio.gather(*(of_github(b"{}", b"{}", "d-3") for _ in range(5)))
        assert sorted(at_once) == [False] * 4 + [True]
        assert await test.run_until_idle() == 3
        assert await test.run_query(payments) == [("evt_1", 700, True), ("d-1", 1, True), ("d-3", 1, True)]


# ----- streams, on a socket


async def test_streams_flow_both_ways_and_end_with_their_clients(database_url: str) -> None:
    async with TestApp(app, database_url) as test, listening(asgi_app(app, backend=test)) as url:
        asked, answered = asyncio.Queue[bytes](), []

        async def parts() -> AsyncIterator[bytes]:
            while part := await asked.get():
                yield part

        async with httpx.AsyncClient(base_url=url, timeout=SOON) as http:
            asked.put_nowait(b"x" * 3)
            async with http.stream("POST", "/stream", content=b"x" * 3) as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                answered = [line async for line in answer.aiter_lines() if line]
            assert answered == ["data: 3 nobody", "data: 0 nobody"]
            assert (await http.head("/files/exact")).headers["content-length"] == "5"
            large = await http.post("/stream", content=b"x" * 5_000_000)
            assert sum(int(line.split()[1]) for line in large.text.splitlines() if line) == 5_000_000
            with pytest.raises(httpx.RemoteProtocolError):  # it is cut, and does not look complete
                await http.post("/stream?fail=1", content=b"x")
            for way in ("for_ever", "flood"):
                ended.clear()
                async with http.stream("POST", f"/stream?{way}=1", content=b"x") as answer:
                    assert await anext(answer.aiter_lines()) == "data: 1 nobody"
                    assert not ended
                await until(lambda: bool(ended))
            await until(lambda: test.dispatch._places._under_way == 0)

        reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
        writer.write(b"POST /stream HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n4\r\nping\r\n")
        assert b"data: 4 nobody" in await reader.readuntil(b"data: 4 nobody")  # while the body goes on
        writer.write(b"2\r\nhi\r\n")
        assert await reader.readuntil(b"data: 2 nobody")
        ended.clear()
        writer.close()
        await until(lambda: bool(ended))


@app.http("POST", "/left/{by:path}", access=public)
async def left(ctx: ActionCtx, request: Request) -> Response:
    """Answer once the client has left, in a way that the path names."""
    seen.append("begun")
    try:
        body = (await request.body()).decode()
    except ClientDisconnect:
        seen.append("no body")
        raise
    await until(request.is_disconnected)
    await ctx.run_mutation(record, body, 1)
    if request.path_params["by"] == "stream":
        return StreamingResponse(endless())
    return RESULTS[request.path_params["by"]]()  # type: ignore[no-any-return]


async def endless() -> AsyncIterator[bytes]:
    try:
        while True:
            yield b"x"
    finally:
        ended.append("endless")


async def test_a_handler_whose_client_has_left_goes_on_and_a_stream_ends(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penstock")
    async with TestApp(app, database_url) as test, listening(asgi_app(app, backend=test)) as url:
        for by, size, status in (("background", 10, 499), ("stream", 6, 499), ("raise", 5, 500), ("cut", 99, 499)):
            seen.clear()
            ended.clear()
            caplog.clear()
            _, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
            writer.write(
                b"POST /left/%b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (by.encode(), size, by.encode())
            )
            await until(lambda: bool(seen))
            writer.transport.abort()
            await until(lambda: bool(events(caplog, "http.request")))
            assert [one["status"] for one in events(caplog, "http.request")] == [status], by
            assert seen[1:] == {"background": ["background"], "cut": ["no body"]}.get(by, [])
            assert ended == (["endless"] if by == "stream" else [])
            assert len(events(caplog, "call.failed")) == (by == "raise")
        assert [event for event, *_ in await test.run_query(payments)] == ["background", "stream", "raise"]


async def test_a_server_that_stops_ends_streams_of_events(sqlite_url: str) -> None:
    async with TestApp(app, sqlite_url) as test:
        asgi = asgi_app(app, backend=test)
        async with (
            listening(asgi) as url,
            httpx.AsyncClient(base_url=url, timeout=SOON) as http,
            http.stream("POST", "/stream?for_ever=1", content=b"x") as answer,
        ):
            lines = answer.aiter_lines()
            assert [await anext(lines), await anext(lines), await anext(lines)][::2] == [
                "data: 1 nobody",
                "data: 0 nobody",
            ]
            asgi.opening.drain()
            assert not [line async for line in lines if line]


@app.http("PUT", "/odd/", access=public)
async def show_request(ctx: ActionCtx, request: Request) -> Response:
    response = JSONResponse([len(await request.body()), request.headers.getlist("x-a"), request.cookies])
    response.headers.append("x-b", "1")
    response.headers.append("x-b", "2")
    return response


PUT = b"PUT /odd/ HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
GET = b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
REQUESTS: tuple[tuple[bytes, bytes, bytes], ...] = (  # each with the status and the end of its answer
    (PUT + b"\r\n", b"200", b"[0,[],{}]"),
    (PUT + b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\nx-t: 1\r\n\r\n", b"200", b"[3,[],{}]"),
    (PUT + b"content-encoding: gzip\r\ncontent-length: 3\r\n\r\n\x1f\x8b\x08", b"200", b"[3,[],{}]"),  # as it was sent
    (PUT + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\nab", b"100", b"[2,[],{}]"),
    (PUT + b"expect: 100-continue\r\ncontent-length: 99999999\r\n\r\n", b"413", b'may have 1048576 bytes."}'),
    (PUT + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", b"400", b"received."),
    (PUT + b"content-length: 1\r\ncontent-length: 2\r\n\r\nab", b"400", b"received."),
    (PUT + b"x-a: 1\r\nX-A: 2\r\ncookie: c=1; d=%20\r\n\r\n", b"200", b'[0,["1","2"],{"c":"1","d":"%20"}]'),
    (PUT + b"x-a: " + b"y" * 60_000 + b"\r\n\r\n", b"200", b'yy"],{}]'),
    (b"GET /files/%zz%2f%ff" + GET, b"200", "file %zz/\N{REPLACEMENT CHARACTER}".encode()),
    (b"GET http://other/files/a?b/c" + GET, b"200", b"file a"),
    (b"GET /files/../files/exact" + GET, b"200", b"file ../files/exact"),
    (b"GET /odd" + GET, b"404", b'nothing at this path."}'),
    (b"GET /Files/exact" + GET, b"404", b'nothing at this path."}'),
    (b"HEAD /odd/raise" + GET, b"500", b"\r\n\r\n"),
    (b"HEAD /files/exact" + GET, b"200", b"\r\n\r\n"),
    (b"OPTIONS *" + GET, b"404", b'nothing at this path."}'),
    (b"TRACE /me" + GET, b"405", b'This path takes GET, HEAD."}'),
)


async def test_odd_requests_reach_their_action_as_they_were_sent_or_none(database_url: str) -> None:
    async with TestApp(app, database_url) as test, listening(asgi_app(app, backend=test)) as url:
        for sent, status, end in REQUESTS:
            reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
            writer.write(sent)
            async with asyncio.timeout(SOON):
                answer = await reader.read()
            writer.close()
            assert (answer[9:12], answer.endswith(end)) == (status, True), (sent[:200], answer)
            if sent.startswith(PUT) and status == b"200":
                assert answer.count(b"\r\nx-b: ") == 2


# ----- declarations and mounts


def in_flask() -> Any:
    web = Flask("theirs")
    web.post("/other")(lambda: f"theirs: {flask_request.get_data(as_text=True)}")
    return WsgiToAsgi(web)  # type: ignore[no-untyped-call]  # asgiref has none here


def in_django() -> Any:
    django_connection("sqlite:///any.db")  # which configures Django
    return ASGIHandler()


other_page = csrf_exempt(lambda request: HttpResponse(f"theirs: {request.body.decode()}"))
urlpatterns = [django_path("other", other_page)]  # of Django


@pytest.mark.parametrize("make", [in_flask, in_django])
async def test_http_actions_come_before_a_program_that_is_mounted(make: Callable[[], Any], sqlite_url: str) -> None:
    asgi, theirs = asgi_app(app, config=app.config(database=sqlite_url)), make()
    asgi.mount("/", theirs)
    web = httpx.AsyncClient(base_url="http://web", transport=httpx.ASGITransport(asgi))
    with override_settings(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"]) if make is in_django else nullcontext():
        async with asgi.lifespan(), web as http:
            assert (await http.post("/", content=b"ours")).content == b"ours"
            assert (await http.get("/files/a")).text == "file a"
            assert (await http.post("/other", content=b"body")).text == "theirs: body"
            assert (await http.get("/nothing")).status_code == 404


@pytest.mark.parametrize("root", ["", "/backend"])
async def test_mounts(root: str, sqlite_url: str) -> None:
    """In FastAPI, and before what an `asgi_app` mounts itself."""
    web = FastAPI()
    install(web, app, config=app.config(database=sqlite_url), path="/backend")
    asgi: Any = web
    if not root:
        asgi = asgi_app(app, config=app.config(database=sqlite_url))
        asgi.mount("/", PlainTextResponse("theirs"))
    async with (
        asgi.router.lifespan_context(asgi) if root else asgi.lifespan(),
        httpx.AsyncClient(base_url="http://web", transport=httpx.ASGITransport(asgi)) as http,
    ):
        assert (await http.get(f"{root}/files/a")).text == "file a"
        assert (await http.get(f"{root}/http/files/a")).text == "file a"
        assert (await http.post(f"{root}/")).headers["x-url"] == f"http://web{root}/"
        assert (await http.get(f"{root}/other")).status_code == (404 if root else 200)


def test_declarations_are_checked() -> None:
    other = App()

    async def one(ctx: ActionCtx, request: Request) -> Response:
        return Response()

    def two(ctx: sync.ActionCtx, request: Request) -> Response:
        return Response()

    async def three(ctx: MutationCtx, request: Request) -> Response:
        return Response()

    async def four(ctx: ActionCtx) -> Response:
        return Response()

    declared = other.http("GET", "/a", access=public)(one)
    cases: tuple[tuple[Any, str, str, dict[str, Any], str], ...] = (
        (exact.declared, "GET", "/a", {}, "both answer GET /a"),
        (exact.declared, "HEAD", "/a", {}, "GET answers HEAD"),
        (exact.declared, "get", "/a", {}, "no such method"),
        *((exact.declared, "GET", path, {}, "no path") for path in ("", "a", "//a", "/a/../b", "/a?b", "/a b", "/%41")),
        *((exact.declared, "GET", path, {}, "no path") for path in ("/{id}", "/a{r:path}", "/{r:path}/a", "/{r:int}")),
        (exact.declared, "GET", "/api/hook", {}, "paths below /api belong to penstock"),
        (exact.declared, "GET", "/b", {"access": None}, "does not say whose"),
        (exact.declared, "GET", "/b", {"max_body": 1.5}, "no number of bytes"),
        (exact.declared, "GET", "/b", {"timeout": 5}, "timeout is a timedelta"),
        (two, "GET", "/b", {}, "sync.Request"),
        (three, "GET", "/b", {}, "MutationCtx"),
        (four, "GET", "/b", {}, "takes a ctx and a request"),
    )
    for handler, method, path, asked, said in cases:
        with pytest.raises(DeclarationError, match=said):
            other.http(method, path, **{"access": public, **asked})(handler)
    assert [str(action.place) for action in other.registry.http] == ["GET /a"]
    described = describe(other.registry, http=app.registry.http)
    spec, document = function_spec(described, "http://x"), openapi(described)
    OpenAPI.model_validate(document)
    files = document["paths"]["/files/{rest}"]
    assert [one["operationId"].rpartition(".")[2] for one in files.values()] == ["file"]
    assert files["get"]["parameters"][0]["name"] == "rest"
    assert document["paths"]["/files/exact"]["delete"]["description"] == "An HTTP action. Access: signed_in."
    assert {"functionType": "HttpAction", "method": "GET", "path": "/files/*"} in spec["functions"]
    assert declared.place.path == "/a"


async def test_only_requests_call_an_http_action(sqlite_url: str) -> None:
    async with TestApp(app, sqlite_url) as test:
        with pytest.raises(ContextError, match="only requests call it"):
            await test.run_action(exact, Request({"type": "http"}))
        with pytest.raises(DeclarationError, match="only requests call it"):
            await test.scheduler.run_after(timedelta(0), exact, Request({"type": "http"}))
