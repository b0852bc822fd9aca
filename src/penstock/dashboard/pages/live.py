"""Live queries: who watches what in this process, how often each ran, and why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from penstock.dashboard.mask import mask, secrets_of
from penstock.dashboard.page import Page, View
from penstock.functions.function import AnyFunction

_LISTED = 100


async def _load(view: View) -> Mapping[str, Any]:
    def arguments_text(function: AnyFunction, arguments: Mapping[str, Any]) -> str:
        plain = to_jsonable_python(arguments, bytes_mode="base64", inf_nan_mode="constants", fallback=str)
        return json.dumps(mask(plain, view.secrets | secrets_of(function)), ensure_ascii=False)

    found = sorted(view.backend.live_queries.report(arguments_text), key=lambda one: (not one.watchers, -one.seconds))
    return {
        "queries": found[:_LISTED],
        "more": max(0, len(found) - _LISTED),
        "watchers": sum(one.watchers for one in found),
        "runs": sum(one.runs for one in found),
        "seconds": sum(one.seconds for one in found),
        "count": len(found),
    }


PAGES = (Page("/live", "Live queries", "live.html", _load, {}),)
