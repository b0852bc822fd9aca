"""Answers to errors: the part that a caller may see, its status, and the part that only the log gets.

Owns the line between the two. Callers see errors of the call itself, and errors that functions raise for them with
`ApplicationError`; of everything else they see a request id, which stands in the log with the whole story.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace

from pydantic_core import to_json

from penstock import errors
from penstock.calls.run.snapshots import KEPT, OutOfRetention
from penstock.observe.errortext import error_text
from penstock.observe.logs import event
from penstock.server.requests import Refused
from penstock.wire.outgoing import Format, encode_result

_LONGEST_DATA = 2000


@dataclass(slots=True)
class Exchange:
    """The facts of a request while it is answered; `error` is a stable code."""

    request_id: str
    function: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


_UNCERTAIN = ("CommitUncertain", "The database was lost during a commit: nobody knows whether the call took effect.", 2)
# what is told of an error that means "try again", and after how many seconds; its code is the name of its class
_AGAIN: dict[type[errors.TryAgain], tuple[str, int]] = {
    errors.Conflict: ("Other calls changed the same data at the same time.", 1),
    errors.DatabaseUnavailable: ("The database cannot be reached.", 2),
    errors.DatabaseBusy: ("The database is busy.", 1),
    errors.DatabaseFull: ("The database has no space left.", 60),
    errors.CallTimeout: ("The call took longer than it may.", 1),
    errors.LockTaken: ("Somebody else holds a lock that the call needs.", 1),
    errors.ProviderUnavailable: ("The provider of identities cannot be reached.", 5),
    errors.Overloaded: ("This server has too much to do.", 1),
    OutOfRetention: (
        f"This ts is not open here, or not any more. Ask /api/query_ts for another: one process keeps it {KEPT:g} s.",
        1,
    ),
    errors.TryAgain: ("The call cannot be answered now.", 1),
}


def success(value: bytes) -> bytes:
    return b'{"status":"success","value":' + value + b"}"


def with_lines(answer: Answer, lines: list[str]) -> Answer:
    """The answer with the lines that the function has logged."""
    if not lines or answer.status != 200:  # noqa: PLR2004 - HTTP's number
        return answer
    return replace(answer, body=answer.body[:-1] + b',"logLines":' + to_json(lines) + b"}")


def answer_error(error: BaseException, exchange: Exchange, form: Format, *, dev: bool) -> Answer:
    if isinstance(error, Refused):
        exchange.error = error.code
        return refusal(error.status, error.code, error.message, error.headers)
    if isinstance(error, errors.TryAgain):
        return _again(error, exchange, dev=dev)
    if isinstance(error, errors.RateLimited):
        exchange.error = error.code
        after = {"retry-after": str(math.ceil(error.retry_after))}
        return refusal(429, error.data["code"], error.data["message"], after)
    return Answer(200, function_error(error, exchange, form, dev=dev))


def refusal(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Answer:
    return Answer(status, to_json({"code": code, "message": message}), headers or {})


def function_error(error: BaseException, exchange: Exchange, form: Format, *, dev: bool) -> bytes:
    """The body for a call whose function raised, is unknown, or refused its arguments."""
    exchange.error = getattr(error, "code", "unexpected")
    if isinstance(error, errors.ApplicationError):
        try:
            return _application_error(error, exchange, form)
        except errors.ResultInvalid as unsayable:
            unsayable.__cause__ = error
            error = unsayable
    elif _is_callers(error):
        said = str(error) if isinstance(error, errors.FunctionNotFound) else _printable(error_text(error))
        data = {"errorData": error.data} if isinstance(error, errors.CursorInvalid) else {}
        return to_json({"status": "error", "errorMessage": said, **data})
    event(
        "call.failed",
        logging.ERROR,
        exc_info=error,
        function=exchange.function,
        request_id=exchange.request_id,
        error=type(error).__name__,
    )
    text = f"[Request ID: {exchange.request_id}] Server Error"
    if dev:
        text += f"\nUncaught {_printable(error_text(error))}"
    return to_json({"status": "error", "errorMessage": text})


# ----- steps


def _application_error(error: errors.ApplicationError, exchange: Exchange, form: Format) -> bytes:
    data = encode_result(error.data, form)
    said = error.data if isinstance(error.data, str) else encode_result(error.data, Format.CLEAN).decode()
    text = f"[Request ID: {exchange.request_id}] Server Error\nUncaught ApplicationError: {said[:_LONGEST_DATA]}"
    return b'{"status":"error","errorMessage":' + to_json(text) + b',"errorData":' + data + b"}"


def _is_callers(error: BaseException) -> bool:
    """Whether the error is the caller's, who may then read its text.

    Errors inside the function are the function's: their text may tell of tables and values. A cursor's does not.
    """
    return isinstance(error, errors.CursorInvalid) or (isinstance(error, errors.InputError) and error.at_the_door)


def _again(error: errors.TryAgain, exchange: Exchange, *, dev: bool) -> Answer:
    exchange.error = error.code
    code, message, after = next((kind.__name__, *_AGAIN[kind]) for kind in type(error).__mro__ if kind in _AGAIN)
    if isinstance(error, errors.DatabaseUnavailable) and error.facts.get("uncertain"):
        code, message, after = _UNCERTAIN
        exchange.error = "commit_uncertain"
    event(
        "call.refused",
        logging.WARNING,
        function=exchange.function,
        code=code,
        request_id=exchange.request_id,
        error=_printable(str(error)),
    )
    if dev:
        message = f"{message} {_printable(str(error))}"
    return refusal(503, code, message, {"retry-after": str(after)})


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
