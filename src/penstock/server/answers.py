"""Answers to errors: the part that a caller may see, its status, and the part that only the log gets.

Owns the line between the two. Callers see errors of the call itself, and errors that functions raise for them with
`ApplicationError`. Of everything else they see a request id, which stands in the log with the whole story.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from pydantic_core import from_json, to_json

from penstock import errors
from penstock.calls.run.snapshots import KEPT, OutOfRetention
from penstock.clock import SystemClock
from penstock.dataclass import dataclass
from penstock.observe.errortext import frames_text, message_of
from penstock.observe.logs import event
from penstock.server.requests import Refused
from penstock.wire.outgoing import Format, encode_result

_LONGEST_DATA = 2000


@dataclass(slots=True)
class Exchange:
    """A request while it is answered: what the form of an error depends on, and what the log is told of it."""

    request_id: str  # its id
    dev: bool  # whether the caller sees the text of each error, and what functions log
    function: str = ""  # the function that it calls
    form: Format = Format.CLEAN  # the form of the values in its answer
    error: str = ""  # the name of its error, as in the answer's ``code``
    # its headers, by names in small letters; the first of several with one name
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that its log events say of the call."""
        return {"function": self.function, "request_id": self.request_id}


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
    errors.SearchNotReady: ("The search index has still to catch up.", 2),
    errors.ProviderUnavailable: ("The provider of identities cannot be reached.", 5),
    errors.Overloaded: ("This server has too much to do.", 1),
    OutOfRetention: (
        f"This ts is not open here, or not any more. Ask /api/query_ts for another: one process keeps it {KEPT:g} s.",
        1,
    ),
    errors.TryAgain: ("The call cannot be answered now.", 1),
}
# The statuses of further errors, with their texts for callers: their own tell of tables and keys, and go to the log.
_STATUSES: dict[type[errors.PenstockError], tuple[int, str]] = {
    errors.RowNotFound: (404, "There is no such row."),
    errors.UniqueViolation: (409, "There is such a row already."),
    errors.DuplicateJob: (409, "There is such work already."),
    errors.ConstraintViolation: (409, "The database refuses the row."),
}
# The names that Convex's clients know for some errors. REST, the log and Python have our own.
_CONVEX_NAMES: dict[type[BaseException], str] = {
    errors.ApplicationError: "ConvexError",
    errors.ArgumentsInvalid: "ArgumentValidationError",
    errors.Conflict: "OptimisticConcurrencyControlFailure",
}
_OF_ACCESS = (errors.NotSignedIn, errors.AccessDenied, errors.RateLimited)  # before a handler runs
_UNTYPED = {Format.ENCODED: Format.UNTYPED, Format.JSON: Format.CLEAN}  # no type says what an error's data is
_DOOR_STATUSES: dict[type[errors.PenstockError], int] = {
    errors.Unauthenticated: 401,
    errors.FunctionNotFound: 404,
    errors.LimitExceeded: 413,
    errors.InputError: 422,
}


def name_of(error: BaseException) -> str:
    """The name of an error in answers and in the log: that of its class, or what is wrong with a token."""
    reason: str | None = error.facts.get("reason") if isinstance(error, errors.Unauthenticated) else None
    return reason or type(error).__name__


def success(value: bytes) -> bytes:
    return b'{"status":"success","value":' + value + b"}"


def with_lines(answer: Answer, lines: list[str]) -> Answer:
    if not lines or answer.status != 200:  # noqa: PLR2004 - HTTP's number
        return answer
    return replace(answer, body=answer.body[:-1] + b',"logLines":' + to_json(lines) + b"}")


def answer_error(error: BaseException, exchange: Exchange) -> Answer:
    """An error as Convex has it: most have status 200, and tell of it in the body."""
    if isinstance(error, Refused | errors.TryAgain):
        return _refuse(error, exchange, _CONVEX_NAMES)
    if isinstance(error, errors.RateLimited):
        exchange.error = name_of(error)
        return refusal(429, error.data["code"], error.data["message"], _headers(error))
    return Answer(200, function_error(error, exchange))


def plain_answer(error: BaseException, exchange: Exchange) -> Answer:
    """An error as HTTP has it: a status of its own, and ``{"code", "message"}``, for some with ``data``."""
    if isinstance(error, Refused | errors.TryAgain):
        return _refuse(error, exchange)
    exchange.error = code = name_of(error)
    _log_denied(error, exchange)
    if isinstance(error, errors.ApplicationError):
        try:
            data = encode_result(error.data, Format.CLEAN)
        except errors.ResultInvalid as unsayable:
            unsayable.__cause__ = error
            return plain_answer(unsayable, exchange)
        found = from_json(data)
        said = found.get("message") if isinstance(found, dict) else found
        message = said if isinstance(said, str) else data.decode()[:_LONGEST_DATA]
        return Answer(error.status, to_json({"code": code, "message": message, "data": found}), _headers(error))
    if _is_callers(error):
        status = next(_DOOR_STATUSES[kind] for kind in type(error).__mro__ if kind in _DOOR_STATUSES)
        return refusal(status, code, _printable(str(error)), _challenge(status))
    for kind, (status, message) in _STATUSES.items():
        if isinstance(error, kind):
            _log_refused(error, exchange)
            return refusal(status, code, f"{message} {_printable(str(error))}" if exchange.dev else message)
    return refusal(500, "InternalServerError", _fail(error, exchange))


