"""The REST face and its description, and the call-back of outside systems."""

from __future__ import annotations

import json
import logging
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest
from doors.http_fixtures import Door
from fastapi.openapi.models import OpenAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from penstock import (
    ActionCtx,
    App,
    ApplicationError,
    Finished,
    Id,
    Index,
    MutationCtx,
    Pending,
    QueryCtx,
    Retry,
    Running,
    Success,
    Table,
    TokenBucket,
    WorkId,
    asgi_app,
    sync,
)
from penstock.testing import TestApp

app = App(max_argument_bytes=5000, admin_token="the-lobby-token")
app.rate_limit("knocks", TokenBucket(rate=1, period=timedelta(minutes=1)))


class Seat(Table):
    name: str
    row: int
    taken: bool = False

    by_name = Index("name", unique=True)


class SoldOut(ApplicationError):
    status = 410
    retry_after = 2.5


@app.mutation
async def add(ctx: MutationCtx, name: str, row: int = 1) -> Id[Seat]:
    return await ctx.db.insert(Seat(name=name, row=row))


@app.query
async def seats(ctx: QueryCtx, name: str = "", row: int | None = None, taken: bool = False) -> list[str]:
    found = await ctx.db.query(Seat).collect()
    return [seat.name for seat in found if name in {"", seat.name} and row in {None, seat.row} and seat.taken is taken]


@app.query
async def total(ctx: QueryCtx, numbers: list[int]) -> int:
    return sum(numbers)


@app.mutation
async def take(ctx: MutationCtx, seat: Id[Seat]) -> None:
    await ctx.db.patch(Seat, seat, taken=True)


@app.mutation
async def refuse(ctx: MutationCtx, how: str) -> None:
    match how:
        case "plainly":
            raise ApplicationError({"kind": "sold out"})
        case "by status":
            raise ApplicationError("Ask again tomorrow.", status=402)
        case "by class":
            raise SoldOut({"message": "No seats.", "n": 2**60})
    raise ValueError("a secret")


def for_nobody(ctx: sync.QueryCtx) -> bool:
    return False


@app.query(access=for_nobody)
async def backstage(ctx: QueryCtx) -> str:
    return "a secret"


@app.mutation(rate_limit="knocks")
async def knock(ctx: MutationCtx) -> str:
    return "Come in."


@app.query
async def who(ctx: QueryCtx) -> str:
    return (await ctx.auth.require()).subject


@asynccontextmanager
async def served(database: str) -> AsyncIterator[httpx.AsyncClient]:
    async with TestApp(app, database) as backend:
        transport = httpx.ASGITransport(asgi_app(app, backend=backend))
        async with httpx.AsyncClient(base_url="http://hall/rest/test_rest", transport=transport) as http:
            yield http


async def test_results_are_bare_and_arguments_come_in_a_body_or_in_the_url(database_url: str) -> None:
    async with served(database_url) as http:
        made = await http.post("/add", json={"name": "007", "row": 2})
        assert (made.status_code, made.json()[:5]) == (200, "seat_")
        assert (await http.get("/seats")).json() == ["007"]
        assert (await http.post("/seats")).json() == ["007"], "a body may be left out"
        assert (await http.get("/seats?row=2&taken=false&name=007")).json() == ["007"]
        for missed in ("name=7", "row=3", "taken=true"):
            assert (await http.get(f"/seats?{missed}")).json() == []
        assert (await http.get("/total?numbers=1&numbers=2")).json() == 3
        assert (await http.get("/total?numbers=[1,2,4]")).json() == 7
        done = await http.post("/take", json={"seat": made.json()})
        assert (done.status_code, done.text, done.headers["content-type"]) == (200, "null", "application/json")


