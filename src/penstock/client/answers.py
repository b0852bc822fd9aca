"""Reads a server's answer: a value, or an error to raise.

Owns the client's own errors, and the way back from status, code and text to an exception.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock import errors
from penstock.client.encoding import decode

_OK, _BAD_REQUEST, _UNAUTHORIZED, _NOT_FOUND, _TOO_LARGE, _TOO_MANY, _INTERNAL = 200, 400, 401, 404, 413, 429, 500
_GATEWAY = frozenset({502, 503, 504})  # said by a proxy, unless a code tells more
_LONGEST_TEXT = 500


class FunctionError(errors.PenstockError):
    """The function does not exist, refused its arguments, or failed. `ApplicationError` is separate.

    Attributes:
        request_id: Names the call in the server's log.
    """

    code = "function_error"

    def __init__(self, message: str, request_id: str = "") -> None:
        super().__init__(message, request_id=request_id)
        self.request_id = request_id


class ServerUnreachable(errors.TryAgain):
    """The client cannot reach the server. ``facts["uncertain"]`` is true if the call may have reached it."""

    code = "server_unreachable"


class ServerError(errors.PenstockError):
    """The server failed, or is no penstock server."""

    code = "server_error"


_AGAIN: dict[str, type[errors.TryAgain]] = {
    name: one for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, errors.TryAgain)
} | {"CommitUncertain": errors.DatabaseUnavailable, "OptimisticConcurrencyControlFailure": errors.Conflict}
_UNCERTAIN = frozenset({"CommitUncertain", "ShuttingDown"})


def read_answer(status: int, headers: Mapping[str, str], content: bytes) -> Any:
    """The value of an answer, or the error that it stands for, raised."""
    found = _read(content)
    if status == _OK and found.get("status") == "success":
        return found.get("value")
    if status == _OK and found.get("status") == "error":
        raise _function_error(found, headers)
    raise _refusal(status, headers, found, content)


class AnswerStream:
    """Finds the answers in an event stream, piece by piece; after a new connection only another one."""

    def __init__(self) -> None:
        self.last: bytes | None = None
        self._rest = b""
        self._headers: Mapping[str, str] = {}

    def begin(self, headers: Mapping[str, str]) -> None:
        self._rest, self._headers = b"", headers

    def answers(self, piece: bytes) -> Iterator[Any]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and line != self.last:
                self.last = line
                yield read_answer(_OK, self._headers, line.removeprefix(b"data:"))


def _read(content: bytes) -> dict[str, Any]:
    try:
        found = decode(content)
    except (ValueError, errors.PenstockError):
        return {}
    return found if isinstance(found, dict) else {}


def _function_error(found: dict[str, Any], headers: Mapping[str, str]) -> errors.PenstockError:
    if found.get("errorData") == errors.CursorInvalid.data:
        return errors.CursorInvalid(str(found.get("errorMessage")))
    for refused in (errors.NotSignedIn(), errors.AccessDenied("You may not do this.")):
        if found.get("errorData") == refused.data:
            return refused
    if "errorData" in found:
        return errors.ApplicationError(found["errorData"])
    return FunctionError(str(found.get("errorMessage")), headers.get("x-request-id", ""))


def _refusal(status: int, headers: Mapping[str, str], found: dict[str, Any], content: bytes) -> errors.PenstockError:
    code, message = str(found.get("code", "")), str(found.get("message", ""))
    facts: dict[str, Any] = {"status": status, "reason": code, "request_id": headers.get("x-request-id", "")}
    if status in _GATEWAY or status == _TOO_MANY:
        again = (
            errors.Overloaded
            if status == _TOO_MANY
            else _AGAIN.get(code, errors.TryAgain if code else ServerUnreachable)
        )
        uncertain = code in _UNCERTAIN or again is ServerUnreachable
        after = headers.get("retry-after", "")
        seconds = float(after) if after.isdecimal() else 1.0
        text = message or f"The server cannot be reached: a proxy answered with status {status}."
        return again(text, uncertain=uncertain, retry_after=seconds, **facts)
    if status == _TOO_LARGE:
        return errors.LimitExceeded(message or "The call is too large for the server.", **facts)
    if _BAD_REQUEST <= status < _INTERNAL and code and status != _NOT_FOUND:
        return (errors.Unauthenticated if status == _UNAUTHORIZED else errors.InputError)(message, **facts)
    text = message or content[:_LONGEST_TEXT].decode("utf-8", "replace")
    return ServerError(
        f"The server answered with status {status}: {text}", fix="Is this the URL of a penstock server?", **facts
    )
