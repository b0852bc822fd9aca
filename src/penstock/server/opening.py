"""The backend behind the doors: given by the program, or opened with the server and closed with it.

Owns opening, closing, and waiting for the calls that are under way. Another program may mount a server without passing
its lifespan on. It then opens at the first request, and closes when the event loop ends.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any, Protocol

from penstock.app import App, Backend
from penstock.clock import SystemClock
from penstock.config import Config
from penstock.observe.following import Following
from penstock.observe.logs import event
from penstock.server.requests import Refused
from penstock.services.service import Services, name_services

_LAST_WORD = 1.0  # seconds
_LOOK_EVERY = 0.5  # seconds, whether a server is told to exit
ABORT = "penstock.abort"  # in the state of a connection: cuts it, whatever is still unsent
# In a received message: its size, if only its ends are left; and what frees its memory, to be called once it was read.
SIZE, TAKEN = "penstock.size", "penstock.taken"


class Endless(Protocol):
    """An answer without an end: a web socket, or a stream of events. Stopping does not wait for these."""

    closed: asyncio.Future[None]

    def hang_up(self) -> None:
        """End it, as the server stops."""


class Opening:
    def __init__(self, app: App, services: Services, config: Config | None, backend: Backend | None) -> None:
        self.config = backend.config if backend is not None else config or app.config()
        self.draining = False
        self.endless = set[Endless]()
        self.app = app
        self._services = name_services(services)
        self._backend = backend
        self._held: AsyncGenerator[None, None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._clock = SystemClock()
        self._watched = False  # by a dashboard
        self._watching: asyncio.Task[None] | None = None
        self.under_way = 0  # requests
        self._idle = asyncio.Event()
        self._idle.set()

    def watch(self) -> None:
        """Have each job and each call from outside begin a trace."""
        self._watched = True
        if self._backend is not None:
            self._backend.engine.journal.follows = True

    @property
    def ready(self) -> Backend | None:
        """The backend, if it is open and takes calls."""
        return None if self.draining else self._backend

    async def backend(self) -> Backend:
        """The backend, opened if need be. Refused while the server shuts down."""
        if self.draining:
            raise Refused(503, "ShuttingDown", "This server is shutting down.", {"retry-after": "1"})
        if self._backend is None:  # opened once, however many ask; one that asks and goes away does not stop it
            if self._opening is None or self._opening.get_loop() is not asyncio.get_running_loop():
                self._opening = asyncio.get_running_loop().create_task(self._take_hold(), name="penstock-open")
            await asyncio.shield(self._opening)
        assert self._backend is not None  # noqa: S101 - opened, or raised
        return self._backend

    def follow(self) -> AbstractContextManager[None]:
        """The trace of a new call, for a block."""
        return Following(self._clock.uuid7()) if self._watched else nullcontext()

    def trace(self, headers: Mapping[str, str]) -> AbstractContextManager[Any]:
        """The trace that a caller with OpenTelemetry names, for a block."""
        tracing = None if self._backend is None else self._backend.engine.journal.tracing
        return nullcontext() if tracing is None else tracing.incoming(headers)

    @asynccontextmanager
    async def lifespan(self, _app: Any = None) -> AsyncIterator[None]:
        """Open with the server, close with it. A mounted server's lifespan is its parent's to run."""
        self.draining = False
        await self.backend()
        try:
            yield
        finally:
            await self.end()

    def add(self, one: Endless) -> None:
        """Hold an answer without an end. A server of another program waits for those, and tells them nothing."""
        self.endless.add(one)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.get_running_loop().create_task(self._watch_server(), name="penstock-server")

    async def _watch_server(self) -> None:
        while self.endless and not self.draining:
            server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)  # as uvicorn's is
            if getattr(server, "should_exit", False):
                self.drain()
            await self._clock.sleep(_LOOK_EVERY)

    def drain(self) -> None:
        """Take on no more calls, and end the answers without an end."""
        self.draining = True
        for one in self.endless:
            one.hang_up()

    async def await_goodbyes(self) -> None:
        """Wait for a moment until clients with such an answer know that the server stops."""
        if self.endless:
            await asyncio.wait({one.closed for one in self.endless}, timeout=_LAST_WORD)

    def begin_request(self) -> None:
        """Count a request as under way, until `end_request`."""
        self.under_way += 1
        self._idle.clear()

    def end_request(self) -> None:
        self.under_way -= 1
        if not self.under_way:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until no request is under way, for as long as stopping may take."""
        seconds = self.config.grace if self._backend is None else self._backend.engine.grace_left()
        await self._clock.wait(self._idle, seconds)

    async def end(self) -> None:
        """Take on no more calls, wait for those under way, and close the backend that was opened here."""
        self.drain()
        if self._watching is not None:
            self._watching.cancel()
        await self.await_goodbyes()
        if self._held is not None and self._backend is not None:
            self._backend.engine.begin_stop()
        await self.idle()
        held, self._held = self._held, None
        if held is not None:
            await held.aclose()

    # ----- steps

    async def _take_hold(self) -> None:
        held = self._hold()
        try:
            await anext(held)
            self._held = held
        finally:
            self._opening = None

    async def _hold(self) -> AsyncGenerator[None, None]:
        """Keep the backend open. The event loop closes a generator that nobody else has closed."""
        backend = Backend(self.app, self.config, SystemClock())
        backend.engine.journal.follows = self._watched
        await backend.start(self._services)
        self._backend = backend
        event("server.opened", logging.INFO, services=",".join(self._services) or "none")
        try:
            yield
        finally:
            self._backend = None
            try:
                await backend.stop()
            finally:
                event("server.closed", logging.INFO)
