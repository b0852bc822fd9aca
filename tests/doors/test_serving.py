"""Serving and mounting: how the server begins and ends, alone, inside of another program, and under restarts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from doors.http_fixtures import app, count
from stage.waits import SOON, until
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from websockets.asyncio.client import connect as connect_socket
from websockets.exceptions import InvalidStatus

from penstock import ActionCtx, App, asgi_app, public
from penstock.client import AsyncClient, ServerUnreachable
from penstock.clock import SystemClock
from penstock.config import Config
from penstock.errors import ConfigError, DatabaseUnavailable
from penstock.server import run
from penstock.server.run import bind, serve
from penstock.testing import gate

READ = {"path": "doors.http_fixtures:count"}


def adding(title: str) -> dict[str, Any]:
    return {"path": "doors.http_fixtures:add", "args": {"title": title}}


def caller(web: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url="http://web", transport=httpx.ASGITransport(web))


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [found for record in caplog.records if (found := getattr(record, "event", "")).startswith("server.")]


# ----- mounted


async def test_mounted_with_its_lifespan_passed_on(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock")
    backend = asgi_app(app, config=app.config(database=database_url))
    web = Starlette(routes=[Mount("/backend", backend)], lifespan=backend.lifespan)

    async with web.router.lifespan_context(web):
        assert events(caplog) == ["server.opened"]
        async with caller(web) as http:
            assert (await http.post("/backend/api/mutation", json=adding("a"))).json()["status"] == "success"
            assert (await http.post("/backend/api/query", json=READ)).json()["value"] == 1
            assert (await http.get("/backend/readyz")).status_code == 200
        async with AsyncClient("http://web/backend", transport=httpx.ASGITransport(web)) as client:
            assert await client.query("doors.http_fixtures:count") == 1
    assert events(caplog) == ["server.opened", "server.closed"]


def test_mounted_and_forgotten(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The first request opens, however many come at once; the end of the event loop closes."""
    caplog.set_level(logging.INFO, "penstock")
    web = Starlette(routes=[Mount("/backend", asgi_app(app, config=app.config(database=database_url)))])

    async def story() -> None:
        async with web.router.lifespan_context(web), caller(web) as http:
            assert events(caplog) == []
            answers = await asyncio.gather(*[http.post("/backend/api/query", json=READ) for _ in range(10)])
            assert [answer.json()["value"] for answer in answers] == [0] * 10
            assert events(caplog) == ["server.opened"]

    for _ in range(2):  # a new event loop opens again
        asyncio.run(story())
        assert events(caplog) == ["server.opened", "server.closed"]
        caplog.clear()


async def test_a_backend_that_is_given_is_left_open(database_url: str) -> None:
    async with app.open(config=app.config(database=database_url)) as backend:
        for _ in range(2):
            api = asgi_app(app, backend=backend)
            async with api.lifespan(), caller(api) as http:
                assert (await http.post("/api/query", json=READ)).json()["value"] == 0
        assert await backend.run_query(count) == 0


async def test_the_calls_and_the_services_of_a_mounted_server_have_one_grace_time(sqlite_url: str) -> None:
    api = asgi_app(app, config=app.config(database=sqlite_url))
    with gate("mutation.ran", most=1) as held:
        async with api.lifespan(), caller(api) as http:
            engine = (await api.opening.backend()).engine
            call = asyncio.create_task(http.post("/api/mutation", json=adding("a")))
            await held.arrived()
            ending = asyncio.create_task(api.opening.end())
            await SystemClock().sleep(0)
            assert engine.grace_left() < api.opening.config.grace, "it began with the end, not after the calls"
            held.open()
            await ending
            assert (await call).json()["status"] == "success"


