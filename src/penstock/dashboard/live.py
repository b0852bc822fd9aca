"""The views that somebody looks at: each is rendered once for all who do, and each gets what changed since.

A view is rendered again each second, and sooner after an act. It never takes more than a small share of the time.
Nothing runs when nobody looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping, Sized
from contextlib import suppress
from typing import Any

from pydantic_core import to_json

from penstock.api.live import Watch
from penstock.clock import SystemClock
from penstock.errors import PenstockError
from penstock.server.requests import Refused
from penstock.server.subscribe import HEARTBEAT

Fragments = Mapping[str, str]
Render = Callable[[Any], Awaitable[Fragments]]

_EVERY, _LATEST = 1.0, 30.0  # seconds between two renderings, and between two that take long
_SOONEST = 0.25  # seconds between two after changes of a watched query
_OVER: Any = object()
_SHARE = 40  # all views together take at most one part in so many of the time, unless they are very slow


class Live:
    """The views that somebody looks at."""

    def __init__(self) -> None:
        self._watched: dict[Hashable, _Watched] = {}

    def nudge(self) -> None:
        """Render all views again soon, as somebody has changed something."""
        for one in self._watched.values():
            one.nudged.set()

    async def events(
        self,
        key: Hashable,
        render: Render,
        holds: Callable[[], Awaitable[bool]],
        watch: Callable[[], Watch[Any] | None] | None = None,
        every: float = 0.0,
    ) -> AsyncGenerator[bytes, None]:
        """The events of one who looks: the fragments, then the changed ones. It ends if the session does.

        Args:
            key: Equal for viewers who see the same.
            render: Renders all fragments; takes the answer of the watched query, or None.
            holds: Whether the session has not ended.
            watch: Watches a query, after whose changes only it is rendered again.
            every: The least seconds between two renderings, without such a query.
        """
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = _Watched(render, watch, every, self._watched)
        news, clock = asyncio.Event(), SystemClock()
        watched.viewers.add(news)
        sent: dict[str, str] = {}
        try:
            while not watched.ended:
                news.clear()
                changed = {name: text for name, text in watched.fragments.items() if sent.get(name) != text}
                if not await holds():
                    return
                if changed:
                    sent |= changed
                    yield b"data: %b\n\n" % to_json(changed)
                elif not await clock.wait(news, HEARTBEAT):
                    yield b":\n\n"
        finally:
            watched.viewers.discard(news)
            if not watched.viewers:
                watched.task.cancel()
                if self._watched.get(key) is watched:
                    del self._watched[key]


class _Watched:
    def __init__(
        self, render: Render, watch: Callable[[], Watch[Any] | None] | None, every: float, views: Sized
    ) -> None:
        self._every = every
        self._views = views
        self.fragments: Fragments = {}
        self.viewers = set[asyncio.Event]()
        self.nudged = asyncio.Event()
        self.ended = False
        self._render = render
        self._watch = watch
        self.task = asyncio.get_running_loop().create_task(self._run(), name="penstock-dashboard")

    async def _run(self) -> None:
        try:
            with suppress(PenstockError, Refused):  # what is shown is gone, or cannot be read
                watch = None if self._watch is None else self._watch()
                await (self._look_again() if watch is None else self._follow(watch))
        finally:
            self.ended = True  # viewers ask again, and are told what is wrong
            self._tell()

    async def _follow(self, watch: Watch[Any]) -> None:
        clock = SystemClock()
        async with watch:
            while True:
                answer = None
                with suppress(PenstockError):  # which the page tells
                    answer = await anext(watch, _OVER)
                if answer is _OVER:
                    return
                self.fragments = await self._render(answer)
                self._tell()
                await clock.sleep(_SOONEST)

    async def _look_again(self) -> None:
        clock = SystemClock()
        while True:
            self.nudged.clear()
            began = clock.monotonic()
            self.fragments = await self._render(None)
            self._tell()
            took = (clock.monotonic() - began) * len(self._views)
            pause = max(min(took * _SHARE, _LATEST), self._every)
            await clock.sleep(pause)
            if pause < _EVERY:
                await clock.wait(self.nudged, _EVERY - pause)

    def _tell(self) -> None:
        for one in self.viewers:
            one.set()
