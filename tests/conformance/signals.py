"""What a store promises of wake-ups: they reach every process that listens, soon, and never block."""

from __future__ import annotations

import asyncio

from conformance.bench import Bench, Suite, new_job, story

_SOON = 5.0


class Signals(Suite):
    """`store.Signals`."""

    @story
    async def test_a_wake_up_reaches_all_who_listen_in_this_process(self, bench: Bench) -> None:
        events = [asyncio.Event(), asyncio.Event()]
        for event in events:
            bench.store.signals.subscribe(event)
        for _ in range(3):
            for event in events:
                event.clear()
            bench.store.signals.notify()
            await self._all(events)

    @story
    async def test_a_committed_job_wakes_another_process(self, bench: Bench) -> None:
        other, event = await bench.another(), asyncio.Event()
        other.signals.subscribe(event)
        await self._quiet(event)
        for _ in range(3):
            event.clear()
            await bench.enqueue(new_job())
            bench.store.signals.notify()
            await self._all([event])

    @story
    async def test_who_does_not_listen_any_more_is_left_alone(self, bench: Bench) -> None:
        gone, here = asyncio.Event(), asyncio.Event()
        for event in (gone, here):
            bench.store.signals.subscribe(event)
        await self._quiet(here)
        bench.store.signals.unsubscribe(gone)
        bench.store.signals.unsubscribe(gone)
        gone.clear()
        here.clear()
        bench.store.signals.notify()
        await self._all([here])
        assert not gone.is_set()

    @story
    async def test_many_wake_ups_at_once_do_no_harm(self, bench: Bench) -> None:
        other, event = await bench.another(), asyncio.Event()
        other.signals.subscribe(event)
        await self._quiet(event)
        for _ in range(10_000):
            bench.store.signals.notify()
        await bench.enqueue(new_job())
        bench.store.signals.notify()
        await self._all([event])

    async def _all(self, events: list[asyncio.Event]) -> None:
        async with asyncio.timeout(_SOON):
            for event in events:
                await event.wait()

    async def _quiet(self, event: asyncio.Event) -> None:
        """Wait for the wake-up that tells a new listener to look by itself."""
        await self._all([event])
