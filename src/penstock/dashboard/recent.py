"""The last log events of this process, while there is a dashboard."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import count
from typing import Any

_KEPT = 5_000
_OWN = re.compile(r"/dashboard(/|$)")
_WRONG = 500


@dataclass(frozen=True, slots=True)
class Entry:
    """A log event.

    Attributes:
        number: Its number; later ones have greater ones.
        at: When it was.
        level: The number of its level.
        name: Its name, such as ``job.failed``.
        facts: What it says.
        traceback: The traceback, if it has one.
    """

    number: int
    at: datetime
    level: int
    name: str
    facts: Mapping[str, Any]
    traceback: str | None

    @property
    def level_name(self) -> str:
        return logging.getLevelName(self.level).lower()


class Recent(logging.Filter):
    """Keeps the last events that are logged, without the dashboard's own requests.

    A filter that lets all pass: a handler would change who prints them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.entries: deque[Entry] = deque(maxlen=_KEPT)
        self._numbers = count(1)
        self._form = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        traceback = self._form.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else None
        at = datetime.fromtimestamp(record.created, UTC)
        name, facts = getattr(record, "event", record.name), getattr(record, "facts", {})
        is_own = name == "http.request" and "function" not in facts and _OWN.search(facts.get("path", ""))
        if is_own and facts.get("status", _WRONG) < _WRONG:
            return True  # to look leaves no trace
        self.entries.append(Entry(next(self._numbers), at, record.levelno, name, facts, traceback))
        return True


@cache
def recent() -> Recent:
    """The events of this process; they are kept from the first call on."""
    found = Recent()
    logging.getLogger("penstock").addFilter(found)
    return found
