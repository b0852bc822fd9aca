"""Queries that a test watches without an event loop of its own: it makes the ticks itself."""

from __future__ import annotations

from typing import Any

from penstock.clock import SystemClock
from penstock.functions.function import AnyFunction
from penstock.live.entry import Entry
from penstock.services.live import LiveQueries


def watched(live: LiveQueries, function: AnyFunction, **arguments: Any) -> Entry:
    """The entry of a query that somebody watches from now on."""
    view = live.view()
    view.add(0, function, arguments)
    return view.queries[0]


async def step(live: LiveQueries) -> None:
    """Make a tick, and let runs go on that take longer."""
    await live.tick()
    await SystemClock().sleep(0)


async def settle(live: LiveQueries) -> None:
    """Make a tick, and further ones until all queries have their answers: on a slow machine one may take too long."""
    await step(live)
    while any(one.stale for one in live.report()):
        await step(live)