async def test_each_kind_of_error_has_its_status(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with served(database_url) as http:

        async def refused(status: int, code: str, method: str, path: str, **request: Any) -> Any:
            answer = await http.request(method, path, **request)
            assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
            assert "secret" not in answer.text
            return answer.json()

        seat = (await http.post("/add", json={"name": "A1"})).json()
        await refused(401, "NotSignedIn", "GET", "/who")
        assert (await http.get("/who")).headers["www-authenticate"] == "Bearer"
        await refused(401, "InvalidAuthHeader", "GET", "/who", headers={"authorization": "Bearer nonsense"})
        ada = b64encode(b'{"subject": "ada", "issuer": "hall"}').decode()
        as_ada = {"authorization": f"Convex the-lobby-token:{ada}"}
        await refused(403, "AccessDenied", "GET", "/backstage", headers=as_ada)
        await http.get("http://hall/api/query?path=test_rest:backstage", headers=as_ada)
        told = [vars(one)["facts"]["error"] for one in caplog.records if vars(one).get("event") == "call.refused"]
        assert told == ["The access of test_rest:backstage does not let this caller in."] * 2
        assert (await http.post("/knock")).json() == "Come in."
        assert (await http.post("/knock")).headers["retry-after"] == "60"
        await refused(429, "RateLimited", "POST", "/knock")
        await refused(404, "FunctionNotFound", "GET", "/nothing")
        assert "Use POST." in (await refused(405, "MethodNotAllowed", "GET", "/add?name=A1"))["message"]
        assert (await http.get("/add?name=A1")).headers["allow"] == "POST"
        assert "row" in (await refused(422, "ArgumentsInvalid", "GET", "/seats?row=x"))["message"]
        await refused(413, "LimitExceeded", "GET", "/seats?name=" + "A" * 5000)
        await refused(409, "UniqueViolation", "POST", "/add", json={"name": "A1"})
        gone = seat[:-1] + ("0" if seat[-1] != "0" else "1")
        assert gone not in (await refused(404, "RowNotFound", "POST", "/take", json={"seat": gone}))["message"]
        plain = await refused(400, "ApplicationError", "POST", "/refuse", json={"how": "plainly"})
        assert plain["data"] == {"kind": "sold out"}
        by_class = await http.post("/refuse", json={"how": "by class"})
        assert (by_class.status_code, by_class.headers["retry-after"]) == (410, "3")
        data = {"message": "No seats.", "n": str(2**60)}
        assert by_class.json() == {"code": "SoldOut", "message": "No seats.", "data": data}
        await refused(500, "InternalServerError", "POST", "/refuse", json={"how": "badly"})


# ----- description


async def test_the_public_functions_are_described(near_door: Door) -> None:
    async with near_door() as api:
        document = (await api.http.get("/openapi.json")).json()
        assert len(OpenAPI.model_validate(document).paths or ()) == sum(
            one.public for one in api.asgi.opening.app.registry
        )
        assert "/rest/doors/http_fixtures/add" in document["paths"]
        assert "/rest/doors/http_fixtures/hidden" not in document["paths"]
        mounted = httpx.ASGITransport(Starlette(routes=[Mount("/inner", api.asgi)]))
        async with httpx.AsyncClient(base_url="http://x/inner", transport=mounted) as http:
            assert (await http.get("/openapi.json")).json()["servers"] == [{"url": "/inner"}]
        page = await api.http.get("/docs")
        assert (">add <" in page.text, ">hidden <" in page.text) == (True, False)
        assert "<p>Access: <code>public &amp; (signed_in | public)</code></p>" in page.text
        said = document["paths"]["/rest/doors/http_fixtures/count"]["post"]["description"]
        assert said == "A query. Access: public & (signed_in | public)."
        assert not re.search(r"<script|src=|href=\"(?!openapi.json)", page.text)


# ----- the call-back of outside systems

press = App(max_result_bytes=1000, max_argument_bytes=5000)
printing = press.workpool("printing", default_retry=Retry(max_attempts=2, initial_backoff=10))

tokens: list[str] = []


@press.internal_action
async def print_book(ctx: ActionCtx) -> None:
    tokens.append(await ctx.work.complete_later())


@asynccontextmanager
async def waiting(database: str) -> AsyncIterator[tuple[TestApp, httpx.AsyncClient, WorkId, str]]:
    """A server, and work that waits for somebody outside, with the path that ends it."""
    tokens.clear()
    async with TestApp(press, database) as backend:
        work = await printing.with_options(retry=True).enqueue(backend, print_book)
        await backend.run_until_idle()
        transport = httpx.ASGITransport(asgi_app(press, backend=backend))
        async with httpx.AsyncClient(base_url="http://shop", transport=transport) as http:
            yield backend, http, work, f"/api/work/{tokens[0]}"


async def told(http: httpx.AsyncClient, path: str, body: Any) -> Any:
    """The answer to a body that is taken."""
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def refused(http: httpx.AsyncClient, path: str, body: Any, status: int, code: str) -> None:
    content = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body)
    response = await http.post(path, content=content)
    assert (response.status_code, response.json().get("code")) == (status, code), response.text
    assert response.json().keys() == {"code", "message"}


