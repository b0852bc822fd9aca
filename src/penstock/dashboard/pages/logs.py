"""Logs: the last log events of this process, newest first."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import islice
from typing import Any
from urllib.parse import urlencode

from penstock.dashboard.page import Page, View
from penstock.dashboard.recent import Entry, recent

_LISTED = 100
_WORDS = ("event", "function", "job", "level")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_FACTS = {"function": ("function", "fnName"), "job": ("job", "workId")}  # the pools' events have Workpool's words


async def _load(view: View) -> Mapping[str, Any]:
    given = {word: text for word in _WORDS if (text := view.word(word))}
    before = view.number("before", 1, 2**63) if view.word("before") else None
    entries = (one for one in reversed([*recent().entries]) if before is None or one.number < before)
    found = list(islice((one for one in entries if _fits(one, given)), _LISTED + 1))
    older = urlencode(given | {"before": str(found[_LISTED - 1].number)}) if len(found) > _LISTED else None
    filtered = bool(given) or before is not None
    return {
        "entries": found[:_LISTED],
        "older": older,
        "given": {word: given.get(word, "") for word in _WORDS},
        "filtered": filtered,
        "levels": list(_LEVELS),
    }


def _fits(entry: Entry, given: Mapping[str, str]) -> bool:
    return (
        entry.level >= _LEVELS.get(given.get("level", ""), 0)
        and entry.name.startswith(given.get("event", ""))
        and all(
            any(given[word] in str(entry.facts.get(name, "")) for name in names)
            for word, names in _FACTS.items()
            if word in given
        )
    )


PAGES = (Page("/logs", "Logs", "logs.html", _load, {}),)
