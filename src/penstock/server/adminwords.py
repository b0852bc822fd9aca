"""The words of a request to the admin interface: in the URL of a GET, or in the JSON body of a POST.

Owns reading the words and refusing unknown ones, so that a filter with a spelling mistake picks nothing, and not
everything. Leaves their meaning to the operations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request

from penstock.config import Config
from penstock.dataclass import dataclass
from penstock.operations.operation import Given, Kind, Operation, Parameter
from penstock.server.requests import Body, Refused, read_body
from penstock.values import check_text

_LIMITS = {"page": (50, 1000), "part": (1000, 10_000)}  # default and most; more would keep the process from its calls
_LONGEST_BODY, _LONGEST_QUERY = 64 * 1024, 16 * 1024
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_INTEGERS = range(-(2**63), 2**63)  # that databases have
_TRUTHS = {"true": True, "false": False}


async def read_words(request: Request, operation: Operation, config: Config) -> Given:
    """Read the words of a request; in a URL each is a list of texts. Unknown ones are refused."""
    if operation.changes:
        limit = min(_LONGEST_BODY, config.max_argument_bytes)
        given: Given = await read_body(request, config, Body.values, limit=limit)
    else:
        if len(request.url.query) > _LONGEST_QUERY:
            raise Refused(414, "UriTooLong", f"A query may have {_LONGEST_QUERY} bytes.")
        given = {name: request.query_params.getlist(name) for name in request.query_params}
    names = [one.name for one in operation.takes]
    if unknown := [name for name in given if name not in names]:
        words = ", ".join(names) or "none"
        raise Refused(400, "UnknownWord", f"There is no word {unknown[0][:100]!r} here. Words are: {words}.")
    return given


def values_of(words: Given, operation: Operation) -> dict[str, Any]:
    """Read the parameters of an operation from words."""
    found = {one.name: _value_of(words.get(one.name), one, in_url=not operation.changes) for one in operation.takes}
    for one in operation.takes:
        if one.needed and found[one.name] is None:
            raise _refusal(f"{one.name} is missing.")
    return found


@dataclass(frozen=True, slots=True)
class _Form:
    """How values of a kind are written."""

    must_be: str  # what is told of a wrong value
    fits: Callable[[Any, Parameter], bool]  # whether a value is one
    in_url: Callable[[str], Any] = str  # reads one in a URL
    several: bool = False  # whether several may be given: in JSON as an array, in a URL by repeating the word
    commas: bool = False  # whether several may also stand between commas in a URL


def _is_text(value: Any, _one: Parameter) -> bool:
    return isinstance(value, str) and bool(value)


def _is_number(value: Any, one: Parameter) -> bool:
    least, most = _range_of(one)
    return type(value) is int and least <= value <= most


def _is_key(value: Any, _one: Parameter) -> bool:
    parts = value if isinstance(value, list) and value else [value]
    return all(isinstance(part, str | int | float) for part in parts)


def _whole(text: str) -> int | str:
    return int(text) if _INTEGER.fullmatch(text) else text


_TEXT, _NUMBER = "a text that is not empty", "a whole number of at most 64 bits"
_OF_LIMIT = _Form("a whole number from {least} to {most}", _is_number, _whole)
_FORMS: Mapping[Kind, _Form] = {
    "text": _Form(_TEXT, _is_text),
    "any text": _Form("a text", lambda value, _one: isinstance(value, str)),
    "name": _Form(_TEXT, _is_text),
    "moment": _Form(_TEXT, _is_text),
    "texts": _Form(f"{_TEXT}, or several", _is_text, several=True),
    "states": _Form(f"{_TEXT}, or several", _is_text, several=True, commas=True),
    "choices": _Form(f"{_TEXT}, or several", _is_text, several=True, commas=True),
    "choice": _Form("{choices}", lambda value, one: value in one.choices),
    "key": _Form("a text or a number, or an array of these", _is_key),
    "flag": _Form("true or false", lambda value, _one: isinstance(value, bool), lambda text: _TRUTHS.get(text, text)),
    "number": _Form(_NUMBER, _is_number, _whole),
    "numbers": _Form(f"{_NUMBER}, or several", _is_number, _whole, several=True),
    "page": _OF_LIMIT,
    "part": _OF_LIMIT,
}


def _range_of(one: Parameter) -> tuple[int, int]:
    if one.kind in _LIMITS:
        return 1, _LIMITS[one.kind][1]
    return _INTEGERS[0] if one.least is None else one.least, _INTEGERS[-1] if one.most is None else one.most


def _value_of(word: Any, one: Parameter, *, in_url: bool) -> Any:
    form = _FORMS[one.kind]
    if word is None:
        return _LIMITS[one.kind][0] if one.kind in _LIMITS else None
    if in_url and not form.several and len(word) != 1:
        raise _refusal(f"{one.name} is said twice.")
    values = word if isinstance(word, list) and (in_url or form.several) else [word]
    if in_url:
        values = [form.in_url(text) for text in values]
    if not values or not all(form.fits(value, one) for value in values):
        least, most = _range_of(one)
        raise _refusal(
            f"{one.name} must be {form.must_be}.".format(least=least, most=most, choices=" or ".join(one.choices))
        )
    if one.kind == "name":
        check_text(values[0], one.name)
    if not form.several:
        return values[0]
    return (
        tuple(part.strip() for text in values for part in text.split(",")) if in_url and form.commas else tuple(values)
    )


def _refusal(message: str) -> Refused:
    return Refused(400, "BadRequest", message)
