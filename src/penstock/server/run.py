"""Serves an app over HTTP until the process is told to stop.

Owns the listening socket, the signals, and the order of stopping: take on no more calls and jobs, finish those under
way within the grace time, close the database.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import HANDLED_SIGNALS

from penstock.app import App, Backend, ServiceName
from penstock.config import Config
from penstock.errors import ConfigError
from penstock.observe.logs import event
from penstock.server.asgi import Asgi, asgi_app
from penstock.server.connections import limited_connections, most_connections
from penstock.server.metrics import metrics_app

_BACKLOG = 2048
_KEEP_ALIVE_SECONDS = 75  # longer than load balancers keep a connection, so that none sends into a closed one


async def serve(
    app: App,
    config: Config,
    *,
    host: str,
    port: int,
    services: Sequence[ServiceName],
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve an app until SIGINT or SIGTERM; a second SIGINT does not wait for the calls under way.

    Args:
        app: The app.
        config: The settings.
        host: The address to listen on.
        port: The port to listen on; 0 for any free one.
        services: Which services to run in this process.
        ready: Is told the URL once calls are taken.

    Raises:
        ConfigError: The address cannot be listened on.
        DatabaseUnavailable: The database cannot be reached.
        SchemaMismatch: Its tables do not fit, and changing them would lose or break data.
    """
    with closing(_bind(host, port)) as listener:
        url = _url(listener)
        async with app.open(config=config, services=services) as backend:
            asgi = asgi_app(app, backend=backend)
            async with metrics_served(backend):
                await _Server(asgi, backend, url, ready).serve(sockets=[listener])
            await asgi.opening.idle()  # a call that was cut off takes a moment to undo what it did
    event("server.stopped", logging.INFO, url=url)


@asynccontextmanager
async def metrics_served(backend: Backend) -> AsyncIterator[None]:
    """Show the metrics of a backend on the port that the settings name, if they name one, for the time of a block.

    Raises:
        ConfigError: The address cannot be listened on.
    """
    config = backend.config
    if not config.metrics_port:
        yield
        return
    with closing(_bind(config.metrics_host, config.metrics_port)) as listener:
        server = _MetricsServer(_listening(metrics_app(backend), timeout_graceful_shutdown=1))
        serving = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]), name="penstock-metrics")
        event("server.metrics_started", logging.INFO, url=f"{_url(listener)}/metrics")
        try:
            yield
        finally:
            server.should_exit = True
            await serving


class _Server(uvicorn.Server):
    """Ends by itself when told to, and leaves it to `serve` to go on from there."""

    def __init__(self, asgi: Asgi, backend: Backend, url: str, ready: Callable[[str], None] | None) -> None:
        config = asgi.opening.config
        super().__init__(
            _listening(
                asgi,
                http=limited_connections(most_connections(config)),
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=backend.engine.grace_left(),
                backlog=_BACKLOG,
            )
        )
        self._opening = asgi.opening
        self._backend = backend
        self._url = url
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take calls, and tell of it."""
        try:
            await super().startup(sockets=sockets)
        except OSError as error:
            raise _cannot_listen(self._url, error) from error
        event("server.started", logging.INFO, url=self._url)
        if self._ready is not None:
            self._ready(self._url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take on no more calls and jobs, and wait for those under way: beside each other, as the grace time is one."""
        event("server.stopping", logging.INFO, url=self._url)
        self._opening.draining = True
        self._backend.engine.begin_stop()
        services = self._backend.services.stop(self._backend.engine.services_left())
        await asyncio.gather(super().shutdown(sockets=sockets), services)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Stop on a signal; what was set to handle it before does so again afterwards, but not for this one."""
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
    """Leaves signals to those beside whom it runs."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture none."""
        yield


def _listening(web: ASGIApp, **how: Any) -> uvicorn.Config:
    """How uvicorn serves an application of penstock's: it says nothing by itself."""
    return uvicorn.Config(
        web, lifespan="off", log_config=None, log_level=logging.WARNING, access_log=False, server_header=False, **how
    )


def _bind(host: str, port: int) -> socket.socket:
    """A socket with this address. It takes no connections yet: they are refused until the server is ready."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        if os.name == "posix":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
