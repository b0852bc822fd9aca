"""An app as an ASGI application: its doors under one roof, ready to be served or to be mounted in another program.

Owns the order of the layers around the endpoints. Leaves the endpoints to `http`, and serving to `run`.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from importlib.util import find_spec
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import BaseRoute, Mount, Router
from starlette.types import ASGIApp, ExceptionHandler, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from penstock.app import App, Backend
from penstock.config import Config
from penstock.errors import TryAgain, of_extra
from penstock.observe.logs import event
from penstock.server.access import REQUEST_ID, Access
from penstock.server.admin import admin_mount
from penstock.server.apidocs import docs_routes
from penstock.server.http import Api, CallDoor, health_routes, not_routed, refuse, refuse_plainly
from penstock.server.httpactions import ActionDoor, ActionRoute
from penstock.server.metrics import metrics_route
from penstock.server.opening import Opening
from penstock.server.requests import Refused
from penstock.server.sockets.socket import Socket
from penstock.server.subscribe import WrittenAnswers
from penstock.server.wellknown import well_known_routes
from penstock.services.service import Services

_PREFLIGHT_SECONDS = 86_400
_SOCKET_PATH = re.compile(r"/api/(?:(?P<version>[^/]+)/)?sync")
_DASHBOARD_PACKAGES = frozenset({"jinja2", "markupsafe"})


class Asgi(Starlette):
    def __init__(self, opening: Opening, *, dashboard: bool = False) -> None:
        origins = [origin.strip() for origin in opening.config.cors_origins.split(",") if origin.strip()]
        self._origins = origins
        written = WrittenAnswers()
        api = Api(opening, written)
        actions = ActionDoor(opening, lambda web: _for_web_pages(web, origins, _MountedCors))
        super().__init__(
            routes=[
                Mount("/api", app=_for_web_pages(_route(api.routes(), {Refused: refuse, TryAgain: refuse}), origins)),
                Mount("/rest", app=_for_web_pages(_route(api.rest_routes(), {Exception: refuse_plainly}), origins)),
                *health_routes(opening),
                *docs_routes(opening),
                metrics_route(opening),
                admin_mount(opening),
                *(_dashboard(opening) if dashboard else ()),
                Mount("/http", app=actions),
                ActionRoute(actions),
                *well_known_routes(opening),  # last, as a program may answer there itself
            ],
            middleware=[
                Middleware(_SocketDoor, opening=opening, written=written, origins=origins),
                Middleware(Access, opening=opening),
                Middleware(CallDoor, api=api, opening=opening, origins=origins),
            ],
            exception_handlers={HTTPException: not_routed},
            lifespan=opening.lifespan,
        )
        self._actions = Access(actions, opening)
        self.router.redirect_slashes = False
        self.opening = opening

    def with_http_port(self, port: int) -> ASGIApp:
        """This application, which answers requests at one port with nothing but HTTP actions."""

        async def web(scope: Scope, receive: Receive, send: Send) -> None:
            if (scope.get("server") or ("", 0))[1] != port:
                await self(scope, receive, send)
            elif scope["type"] == "websocket":
                await send({"type": "websocket.close"})
            else:
                await self._actions(scope, receive, send)

        return web

    def mount(self, path: str, app: ASGIApp, name: str | None = None) -> None:
        """Serve another ASGI app below a path. Pages of the setting ``cors_origins`` may call it."""
        super().mount(path, _for_web_pages(app, self._origins, _MountedCors), name)

    def lifespan(self, app: Any = None) -> AbstractAsyncContextManager[None]:
        """The time for which it is served. A program that mounts it passes this on; see `asgi_app`."""
        return self.opening.lifespan(app)


def asgi_app(
    app: App,
    *,
    services: Services = (),
    config: Config | None = None,
    backend: Backend | None = None,
    dashboard: bool = False,
) -> Asgi:
    """An app as an ASGI application, for any ASGI server.

    With ``asgi = asgi_app(app)`` in ``program.py``, ``uvicorn program:asgi`` serves it. It opens the app's backend
    when the server starts, and closes it when the server stops. An application that is mounted in another one hears
    of neither event, so the other one passes its lifespan on::

        backend = asgi_app(app, services="all")
        web = FastAPI(lifespan=backend.lifespan)
        web.mount("/backend", backend)

    Otherwise the backend opens at the first request, and closes when the event loop ends, which cuts off the jobs
    that run there. A program that opens the backend itself gives it, and closes it too.

    Args:
        app: The app.
        services: The services to run in this process: ``"all"``, or a list; none by default.
        config: The settings; those of `App.config` by default.
        backend: A backend that is open.
        dashboard: Whether to serve the dashboard under ``/dashboard``.

    Raises:
        ConfigError: The packages of the dashboard are not installed.
    """
    return Asgi(Opening(app, services, config, backend), dashboard=dashboard)


def dashboard_is_installed() -> bool:
    """Whether the packages of the dashboard are there."""
    return all(find_spec(name) is not None for name in _DASHBOARD_PACKAGES)


def _dashboard(opening: Opening) -> Sequence[BaseRoute]:
    """Its routes. It is imported only if it is wanted, as it needs packages of an extra."""
    with of_extra("dashboard", "The dashboard", _DASHBOARD_PACKAGES):
        mount: Any = importlib.import_module("penstock.dashboard.mount")
    routes: Sequence[BaseRoute] = mount.dashboard_routes(opening)
    return routes


class _MountedCors(CORSMiddleware):
    """Leaves origins that the setting does not name, and answers with such headers of their own, to the mounted app."""

    def preflight_response(self, request_headers: Headers) -> Any:
        is_allowed = self.is_allowed_origin(request_headers["origin"])
        answer = super().preflight_response(request_headers)
        return answer if is_allowed else partial(self.simple_response, request_headers=request_headers)

    async def send(self, message: Message, send: Send, request_headers: Headers) -> None:
        if "access-control-allow-origin" in Headers(raw=message.get("headers", [])):
            await send(message)
        else:
            await super().send(message, send, request_headers)


def _route(routes: Sequence[BaseRoute], handlers: Mapping[type[Exception], ExceptionHandler]) -> ASGIApp:
    router = Router(routes, redirect_slashes=False)
    return ExceptionMiddleware(router, handlers={HTTPException: not_routed, **handlers})


def _for_web_pages(web: ASGIApp, origins: Collection[str], cors: type[CORSMiddleware] = CORSMiddleware) -> ASGIApp:
    """An app that pages of these origins may call."""
    if not origins:
        return web
    everyone = "*" in origins
    return cors(
        web,
        allow_origins=() if everyone else origins,
        allow_origin_regex=".*" if everyone else None,
        allow_credentials=not everyone,
        allow_methods=("GET", "POST") if cors is CORSMiddleware else ("*",),
        allow_headers=("*",),
        expose_headers=(REQUEST_ID, "retry-after"),
        max_age=_PREFLIGHT_SECONDS,
    )


class _SocketDoor:
    """The endpoint of web sockets. It stands before the layers of HTTP, which would take 7 KB for each that is open."""

    def __init__(self, app: ASGIApp, opening: Opening, written: WrittenAnswers, origins: Collection[str]) -> None:
        self._app = app
        self._opening = opening
        self._written = written
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_one = scope["type"] == "websocket"
        path = _SOCKET_PATH.fullmatch(scope["path"].removeprefix(scope.get("root_path", ""))) if is_one else None
        if path is None:
            await self._app(scope, receive, send)
            return
        websocket = WebSocket(scope, receive, send)
        client = self._client(scope, path["version"] or "")
        if client is None:
            await websocket.close()
            return
        socket = Socket(websocket, client, self._opening, self._written)
        await websocket.accept()
        scope["headers"] = []  # they have been read, and may take some KB
        await socket.run()

    def _client(self, scope: Scope, version: str) -> str | None:
        """The facts that a client says of itself; None if it is refused."""
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        if origin and not self._may_call(origin, headers.get("host", "")):
            event("socket.refused", logging.WARNING, origin=origin[:200], fix="Name it in the setting cors_origins.")
            return None
        return headers.get("convex-client") or f"npm-{version}"

    def _may_call(self, origin: str, host: str) -> bool:
        return "*" in self._origins or origin in self._origins or origin.partition("://")[2] == host
