"""What a store promises of wake-ups: they reach every process that listens, soon, and never block."""

from __future__ import annotations

import asyncio

from conformance.bench import Bench, Suite, new_job, story

_SOON = 5.0


class Signals(Suite):
    """`store.Signals`."""

    @story
    async def test_a_wake_up_reaches_all_who_still_listen_in_this_process(self, bench: Bench) -> None:
        signals, gone, events = bench.store.signals, asyncio.Event(), [asyncio.Event(), asyncio.Event()]
        for event in (gone, *events):
            signals.subscribe(event)
        await self._all(events)
        for _ in range(2):
            signals.unsubscribe(gone)
        gone.clear()
        for _ in range(3):
            for event in events:
                event.clear()
            signals.notify()
            await self._all(events)
        assert not gone.is_set()

    @story
    async def test_committed_jobs_wake_another_process(self, bench: Bench) -> None:
        other, event = await bench.another(), asyncio.Event()
        other.signals.subscribe(event)
        await self._all([event])  # a new listener is told to look by itself
        for many in (1, 1, 10_000):
            event.clear()
            await bench.enqueue(new_job())
            for _ in range(many):
                bench.store.signals.notify()
            await self._all([event])

    async def _all(self, events: list[asyncio.Event]) -> None:
        async with asyncio.timeout(_SOON):
            for event in events:
                await event.wait()
