"""Queries that a test watches without an event loop of its own: it makes the ticks itself."""

from __future__ import annotations

from typing import Any

from stage.outboxes import sql

from penstock.app import Backend
from penstock.clock import SystemClock
from penstock.functions.function import AnyFunction
from penstock.live.entry import Entry
from penstock.services.live.live import LiveQueries


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


async def burn(test: Backend, count: int) -> None:
    """Let demands end: write elsewhere so many times."""
    for number in range(count):
        if test.config.database.startswith("sqlite"):
            values = f"'[-{number + 1}]', 'message', '2030-01-01T00:00:00.000000Z'"
            await sql(test, f"insert into penstock_change (interests, kinds, changed_at) values ({values})")
        else:
            await sql(test, "select pg_current_xact_id()")
