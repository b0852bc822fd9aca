"""Audit: who has done what on the dashboard and with the admin token, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from penstock.dashboard.page import Page, View
from penstock.errors import ValueInvalid
from penstock.store.contract.jobs import ABOVE_ALL

_LISTED = 50


async def _load(view: View) -> Mapping[str, Any]:
    after, asked = view.word("after"), {word: view.word(word) for word in ("who", "act")}
    try:
        below = ABOVE_ALL if after is None else UUID(after)
    except ValueError as error:
        raise ValueInvalid("after is an id of this page.") from error
    found = await view.backend.engine.store.audit.list(_LISTED + 1, below, **asked)
    given = {word: text for word, text in asked.items() if text}
    older = urlencode(given | {"after": str(found[_LISTED - 1].id)}) if len(found) > _LISTED else None
    return {"acts": found[:_LISTED], "older": older, "given": asked, "filtered": bool(given) or after is not None}


PAGES = (Page("/audit", "Audit", "audit.html", _load, {}),)
