"""Log events: one name and its facts, through the standard library's logging.

Owns the form of an event. Which events exist is told where they are emitted; docs/reference/events.md lists them.
"""

from __future__ import annotations

import json
import logging
from typing import Any

_log = logging.getLogger("penstock")


def event(name: str, level: int = logging.INFO, /, *, exc_info: BaseException | None = None, **facts: Any) -> None:
    """Emit a structured event, such as ``event("worker.started", lease=3)``.

    The record's message is ``name key=value …``; `record.event` and `record.facts` hold it as data.
    """
    if not _log.isEnabledFor(level):
        return
    text = " ".join([name, *(f"{key}={value}" for key, value in facts.items())])
    _log.log(level, text, extra={"event": name, "facts": facts}, exc_info=exc_info)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, event, and the event's facts beside them."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON."""
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", record.name),
            **getattr(record, "facts", {"message": record.getMessage()}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
