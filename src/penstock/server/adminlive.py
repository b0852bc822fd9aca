"""``/admin/live``: the watched queries of this process, those that cost most first."""

from __future__ import annotations

from typing import Any

from penstock.app import Backend
from penstock.server.adminwords import LISTED, MOST_LISTED, AdminRoute, Words

_LONGEST = 1000  # characters of the arguments


async def _list(backend: Backend, words: Words) -> Any:
    limit = words.number("limit", LISTED, MOST_LISTED)
    found = sorted(backend.live_queries.report(), key=lambda one: one.seconds, reverse=True)
    told = [one._replace(arguments=one.arguments[:_LONGEST])._asdict() for one in found[:limit]]
    return {"queries": told, "more": len(found) - len(told)}


LIVE_ROUTES = (AdminRoute("/live", ("limit",), _list),)