async def test_a_server_that_cannot_open_says_no_more_than_that(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, file = tmp_path / "not there yet", tmp_path / "secret_file.db"
    api = asgi_app(app, config=app.config(database=f"sqlite:///{folder / 'x.db'}"))
    with pytest.raises(DatabaseUnavailable):
        async with api.lifespan():
            pass
    async with caller(api) as http:
        response = await http.post("/api/query", json=READ)
        assert (response.status_code, response.json()["code"]) == (503, "DatabaseUnavailable")
        assert str(tmp_path) not in response.text
        assert (await http.get("/readyz")).status_code == 503
        assert (await http.get("/healthz")).status_code == 200
        folder.mkdir()
        assert (await http.get("/readyz")).status_code == 200
        assert (await http.post("/api/query", json=READ)).json()["value"] == 0

    file.write_bytes(b"this is no database" * 1000)
    async with caller(asgi_app(app, config=app.config(database=f"sqlite:///{file}"))) as http:
        for _ in range(2):
            response = await http.post("/api/query", json=READ)
            assert (response.status_code, response.json()["code"]) == (500, "NotOpened")
            assert "database." in response.json()["message"]
            assert "SQLite" not in response.text
            assert (await http.get("/readyz")).status_code == 503
    assert "not a sound SQLite database" in caplog.text


# ----- alone


@asynccontextmanager
async def served(database: str, app: App = app, **settings: Any) -> AsyncIterator[str]:
    """The URL of a server in this process, for the time of a block, which may send the signal that ends it."""
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    config, signals = app.config(database=database, **settings), list[Any]()

    def stopping(*counts: int) -> None:
        signals.append(counts)

    server = serve(app, config, listener=bind("127.0.0.1", 0), services=(), ready=told.set_result, stopping=stopping)
    serving = asyncio.create_task(server)
    url = await told
    try:
        yield url
    finally:
        if not signals:
            signal.raise_signal(signal.SIGTERM)
        await serving


async def test_http_actions_have_a_port_of_their_own_if_asked_for(sqlite_url: str) -> None:
    web = App()

    @web.http("POST", "/hook", access=public)
    async def hook(_ctx: ActionCtx, request: Request) -> Response:
        return Response(await request.body(), headers={"x-url": str(request.url)})

    with contextlib.closing(bind("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with served(sqlite_url, web, http_port=port) as url, httpx.AsyncClient(timeout=SOON) as http:
        for base in (f"http://127.0.0.1:{port}", url, f"{url}/http"):
            answer = await http.post(f"{base}/hook", content=b"hi")
            assert (answer.text, answer.headers["x-url"]) == ("hi", f"{base}/hook")
            answer = await http.post(f"{base}/hook", headers={"x-forwarded-proto": "https"})
            assert answer.headers["x-url"] == f"{base}/hook".replace("http:", "https:")
        found = [(await http.get(f"{base}/healthz")).status_code for base in (url, f"http://127.0.0.1:{port}")]
        assert found == [200, 404]
        with bind("127.0.0.1", 0, shared=True) as one, bind("127.0.0.1", one.getsockname()[1], shared=True):
            pass


@pytest.mark.parametrize("trusted", [True, False])
async def test_the_url_of_a_request_is_the_one_that_a_trusted_proxy_names(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    web = App()

    @web.http("GET", "/hook", access=public)
    async def hook(_ctx: ActionCtx, request: Request) -> Response:
        assert request.client is not None
        return Response(f"{request.url} {request.client.host}")

    if not trusted:
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", "198.51.100.1")
    here, there = "127.0.0.1", "192.0.2.7"
    cases: tuple[tuple[list[tuple[str, str]], str, str], ...] = (  # of HERE, the server's own URL
        ([("x-forwarded-host", "shop.example")], "http://shop.example", here),
        (
            [("x-forwarded-host", "a.example, b.example:8443"), ("x-forwarded-proto", "https")],
            "https://b.example:8443",
            here,
        ),
        (
            [("x-forwarded-host", "a.example"), ("x-forwarded-host", "[2001:db8::1]:80")],
            "http://[2001:db8::1]:80",
            here,
        ),
        ([("x-forwarded-host", "a/b"), ("x-forwarded-proto", "ftp")], "HERE", here),
        ([("x-forwarded-host", ""), ("x-forwarded-for", there)], "HERE", there),
        ([("forwarded", 'for=192.0.2.7;Host="shop.example:1";proto=https')], "https://shop.example:1", here),
        ([("forwarded", "host=a.example, for=x; host=b.example ;proto=HTTPS")], "https://b.example", here),
        ([("forwarded", "host=a b;proto=gopher"), ("forwarded", "by=_x")], "HERE", here),
        ([("forwarded", "host=a.example;proto=https"), ("x-forwarded-for", there)], "HERE", there),
    )
    async with served(sqlite_url, web) as url, httpx.AsyncClient(timeout=SOON) as http:
        for headers, base, address in cases:
            wanted = f"{base.replace('HERE', url)}/hook {address}" if trusted else f"{url}/hook {here}"
            assert (await http.get(f"{url}/hook", headers=headers)).text == wanted, headers
        from_page = {"Origin": "https://shop.example", "X-Forwarded-Host": "shop.example"}
        connecting = connect_socket(f"{url.replace('http', 'ws')}/api/1.48.0/sync", additional_headers=from_page)
        with contextlib.nullcontext() if trusted else pytest.raises(InvalidStatus):
            async with connecting:
                pass


async def test_the_port_of_http_actions_is_not_that_of_all_else(sqlite_url: str) -> None:
    listener = bind("127.0.0.1", 0)
    config = app.config(database=sqlite_url, http_port=listener.getsockname()[1])
    with pytest.raises(ConfigError, match=r"http_port is \d+, the port of all else"):
        await serve(app, config, listener=listener, services=())
    assert listener.fileno() == -1, "it is closed"


async def refuses(url: str) -> bool:
    """Whether nobody listens any more. It asks for nothing: a connection in line at the close may get no answer."""
    at = httpx.URL(url)
    try:
        _reader, writer = await asyncio.open_connection(at.host, at.port)
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # it was in line
        return False
    writer.close()
    return False


async def test_a_signal_ends_a_server_when_all_calls_are_answered(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "penstock")
    before = signal.getsignal(signal.SIGTERM)
    async with served(database_url) as url, httpx.AsyncClient(base_url=url, timeout=SOON) as http:
        assert (await http.get("/readyz")).status_code == 200
        with gate("mutation.ran", most=1) as held:
            call = asyncio.create_task(http.post("/api/mutation", json=adding("a")))
            await held.arrived()
            signal.raise_signal(signal.SIGTERM)
            await until(lambda: refuses(url))
            assert events(caplog)[-1] == "server.stopping"
            held.open()
            assert (await call).json()["status"] == "success"
        await until(lambda: ended(caplog))
    assert signal.getsignal(signal.SIGTERM) is before
    lines = [record for record in caplog.records if "/api/mutation" in record.getMessage()]
    assert len(lines) == 1, "a request is told of once"


async def ended(caplog: pytest.LogCaptureFixture) -> bool:
    return events(caplog)[-1] == "server.stopped"


async def test_calls_that_outlast_the_grace_are_cut_off_and_undone(database_url: str) -> None:
    async with served(database_url, grace=0.2) as url, httpx.AsyncClient(base_url=url, timeout=SOON) as http:
        with gate("mutation.ran", most=1) as held:
            call = asyncio.create_task(http.post("/api/mutation", json=adding("a")))
            await held.arrived()
            signal.raise_signal(signal.SIGTERM)
            response = await call
            assert (response.status_code, response.json()["code"]) == (503, "ShuttingDown")
        with pytest.raises(ServerUnreachable) as caught:
            async with AsyncClient(url, retries=0) as client:
                await client.query("doors.http_fixtures:count")
        assert not caught.value.facts["uncertain"]
    async with app.open(config=app.config(database=database_url)) as backend:
        assert await backend.run_query(count) == 0


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    found = urlsplit(url)
    return await asyncio.open_connection(found.hostname, found.port)


ASK = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"


async def test_connections_without_a_whole_request_are_closed(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(sqlite_url) as url:
        reader, writer = await connect(url)
        writer.write(ASK + b"X: " + b"x" * 66_000)
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")
        writer.close()
    monkeypatch.setattr(run, "REQUEST_SECONDS", 0.05)
    async with served(sqlite_url) as url, AsyncClient(url) as client:
        with gate("mutation.ran") as ran:
            writing = asyncio.create_task(client.mutation("doors.http_fixtures:add", title="a"))
            await ran.arrived()
            for sent in (b"", ASK):  # nothing, or headers that do not end
                reader, writer = await connect(url)
                writer.write(sent)
                assert await reader.read() == b""
                writer.close()
            ran.open()
            await writing
        reader, writer = await connect(url)
        writer.write(ASK + b"\r\n")
        assert b" 200 " in await reader.readuntil(b"}")
        writer.write(ASK)
        assert await reader.read() == b"", "nor does a second request take as long as it likes"
        writer.close()


async def test_connections_beyond_the_limit_are_closed(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = run.most_connections(Config())
    assert files is None or files < resource.getrlimit(resource.RLIMIT_NOFILE)[0], "some are left for the rest"
    monkeypatch.setattr(run, "most_connections", lambda config: 2)
    async with served(sqlite_url) as url:
        idle = [await connect(url) for _ in range(2)]
        for _, writer in idle:
            writer.write(ASK)
        reader, writer = await connect(url)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        for reader, writer in idle:
            writer.write(b"\r\n")
            assert b" 200 " in await reader.readuntil(b"}")
            writer.close()
