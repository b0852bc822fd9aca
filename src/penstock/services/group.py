"""Starts services together, and stops them in reverse order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from penstock.services.service import Service
from penstock.store.contract import Signals


class Group:
    """The services of one process."""

    def __init__(self, services: list[Service], signals: Signals) -> None:
        self.services = services
        self._signals = signals

    def start(self) -> None:
        """Start all, woken by signals."""
        for service in self.services:
            self._signals.subscribe(service.wake)
            service.start()

    async def stop(self) -> None:
        """Stop all: each finishes what it has begun."""
        await self._end([service.stop() for service in reversed(self.services)])

    async def kill(self) -> None:
        """End all at once, as a crash does."""
        await self._end([service.kill() for service in reversed(self.services)])

    async def _end(self, endings: list[Coroutine[Any, Any, None]]) -> None:
        for service in self.services:
            self._signals.unsubscribe(service.wake)
        await asyncio.gather(*endings)
