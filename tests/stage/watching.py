"""Queries that a test watches without an event loop of its own: it makes the ticks itself."""

from __future__ import annotations

from typing import Any

from penstock.functions.function import AnyFunction
from penstock.live.entry import Entry
from penstock.services.live import LiveQueries


def watched(live: LiveQueries, function: AnyFunction, **arguments: Any) -> Entry:
    """The entry of a query that somebody watches from now on."""
    view = live.view()
    view.add(0, function, arguments)
    return view.queries[0]
