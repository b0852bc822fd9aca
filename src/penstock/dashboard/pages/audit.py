"""Audit: who has done what on the dashboard and with the admin token, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from penstock.dashboard.page import Page, View

_LISTED = 50


async def _load(view: View) -> Mapping[str, Any]:
    asked = {word: view.word(word) for word in ("who", "act")}
    found = await view.backend.engine.store.audit.list(_LISTED + 1, view.below("after"), **asked)
    given = {word: text for word, text in asked.items() if text}
    older = urlencode(given | {"after": str(found[_LISTED - 1].id)}) if len(found) > _LISTED else None
    filtered = bool(given) or view.word("after") is not None
    return {"acts": found[:_LISTED], "older": older, "given": asked, "filtered": filtered}


PAGES = (Page("/audit", "Audit", "audit.html", _load, {}),)