async def test_an_outside_system_tells_of_a_failure_and_of_the_result_while_its_token_holds(database_url: str) -> None:
    """What becomes of the work then is attacked in `flow/test_outside`."""
    async with waiting(database_url) as (backend, http, work, path):
        assert await told(http, path, {"error": "no paper"}) == {"accepted": True, "kind": "failed"}
        assert await printing.status(backend, work) == Pending(1), "it is tried again"
        await backend.run_until_idle()
        assert await told(http, path, {"result": 1}) == {"accepted": False, "kind": "failed"}
        result = {"pages": 300, "big": 2**60, "list": [1, None, 2.5]}
        second = f"/api/work/{tokens[1]}"
        assert await told(http, second, {"result": result}) == {"accepted": True, "kind": "success"}
        assert await told(http, second, {"error": "no", "retryable": False}) == {"accepted": False, "kind": "success"}
        assert await printing.status(backend, work) == Finished(Success(result))
    async with waiting(database_url) as (backend, http, work, path):
        backend.clock.advance(timedelta(hours=2))
        await refused(http, path, {"result": 1}, 410, "TokenExpired")
        assert isinstance(await printing.status(backend, work), Running)


async def test_tokens_of_nobody_and_bodies_that_tell_nothing_are_refused(sqlite_url: str) -> None:
    async with waiting(sqlite_url) as (backend, http, work, path):
        job, _, secret = tokens[0].split(".")
        for token in ("x", f"{job}.9.{secret}", "%00", f"{job}.{'9' * 400}.x"):
            await refused(http, f"/api/work/{token}", {"result": 1}, 404, "TokenInvalid")
        await refused(http, f"{path}x", '{"result": "\\u0000"}', 404, "TokenInvalid")
        assert (await http.get(path)).status_code == 405
        await refused(http, path, '{"result": NaN}', 400, "BadJson")
        bodies: list[Any] = [
            [], {}, {"result": 1, "error": "x"}, {"error": ""}, {"error": 5}, {"retryable": True},
            {"error": "x", "retryable": "no"}, {"result": 1, "more": 2},
            {"result": 1, "retryable": True}, {"result": {"$nonsense": 1}}, '{"result": 1e999}',
        ]  # fmt: skip
        for given in bodies:
            await refused(http, path, given, 400, "BadRequest")
        await refused(http, path, '{"result": "\\u0000"}', 400, "ResultInvalid")
        await refused(http, path, {"result": "x" * 1001}, 413, "ResultTooLarge")
        page = {"origin": "http://evil", "content-type": "text/plain"}
        assert (await http.post(path, content='{"result":1}', headers=page)).status_code == 415
        assert isinstance(await printing.status(backend, work), Running)


async def test_tokens_do_not_stand_in_the_log(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "penstock"):
        async with waiting(sqlite_url) as (_, http, work, path):
            secret = tokens[0].rpartition(".")[2]
            await http.get(path)
            await http.post(path + "x", json={"result": 1})
            await http.post("/api/work/" + secret, json={"result": 1})
            await told(http, path, {"result": 1})
            await told(http, path.replace("_", "%5F").replace(".", "%2E"), {"result": 1})
    assert f"path=/api/work/{work}.1…" in caplog.text
    assert secret not in caplog.text
