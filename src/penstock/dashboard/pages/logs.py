"""Logs: the last log events of all processes, newest first."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from penstock.dashboard.page import Page, View
from penstock.observe.logbook import LEVELS

_LISTED = 100
_WORDS = ("event", "function", "job", "level")


async def _load(view: View) -> Mapping[str, Any]:
    given = {word: text for word in _WORDS if (text := view.word(word))}
    where: dict[str, Any] = {word: given.get(word, "") for word in ("event", "function")}
    if "level" in given:
        where["level"] = LEVELS.get(given["level"], logging.DEBUG)
    found = await view.log(_LISTED + 1, words=[given.get("job", "")], below=view.below("before"), **where)
    older = urlencode(given | {"before": str(found[_LISTED - 1].id)}) if len(found) > _LISTED else None
    return {
        "entries": found[:_LISTED],
        "older": older,
        "given": {word: given.get(word, "") for word in _WORDS},
        "filtered": bool(given) or view.word("before") is not None,
        "levels": list(LEVELS),
        "functions": sorted({one.name for one in view.backend.app.registry} | {given.get("function", "")} - {""}),
    }


PAGES = (Page("/logs", "Logs", "logs.html", _load, {}),)
