"""Log events: one name and its facts, through the standard library's logging.

Owns the form of an event. docs/reference/events.md lists all events.
Events of pools have the names and facts of Convex's Workpool. As JSON they have the form of Convex's log streams, so
that monitors for those work here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from penstock.observe.errortext import error_text
from penstock.observe.logbook import note_event

_log = logging.getLogger("penstock")
_WORKPOOL = "workpool"


def is_enabled() -> bool:
    """Whether plain events are logged, for callers that would gather facts for many of them."""
    return _log.isEnabledFor(logging.INFO)


def event(name: str, level: int = logging.INFO, /, *, exc_info: BaseException | None = None, **facts: Any) -> None:
    """Emit a structured event, such as ``event("worker.started", lease=3)``.

    The record's message is ``name key=value …``; `record.event` and `record.facts` hold it as data.
    """
    if not _log.isEnabledFor(level):
        return
    facts = {key: error_text(value) if isinstance(value, BaseException) else value for key, value in facts.items()}
    text = " ".join([name, *[f"{key}={value}" for key, value in facts.items()]])
    note_event(name, level, facts, exc_info)
    info = None if exc_info is None else (type(exc_info), exc_info, exc_info.__traceback__)
    # As `log` does it, without looking for the line that calls: that is always this one.
    record = _log.makeRecord(_log.name, level, __file__, 0, text, (), info, "event", {"event": name, "facts": facts})
    _log.handle(record)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, event, and the event's facts.

    Events of pools also have `_time` and `data`, as a stream of Convex's logs has them.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", record.name),
            **getattr(record, "facts", {"message": record.getMessage()}),
        }
        if line["event"].startswith(f"{_WORKPOOL}."):
            line |= _stream_line(record, line["event"])
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _stream_line(record: logging.LogRecord, name: str) -> dict[str, Any]:
    """An event of a pool as a line that a function has printed, which is what Workpool's monitors read."""
    component, _, event_name = name.partition(".")
    facts: Mapping[str, Any] = getattr(record, "facts", {})
    message = {"component": component, "event": event_name, **facts}
    return {
        "_time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "data": {
            "message": json.dumps(message, default=str),
            "function": {"component_path": facts.get("pool")},
        },
    }
