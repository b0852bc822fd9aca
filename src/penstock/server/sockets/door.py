"""The door of web sockets: which path is one, and the pages that may open one."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from penstock.observe.logs import event
from penstock.server.opening import Opening
from penstock.server.sockets.socket import Socket
from penstock.server.subscribe import WrittenAnswers

_PATH = re.compile(r"/api/(?:(?P<version>[^/]+)/)?sync")


class SocketApi:
    """The endpoint of web sockets. It stands before the layers of HTTP, which would take 7 KB for each that is open."""

    def __init__(self, app: ASGIApp, opening: Opening, written: WrittenAnswers, origins: Collection[str]) -> None:
        self._app = app
        self._opening = opening
        self._written = written
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_one = scope["type"] == "websocket"
        path = _PATH.fullmatch(scope["path"].removeprefix(scope.get("root_path", ""))) if is_one else None
        if path is None:
            await self._app(scope, receive, send)
            return
        websocket = WebSocket(scope, receive, send)
        client = self._client(scope, path["version"] or "")
        if client is None:
            await websocket.close()
            return
        await websocket.accept()
        scope["headers"] = []  # they have been read, and may take some KB
        await Socket(websocket, client, self._opening, self._written).run()

    def _client(self, scope: Scope, version: str) -> str | None:
        """What a client says of itself; None if it is refused."""
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        if origin and not self._may_call(origin, headers.get("host", "")):
            event("socket.refused", logging.WARNING, origin=origin[:200], fix="Name it in the setting cors_origins.")
            return None
        return headers.get("convex-client") or f"npm-{version}"

    def _may_call(self, origin: str, host: str) -> bool:
        return "*" in self._origins or origin in self._origins or origin.partition("://")[2] == host
