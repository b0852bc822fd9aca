"""Serves an app over HTTP until the process is told to stop.

Owns the listening socket, the signals, and the order of stopping: take on no more calls and jobs, finish those under
way within the grace time, close the database. Owns which headers of a trusted proxy count.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.server import HANDLED_SIGNALS

from penstock.app import App, Backend
from penstock.config import Config
from penstock.errors import ConfigError
from penstock.observe.logs import event
from penstock.server.asgi import Asgi, asgi_app
from penstock.server.frames import WebSocketFrames
from penstock.server.httpactions import ActionStream
from penstock.server.metrics import metrics_app
from penstock.server.opening import ABORT
from penstock.server.subscribe import EventStream
from penstock.services.service import Services

_HOST = re.compile(rb"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")
_PAIR = re.compile(rb'(?:^|;)\s*([a-z]+)\s*=\s*(?:"([^"]*)"|([^;]*))')
_SCHEMES = {b"http", b"https"}


class ProxyHeaders(ProxyHeadersMiddleware):
    """Takes scheme, host and address of a request from the headers of a proxy that is trusted.

    Uvicorn reads ``x-forwarded-proto`` and ``x-forwarded-for``. To these come ``x-forwarded-host``, and ``forwarded``
    if a proxy sends none of the others. Of several values the last one counts: the nearest proxy has added it.
    """

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        client = scope.get("client")
        if client is not None and client[0] in self.trusted_hosts:
            scheme, host = _read_url(scope["headers"])
            if scheme in _SCHEMES:
                scope["scheme"] = scheme.decode() if scope["type"] == "http" else scheme.decode().replace("http", "ws")
            if _HOST.fullmatch(host):
                others = [header for header in scope["headers"] if header[0] != b"host"]
                scope["headers"] = [(b"host", host), *others]
        await super().__call__(scope, receive, send)


def _read_url(headers: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
    """The scheme and the host that a proxy names; empty if it does not, or if the scheme is uvicorn's to read."""
    given = dict(headers)
    host = given.get(b"x-forwarded-host", b"").rpartition(b",")[2].strip()
    if any(name.startswith(b"x-forwarded-") for name in given) or b"forwarded" not in given:
        return b"", host
    last = given[b"forwarded"].rpartition(b",")[2].lower()
    pairs = {name: quoted or plain.strip() for name, quoted, plain in _PAIR.findall(last)}
    return pairs.get(b"proto", b""), pairs.get(b"host", b"")


_BACKLOG = 2048
_PING_SECONDS = 10.0  # some clients leave after 30 silent seconds
_PONG_SECONDS = 50.0
_KEEP_ALIVE_SECONDS = 75  # longer than load balancers keep a connection, so that none sends into a closed one


async def serve(
    app: App,
    config: Config,
    *,
    listener: socket.socket,
    services: Services,
    dashboard: bool = False,
    shares_ports: bool = False,
    ready: Callable[[str], None] | None = None,
    stopping: Callable[[int, int], None] | None = None,
) -> None:
    """Serve an app until SIGINT or SIGTERM; a second SIGINT does not wait for the calls under way.

    Args:
        app: The app.
        config: Its settings.
        listener: The socket to listen on, as `bind` gives it. It is closed at the end.
        services: The services to run next to the server.
        dashboard: Whether to serve the dashboard too.
        shares_ports: Whether other processes serve the app on its ports, too.
        ready: Called with the server's URL once it listens.
        stopping: Called by the handler of the first signal, with the numbers of calls and of jobs under way.
    """
    with closing(listener), ExitStack() as ports:
        url, sockets = url_of(listener), [listener]
        if config.http_port == listener.getsockname()[1]:
            raise ConfigError(f"http_port is {config.http_port}, the port of all else.", fix="Choose another one.")
        if config.http_port:
            sockets.append(bind(listener.getsockname()[0], config.http_port, shared=shares_ports))
            ports.callback(sockets[-1].close)
            event("server.http_started", logging.INFO, url=url_of(sockets[-1]))
        async with app.open(config=config, services=services) as backend:
            asgi = asgi_app(app, backend=backend, dashboard=dashboard)
            async with metrics_served(backend):
                await _Server(asgi, backend, url, ready, stopping).serve(sockets=sockets)
            await asgi.opening.idle()  # a call that was cut off takes a moment to undo what it did
    event("server.stopped", logging.INFO, url=url)


@asynccontextmanager
async def metrics_served(backend: Backend) -> AsyncIterator[None]:
    """Show the metrics on the port that the settings name, if they name one."""
    config = backend.config
    if not config.metrics_port:
        yield
        return
    with closing(bind(config.metrics_host, config.metrics_port)) as listener:
        server = _MetricsServer(_listening(metrics_app(backend), timeout_graceful_shutdown=1))
        serving = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]), name="penstock-metrics")
        event("server.metrics_started", logging.INFO, url=f"{url_of(listener)}/metrics")
        try:
            yield
        finally:
            server.should_exit = True
            await serving


