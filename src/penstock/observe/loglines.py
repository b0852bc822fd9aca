"""Log lines: what a function logs while it runs, for the logbook, and in development for the caller to see.

Owns which records are told, and how much of them. The program's logs go where they always go, except for what the body
of a workflow repeats in a replay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Context, ContextVar, copy_context
from functools import cache
from typing import Any

from penstock.observe.logbook import note_record
from penstock.observe.timing import current_spent

_MOST, _LONGEST = 100, 2000  # lines of one call, characters of one line

_NOWHERE = -1  # a level below that of any handler

_is_muted: ContextVar[Callable[[], bool] | None] = ContextVar("is_muted", default=None)
_lines: ContextVar[list[str] | None] = ContextVar("lines", default=None)


def log_lines(*, told: bool) -> AbstractContextManager[list[str]]:
    """The lines of what is logged in this block, also in its threads; none unless they are `told`."""
    return _log_lines() if told else nullcontext([])


@contextmanager
def _log_lines() -> Iterator[list[str]]:
    found: list[str] = []
    token = _lines.set(found)
    try:
        yield found
    finally:
        _lines.reset(token)


def context_muted_while(is_muted: Callable[[], bool]) -> Context:
    """A copy of this context. What is logged there goes nowhere while `is_muted` says so."""
    context = copy_context()
    context.run(_is_muted.set, is_muted)
    return context


@cache
def hear_records() -> None:
    """Hear of all records. A handler would keep the program from configuring its logs later."""
    make = logging.getLogRecordFactory()

    def hear(*args: Any, **facts: Any) -> logging.LogRecord:
        record = make(*args, **facts)
        if (is_muted := _is_muted.get()) is not None and is_muted():
            record.levelno = _NOWHERE
            return record
        spent, lines = current_spent(), _lines.get()
        runs = spent is not None or lines is not None
        if runs and record.name and record.name.partition(".")[0] != "penstock":
            text = _text(record)[:_LONGEST]
            note_record(record, text)
            if lines is not None and len(lines) < _MOST:
                lines.append(f"[{record.levelname}] {text}")
        return record

    logging.setLogRecordFactory(hear)


def _text(record: logging.LogRecord) -> str:
    try:
        return record.getMessage().encode("utf-8", "backslashreplace").decode()
    except Exception:  # noqa: BLE001 - its arguments do not fit; logging reports that
        return str(record.msg)
