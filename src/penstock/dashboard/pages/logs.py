"""Logs: the last log events of all processes, newest first."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from penstock.dashboard.page import Page, View
from penstock.errors import ValueInvalid
from penstock.store.contract.jobs import ABOVE_ALL

_LISTED = 100
_WORDS = ("event", "function", "job", "level")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


async def _load(view: View) -> Mapping[str, Any]:
    given = {word: text for word in _WORDS if (text := view.word(word))}
    before = view.word("before")
    where: dict[str, Any] = {word: given.get(word, "") for word in ("event", "function")}
    if "level" in given:
        where["level"] = _LEVELS.get(given["level"], logging.DEBUG)
    try:
        below = ABOVE_ALL if before is None else UUID(before)
    except ValueError as error:
        raise ValueInvalid("before is the id of an event.") from error
    found = await view.log(_LISTED + 1, words=[given.get("job", "")], below=below, **where)
    older = urlencode(given | {"before": str(found[_LISTED - 1].id)}) if len(found) > _LISTED else None
    return {
        "entries": found[:_LISTED],
        "older": older,
        "given": {word: given.get(word, "") for word in _WORDS},
        "filtered": bool(given) or before is not None,
        "levels": list(_LEVELS),
    }


PAGES = (Page("/logs", "Logs", "logs.html", _load, {}),)