class _Server(uvicorn.Server):
    def __init__(
        self,
        asgi: Asgi,
        backend: Backend,
        url: str,
        ready: Callable[[str], None] | None,
        stopping: Callable[[int, int], None] | None,
    ) -> None:
        config = asgi.opening.config
        super().__init__(
            _listening(
                asgi.with_http_port(config.http_port) if config.http_port else asgi,
                proxy_headers=False,  # as ours does this, and more
                http=connections_up_to(most_connections(config)),
                ws=WebSocketFrames,
                ws_ping_interval=_PING_SECONDS,
                ws_ping_timeout=_PONG_SECONDS,
                ws_per_message_deflate=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=backend.engine.grace_left(),
                backlog=_BACKLOG,
            )
        )
        self.config.app = ProxyHeaders(cast("Any", self.config.app), self.config.forwarded_allow_ips)
        self._opening = asgi.opening
        self._backend = backend
        self._url = url
        self._ready = ready
        self._stopping = stopping

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._stopping is not None and not self.should_exit:
            streams = sum(isinstance(one, EventStream | ActionStream) for one in self._opening.endless)
            self._stopping(self._opening.under_way - streams, self._backend.engine.journal.jobs_running())
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets=sockets)
        except OSError as error:
            raise _cannot_listen(self._url, error) from error
        event("server.started", logging.INFO, url=self._url)
        if self._ready is not None:
            self._ready(self._url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take on no more calls and jobs; calls and services share the grace time."""
        event("server.stopping", logging.INFO, url=self._url)
        self._opening.drain()
        self._backend.engine.begin_stop()
        services = self._backend.services.stop(self._backend.engine.services_left())
        await asyncio.gather(self._stop_serving(sockets), services)

    async def _stop_serving(self, sockets: list[socket.socket] | None) -> None:
        await self._opening.await_goodbyes()  # or uvicorn ends web sockets, with a code that clients report as an error
        await super().shutdown(sockets=sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Stop on a signal, and restore the previous handlers without raising it again."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in HANDLED_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _MetricsServer(uvicorn.Server):
    """Leaves signals to the other server."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def _listening(web: ASGIApp, **how: Any) -> uvicorn.Config:
    return uvicorn.Config(
        web, lifespan="off", log_config=None, log_level=logging.WARNING, access_log=False, server_header=False, **how
    )


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Bind a socket to an address and a port; 0 for any. Connections are refused until the server listens.

    Processes that say so share a port.

    Raises:
        ConfigError: The port is not free, or no address of this machine.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        if os.name == "posix":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT if shared else socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except (OSError, OverflowError) as error:
        bound.close()
        raise _cannot_listen(f"{host} port {port}", error) from error
    return bound


def _cannot_listen(where: str, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", None) or error
    return ConfigError(
        f"Cannot listen on {where}: {reason}.", fix="Choose another port, or stop the program that uses this one."
    )


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


try:
    import resource
except ImportError:  # where files are not limited in this way
    resource = None  # type: ignore[assignment]

REQUEST_SECONDS = 20.0  # long enough for a request's head; bodies have `call_timeout`
_MOST_HEAD = 65_536  # bytes of a request's head, which its parser would collect without an end
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_OTHER_FILES = 100  # the database's, the log's, the program's own


def most_connections(config: Config) -> int | None:
    """The number of connections that leaves enough open files for the database and the program."""
    if resource is None:
        return None
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return None
    return max(files // 2, files - config.max_connections - _OTHER_FILES)


def connections_up_to(most: int | None) -> type[asyncio.Protocol]:
    """Uvicorn's connections, `most` of them at once, and none that stays open without a request."""
    return type("Connection", (_Limited, AutoHTTPProtocol), {"most": most})


class _Limited(asyncio.Protocol):
    """Stands before uvicorn's protocol; knows its `connections`, its `app_state`, and its last request, `cycle`."""

    most: int | None
    connections: set[Any]
    cycle: Any
    app_state: dict[str, Any]
    _transport: asyncio.Transport
    _deadline: asyncio.TimerHandle | None = None
    _head = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transport = cast("asyncio.Transport", transport)
        self.app_state = {**self.app_state, ABORT: self._transport.abort}
        if self.most is not None and len(self.connections) > self.most:
            self._transport.abort()
        else:
            self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_asked() or self._transport.get_protocol() is not self:  # a web socket has taken it over
            self._head = 0
            self._wait_no_more()
            return
        self._wait()
        if self.cycle is None or not self.cycle.more_body:
            self._head += len(data)
            if self._head > _MOST_HEAD and not self._transport.is_closing():
                self._transport.write(_TOO_LARGE)
                self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().call_later(REQUEST_SECONDS, self._give_up)

    def _wait_no_more(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if not self._is_asked():
            self._transport.close()

    def _is_asked(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete
