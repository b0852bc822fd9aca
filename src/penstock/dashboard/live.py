"""The views that somebody looks at: each is rendered once for all who do, and each gets what changed since.

A view is rendered again after a signal of the store, at least each second, and never so often that it takes more than a
small share of the time. Nothing runs when nobody looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping, Sized

from pydantic_core import to_json

from penstock.clock import SystemClock
from penstock.server.subscribe import HEARTBEAT
from penstock.store.contract.store import Signals

Fragments = Mapping[str, str]
Render = Callable[[], Awaitable[Fragments]]

_EVERY, _SOONEST = 1.0, 0.25  # seconds between two renderings, without a signal and with signals all the time
_LATEST = 5.0  # seconds between them, however long they take
_SHARE = 24  # all views together take at most one part in so many of the time, unless they are very slow


class Live:
    """The views that somebody looks at."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._watched: dict[Hashable, _Watched] = {}

    def nudge(self) -> None:
        """Render all views again soon, as somebody has changed something."""
        for one in self._watched.values():
            one.nudged.set()

    async def events(
        self, key: Hashable, render: Render, holds: Callable[[], Awaitable[bool]], every: float = 0.0
    ) -> AsyncGenerator[bytes, None]:
        """The events of one who looks: the fragments, then those that changed. It ends if the session does.

        Args:
            key: Equal for those who see the same.
            render: Renders all fragments.
            holds: Whether the session has not ended.
            every: The least seconds between two renderings.
        """
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = _Watched(render, self._signals, every, self._watched)
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
    """One view."""

    def __init__(self, render: Render, signals: Signals, every: float, views: Sized) -> None:
        self._every = every
        self._views = views
        self.fragments: Fragments = {}
        self.viewers = set[asyncio.Event]()
        self.nudged = asyncio.Event()
        self.ended = False
        self._render = render
        self._signals = signals
        self.task = asyncio.get_running_loop().create_task(self._run(), name="penstock-dashboard")

    async def _run(self) -> None:
        clock = SystemClock()
        self._signals.subscribe(self.nudged)
        try:
            while True:
                self.nudged.clear()
                began = clock.monotonic()
                self.fragments = await self._render()
                self._tell()
                took = (clock.monotonic() - began) * len(self._views)
                pause = max(min(max(_SOONEST, took * _SHARE), _LATEST), self._every)
                await clock.sleep(pause)
                if pause < _EVERY:
                    await clock.wait(self.nudged, _EVERY - pause)
        finally:
            self._signals.unsubscribe(self.nudged)
            self.ended = True  # those who look ask again, and are told what is wrong
            self._tell()

    def _tell(self) -> None:
        for one in self.viewers:
            one.set()