def action_answer(error: BaseException, exchange: Exchange) -> Answer:
    """An error of an HTTP action, as Convex has it: ``{"code"}``, with ``data`` if it has some; a trace in `dev`."""
    answer = plain_answer(error, exchange)
    data = {}
    if isinstance(error, errors.ApplicationError) and not isinstance(error, _OF_ACCESS):
        data = {name: value for name, value in from_json(answer.body).items() if name == "data"}  # if JSON can say it
    if answer.status != 500 and not data:  # noqa: PLR2004 - HTTP's number
        return answer
    code = f"[Request ID: {exchange.request_id}] Server Error"
    said = f"Uncaught {_data_line(error)}" if data else f"Uncaught {_printable(_convex_text(error))}"
    shown = {"code": f"{code}: {said}" if data or exchange.dev else code}
    trace = {"trace": said + _frames(error, exchange)} if exchange.dev else {}
    return replace(answer, body=to_json(shown | trace | data))


def framework_answer(error: BaseException, *, dev: bool) -> Answer:
    """The answer to an error inside another web framework, whose requests have no id.

    Args:
        error: The error that a function raised.
        dev: Whether the caller sees the text of each error.

    Returns:
        The answer: ``status``, ``body`` as bytes of JSON, and ``headers``. The log has the full error.
    """
    function = error.raised_in if isinstance(error, errors.PenstockError) else ""
    return plain_answer(error, Exchange(f"{SystemClock().seed():016x}", dev, function))


def refusal(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Answer:
    return Answer(status, to_json({"code": code, "message": message}), headers or {})


def function_error(error: BaseException, exchange: Exchange) -> bytes:
    """The body for a call whose function raised, is unknown, or refused its arguments."""
    exchange.error = name_of(error)
    _log_denied(error, exchange)
    if isinstance(error, errors.ApplicationError):
        try:
            return _application_error(error, exchange)
        except errors.ResultInvalid as unsayable:
            unsayable.__cause__ = error
            error = unsayable
    elif _is_callers(error):
        said = str(error) if isinstance(error, errors.FunctionNotFound) else _printable(_convex_text(error))
        data = {"errorData": error.data} if isinstance(error, errors.CursorInvalid) else {}
        return to_json({"status": "error", "errorMessage": said, **data})
    return to_json({"status": "error", "errorMessage": _fail(error, exchange)})


# ----- steps


def _refuse(
    error: Refused | errors.TryAgain, exchange: Exchange, names: Mapping[type[BaseException], str] | None = None
) -> Answer:
    """The answer to a request that reached no function, or may be sent again."""
    if isinstance(error, Refused):
        exchange.error = error.code
        return refusal(error.status, error.code, error.message, error.headers)
    code, message, after = next((kind.__name__, *_AGAIN[kind]) for kind in type(error).__mro__ if kind in _AGAIN)
    if isinstance(error, errors.DatabaseUnavailable) and error.facts.get("uncertain"):
        code, message, after = _UNCERTAIN
    exchange.error = code
    _log_refused(error, exchange)
    if "limit" in error.facts:  # its text names only the function
        message = str(error)
    elif exchange.dev:
        message = f"{message} {_printable(str(error))}"
    return refusal(503, (names or {}).get(type(error), code), message, {"retry-after": str(after)})


def _fail(error: BaseException, exchange: Exchange) -> str:
    """Log an error of a function; its text for the caller."""
    event("call.failed", logging.ERROR, exc_info=error, error=type(error).__name__, **exchange.facts)
    text = f"[Request ID: {exchange.request_id}] Server Error"
    shown = exchange.dev or (isinstance(error, errors.ResultInvalid) and "shown" in error.facts)
    return f"{text}\nUncaught {_printable(_convex_text(error))}{_frames(error, exchange)}" if shown else text


def _convex_text(error: BaseException) -> str:
    known = error.facts.get("convex") if isinstance(error, errors.PenstockError) else None
    return f"{known or _CONVEX_NAMES.get(type(error), type(error).__name__)}: {message_of(error)}"


def _frames(error: BaseException, exchange: Exchange) -> str:
    return f"{frames_text(error)}\n" if exchange.dev else ""


def _application_error(error: errors.ApplicationError, exchange: Exchange) -> bytes:
    data = encode_result(error.data, _UNTYPED.get(exchange.form, exchange.form))
    text = f"[Request ID: {exchange.request_id}] Server Error\nUncaught {_data_line(error)}{_frames(error, exchange)}"
    return b'{"status":"error","errorMessage":' + to_json(text) + b',"errorData":' + data + b"}"


def _data_line(error: Any) -> str:
    """The name and the data of an `ApplicationError` in one line."""
    said = error.data if isinstance(error.data, str) else encode_result(error.data, Format.SAID).decode()
    return f"{_CONVEX_NAMES.get(type(error), type(error).__name__)}: {said[:_LONGEST_DATA]}"


def _headers(error: errors.ApplicationError) -> dict[str, str]:
    after = getattr(error, "retry_after", None)
    return _challenge(error.status) if after is None else {"retry-after": str(math.ceil(after))}


def _challenge(status: int) -> dict[str, str]:
    return {"www-authenticate": "Bearer"} if status == 401 else {}  # noqa: PLR2004 - HTTP's number


def _is_callers(error: BaseException) -> bool:
    """Whether the error is the caller's, who may then read its text.

    Errors inside the function are the function's: their text may tell of tables and values. A cursor's does not.
    """
    return isinstance(error, errors.CursorInvalid) or (isinstance(error, errors.InputError) and error.at_the_door)


def _log_denied(error: BaseException, exchange: Exchange) -> None:
    if isinstance(error, errors.AccessDenied):  # its caller does not see which guard or rule it was
        _log_refused(error, exchange, "AccessDenied")


def _log_refused(error: BaseException, exchange: Exchange, code: str = "") -> None:
    event("call.refused", logging.WARNING, code=code or exchange.error, error=_printable(str(error)), **exchange.facts)


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
