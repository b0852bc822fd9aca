"""The connections of a server: how many there may be, and how long one may go without a request.

Owns closing those that are too many or say nothing. Between two requests uvicorn closes them itself.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from penstock.config import Config

try:
    import resource
except ImportError:  # where files are not limited in this way
    resource = None  # type: ignore[assignment]

REQUEST_SECONDS = 20.0  # longer than it takes to say what is wanted; bodies have `call_timeout`
_OTHER_FILES = 100  # the database's, the log's, the program's own


def most_connections(config: Config) -> int | None:
    """How many connections leave enough open files for the database and the program; None if nothing limits them."""
    if resource is None:
        return None
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return None
    return max(files // 2, files - config.max_connections - _OTHER_FILES)


def limited_connections(most: int | None) -> type[asyncio.Protocol]:
    """Uvicorn's connections, but `most` of them at once, and none that is kept open without a request."""
    return type("Connection", (_Limited, AutoHTTPProtocol), {"most": most})


class _Limited(asyncio.Protocol):
    """Stands before uvicorn's protocol, whichever it is; knows of it its connections and its last request, `cycle`."""

    most: int | None
    connections: set[Any]
    cycle: Any
    _transport: asyncio.Transport
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a connection, or close it if there are too many."""
        super().connection_made(transport)
        self._transport = cast("asyncio.Transport", transport)
        if self.most is not None and len(self.connections) > self.most:
            self._transport.abort()
        else:
            self._wait()

    def data_received(self, data: bytes) -> None:
        """Read on; once a request has its headers, it is waited for no more."""
        super().data_received(data)
        if self._is_asked():
            self._wait_no_more()
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
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
        if not self._is_asked() and self._transport.get_protocol() is self:  # or a web socket has taken it over
            self._transport.close()

    def _is_asked(self) -> bool:
        """Whether a request is under way."""
        return self.cycle is not None and not self.cycle.response_complete
