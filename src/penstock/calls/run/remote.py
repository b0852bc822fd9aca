"""Errors that cross from one process to another: as JSON, so that nothing which arrives runs any code.

Owns what of an error arrives: penstock's own errors are made again with their facts, an ApplicationError with its data,
Python's own with their text. Any other becomes a RuntimeError that says what it was. The traceback from there comes
along as a note.
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
    trace = trace_text(error)[-_LONGEST:]
    return json.dumps({**_told(error), "traceback": trace}).encode()


def failure_of(text: bytes) -> Exception:
    """The error that such a JSON tells of."""
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
        facts = to_jsonable_python(error.facts, fallback=repr)
        return {"kind": _known_kind(error), "what": error.what, "fix": error.fix, "facts": facts}
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
    if told["kind"] == "Snooze":
        return _snooze(told)
    kind: type[PenstockError] = getattr(errors, told["kind"])
    return kind(told["what"], fix=told["fix"], **told["facts"])


def _snooze(told: dict[str, Any]) -> Snooze:
    delay, until = told["facts"]["delay"], told["facts"]["until"]
    return Snooze(
        None if delay is None else timedelta(seconds=delay),
        until=None if until is None else datetime.fromisoformat(until),
        reason=told["what"],
    )


def _foreign(name: str, message: str, *, builtin: bool) -> Exception:
    kind = getattr(builtins, name, None) if builtin else None
    if isinstance(kind, type) and issubclass(kind, Exception):
        with suppress(TypeError):  # not all are made of a text
            error = kind(message)
            if str(error) == message:
                return error
    return RuntimeError(f"{name}: {message}")


def _known_kind(error: PenstockError) -> str:
    """The nearest of penstock's own classes; a program may have derived from it."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
