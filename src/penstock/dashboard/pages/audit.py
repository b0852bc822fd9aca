"""Audit: who has done what on the dashboard, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from penstock.dashboard.page import Page, View
from penstock.errors import ValueInvalid
from penstock.store.contract.jobs import ABOVE_ALL

_LISTED = 50


async def _load(view: View) -> Mapping[str, Any]:
    after = view.word("after")
    try:
        below = ABOVE_ALL if after is None else UUID(after)
    except ValueError as error:
        raise ValueInvalid("after is an id of this page.") from error
    found = await view.backend.engine.store.audit.list(_LISTED + 1, below)
    return {"acts": found[:_LISTED], "older": found[_LISTED - 1].id if len(found) > _LISTED else None}


PAGES = (Page("/audit", "Audit", "audit.html", _load, {}),)
