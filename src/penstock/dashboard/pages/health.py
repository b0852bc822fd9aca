"""Health: what the doctor finds, the practices that were seen broken, and the leases, readers and disk beneath."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from penstock.api.health import findings, look
from penstock.dashboard.page import Page, View

_EVERY = 10.0  # seconds: the doctor reads all jobs that have failed lately
_LISTED = 20
_PAGES = {  # of the things that findings are about
    "pool": "/work?pool=",
    "task": "/tasks/task?task=",
    "outbox": "/outboxes/outbox?outbox=",
    "cron": "/crons?cron=",
    "function": "/functions/",
    "table": "/schema#",
}


async def _load(view: View) -> Mapping[str, Any]:
    engine, app = view.backend.engine, view.backend.app
    practices, seen = engine.practices, await look(engine, app.definitions(), app.work(), app.outboxes)
    hot = sorted(seen.conflicts.items(), key=lambda one: -one[1][0])
    broken = sorted(() if practices is None else practices.found.values(), key=lambda one: -one.times)
    return {
        "seen": seen,
        "findings": [(one, _page(one.where)) for one in findings(seen)],
        "pools": (await view.activity.look())[0].pools,
        "practices": None if practices is None else broken,
        "conflicts": hot[:_LISTED],
    }


def _page(where: str) -> str:
    """The page about a pool, a task, an outbox, a function or a table; empty if there is none."""
    kind, _, name = where.partition(" ")
    return _PAGES[kind] + quote(name, safe="") if kind in _PAGES and name else ""


PAGES = (Page("/health", "Health", "health.html", _load, {}, every=_EVERY),)
