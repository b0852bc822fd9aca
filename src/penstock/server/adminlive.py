"""``/admin/live``: the watched queries of this process, those that cost most first."""

from __future__ import annotations

from typing import Any

from penstock.app import Backend
from penstock.server.adminwords import LISTED, MOST_LISTED, AdminRoute, Words


async def _list(backend: Backend, words: Words) -> Any:
    limit = words.number("limit", LISTED, MOST_LISTED)
    found = sorted(backend.live_queries.report(), key=lambda one: one.seconds, reverse=True)
    return {"queries": [one._asdict() for one in found[:limit]], "more": max(0, len(found) - limit)}


LIVE_ROUTES = (AdminRoute("/live", ("limit",), _list),)
