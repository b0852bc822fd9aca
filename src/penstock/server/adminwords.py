"""The words of a request to the admin interface: in the URL of a GET, or in the JSON body of a POST.

Owns reading the words and refusing those that are unknown, so that a filter with a spelling mistake picks nothing, and
not everything. Leaves their meaning to the operations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request

from penstock.config import Config
from penstock.operations.operation import Kind, Operation, Parameter
from penstock.server.requests import Refused, read_object

_LISTED, _MOST_LISTED = 50, 1000  # of a page: more would keep the process from its calls for too long
_CHANGED, _MOST_CHANGED = 1000, 10_000

_LONGEST_BODY, _LONGEST_QUERY = 64 * 1024, 16 * 1024
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_INTEGERS = range(-(2**63), 2**63)  # that databases have
_TRUTHS = {"true": True, "false": False}


class Words:
    """The words of one request, as `given`. In a URL each value is a list of texts."""

    def __init__(self, given: Mapping[str, Any], *, in_url: bool) -> None:
        self.given = given
        self._in_url = in_url

    def text(self, name: str, *, empty: bool = False) -> str | None:
        value = self._one(name)
        if value is None or (isinstance(value, str) and (value or empty)):
            return value
        raise _refused(f"{name} must be a text{'' if empty else ' that is not empty'}.")

    def texts(self, name: str, *, commas: bool = False) -> tuple[str, ...] | None:
        """One or several texts. In a URL the word is repeated, or they stand between commas."""
        given = self.given.get(name)
        if given is None:
            return None
        values = [given] if isinstance(given, str) else given
        if not isinstance(values, list) or not values or not all(isinstance(one, str) and one for one in values):
            raise _refused(f"{name} must be a text that is not empty, or several.")
        if self._in_url and commas:
            values = [part.strip() for one in values for part in one.split(",")]
        return tuple(values)

    def flag(self, name: str) -> bool | None:
        value = self._one(name, lambda text: _TRUTHS.get(text, text))
        if value is None or isinstance(value, bool):
            return value
        raise _refused(f"{name} must be true or false.")

    def number(self, name: str, default: int, most: int) -> int:
        value = self._one(name, _whole)
        if value is None:
            return default
        if type(value) is int and 1 <= value <= most:
            return value
        raise _refused(f"{name} must be a whole number from 1 to {most}.")

    def integers(self, name: str) -> list[int] | None:
        """One or several whole numbers of 64 bits. In a URL the word is repeated."""
        given = self.given.get(name)
        if given is None:
            return None
        values = given if isinstance(given, list) else [given]
        if self._in_url:
            values = [_whole(value) for value in values]
        if values and all(type(value) is int and value in _INTEGERS for value in values):
            return values
        raise _refused(f"{name} must be a whole number of at most 64 bits, or several.")

    def integer(self, name: str, least: int | None = None, most: int | None = None) -> int | None:
        value = self._one(name, _whole)
        if value is None or (type(value) is int and value in _INTEGERS and _is_within(value, least, most)):
            return value
        limits = "of at most 64 bits" if least is None else f"from {least}" + ("" if most is None else f" to {most}")
        raise _refused(f"{name} must be a whole number {limits}.")

    def one_of(self, name: str, choices: Sequence[str]) -> str | None:
        value = self.text(name)
        if value is not None and value not in choices:
            raise _refused(f"{name} must be {' or '.join(choices)}.")
        return value

    def key(self, name: str) -> Any:
        value = self._one(name)
        parts = value if isinstance(value, list) and value else [value]
        if value is None or all(isinstance(part, str | int | float) for part in parts):
            return value
        raise _refused(f"{name} must be a text or a number, or an array of these.")

    def _one(self, name: str, read: Callable[[str], Any] = str) -> Any:
        value = self.given.get(name)
        if not self._in_url or value is None:
            return value
        if len(value) != 1:
            raise _refused(f"{name} is said twice.")
        return read(value[0])


async def read_words(request: Request, operation: Operation, config: Config) -> Words:
    """The words of a request. Unknown ones are refused."""
    if operation.changes:
        given: Mapping[str, Any] = await read_object(request, config, min(_LONGEST_BODY, config.max_argument_bytes))
    else:
        if len(request.url.query) > _LONGEST_QUERY:
            raise Refused(414, "UriTooLong", f"A query may have {_LONGEST_QUERY} bytes.")
        given = {name: request.query_params.getlist(name) for name in request.query_params}
    names = [one.name for one in operation.takes]
    if unknown := [name for name in given if name not in names]:
        words = ", ".join(names) or "none"
        raise Refused(400, "UnknownWord", f"There is no word {unknown[0][:100]!r} here. Words are: {words}.")
    return Words(given, in_url=not operation.changes)


_READERS: Mapping[Kind, Callable[[Words, Parameter], Any]] = {
    "text": lambda words, one: words.text(one.name),
    "any text": lambda words, one: words.text(one.name, empty=True),
    "texts": lambda words, one: words.texts(one.name),
    "states": lambda words, one: words.texts(one.name, commas=True),
    "choices": lambda words, one: words.texts(one.name, commas=True),
    "choice": lambda words, one: words.one_of(one.name, one.choices),
    "key": lambda words, one: words.key(one.name),
    "flag": lambda words, one: words.flag(one.name),
    "number": lambda words, one: words.integer(one.name, one.least, one.most),
    "numbers": lambda words, one: words.integers(one.name),
    "moment": lambda words, one: words.text(one.name),
    "page": lambda words, one: words.number(one.name, _LISTED, _MOST_LISTED),
    "part": lambda words, one: words.number(one.name, _CHANGED, _MOST_CHANGED),
}


def values_of(words: Words, operation: Operation) -> dict[str, Any]:
    """The parameters of an operation, as words give them. A missing one is refused if it is needed."""
    given = {one.name: _READERS[one.kind](words, one) for one in operation.takes}
    for one in operation.takes:
        if one.needed and given[one.name] is None:
            raise _refused(f"{one.name} is missing.")
    return given


def _is_within(value: int, least: int | None, most: int | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


def _whole(text: str) -> int | str:
    return int(text) if _INTEGER.fullmatch(text) else text


def _refused(message: str) -> Refused:
    return Refused(400, "BadRequest", message)
