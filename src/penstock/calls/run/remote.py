"""Carries errors from one process to another as JSON, so that what arrives runs no code.

penstock's errors keep their facts, an ApplicationError its data, Python's own errors their text. Any other becomes a
RuntimeError with its name. The traceback arrives as a note.
"""

from __future__ import annotations

import builtins
import json
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from pydantic_core import to_jsonable_python

from penstock import errors
from penstock.errors import ApplicationError, PenstockError, Snooze
from penstock.observe.errortext import message_of, trace_text

_LONGEST = 10_000


def failure_text(error: BaseException) -> bytes:
    """An error as JSON."""
    return json.dumps({**_told(error), "traceback": trace_text(error)[-_LONGEST:]}).encode()


def failure_of(text: bytes) -> Exception:
    """The error of such a JSON."""
    told: dict[str, Any] = json.loads(text)
    error = _made(told)
    error.add_note(f"In the other process:\n{told['traceback']}")
    return error


def _told(error: BaseException) -> dict[str, Any]:
    if isinstance(error, ApplicationError):
        try:
            return {"kind": "ApplicationError", "data": to_jsonable_python(error.data)}
        except ValueError as refused:
            what = f"The data of an ApplicationError cannot be said in JSON: {refused}."
            return {"kind": "ResultInvalid", "what": what, "fix": "", "facts": {}}
    if isinstance(error, PenstockError):
        # Of a class that a program has derived, the nearest of penstock's own.
        kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        facts = to_jsonable_python(error.facts, fallback=repr)
        return {"kind": kind, "what": error.what, "fix": error.fix, "facts": facts}
    return {
        "builtin": type(error).__module__ == "builtins",
        "name": type(error).__name__,
        "message": message_of(error)[:_LONGEST],
    }


def _made(told: dict[str, Any]) -> Exception:
    if "message" in told:
        return _foreign(told["name"], told["message"], builtin=told["builtin"])
    if told["kind"] == "ApplicationError":
        return ApplicationError(told["data"])
    facts = told["facts"]
    if told["kind"] == "Snooze":
        delay = None if facts["delay"] is None else timedelta(seconds=facts["delay"])
        until = None if facts["until"] is None else datetime.fromisoformat(facts["until"])
        return Snooze(delay, until=until, reason=told["what"])
    kind: type[PenstockError] = getattr(errors, told["kind"])
    return kind(told["what"], fix=told["fix"], **facts)


def _foreign(name: str, message: str, *, builtin: bool) -> Exception:
    kind = getattr(builtins, name, None) if builtin else None
    if isinstance(kind, type) and issubclass(kind, Exception):
        with suppress(TypeError):  # not all are made of a text
            error = kind(message)
            if str(error) == message:
                return error
    return RuntimeError(f"{name}: {message}")
