"""The words of the admin interface: of each kind of parameter the wrong values, tried on all that take one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from penstock.operations.every import OPERATIONS
from penstock.operations.operation import Kind, Operation
from penstock.server.adminwords import values_of
from penstock.server.requests import Refused

_NO_TEXT = ["", 5, True, [], ["x"], {}, {"$ne": ""}]
_NO_TEXTS = ["", [], [""], ["x", ""], {"$ne": ""}, 1, True, [1]]
_NO_LIMIT = [0, -1, 10_001, 1.5, True, "5", [5], 10**40]
IN_JSON: Mapping[Kind, Sequence[Any]] = {
    "text": _NO_TEXT,
    "name": _NO_TEXT,
    "moment": _NO_TEXT,
    "any text": [5, True, [], ["x"], {}],
    "texts": _NO_TEXTS,
    "states": _NO_TEXTS,
    "choices": _NO_TEXTS,
    "choice": ["", "name", "Failed", 5, ["failed"]],
    "key": [{}, [], [[1]], [None], {"$ne": ""}],
    "flag": ["true", "yes", 1, 0, [], {}],
    "number": ["1", 1.0, 1e3, True, [1], {}, 2**63, -(2**63) - 1, int("9" * 4000)],
    "numbers": ["1", 1.0, True, [], {}, [1, None], [[1]], 2**63, [1, -(2**63) - 1], int("9" * 4000)],
    "part": _NO_LIMIT,
}
_NO_NUMBER = ["", "x", "1.5", "1e3", "--1", "٣", str(2**63), "9" * 5000]
IN_URLS: Mapping[Kind, Sequence[str]] = {
    "text": [""],
    "any text": [],
    "name": [""],
    "moment": [""],
    "texts": [""],
    "states": [""],
    "choices": [""],
    "choice": ["", "name", "Failed"],
    "key": [],
    "flag": ["", "1", "True"],
    "number": _NO_NUMBER,
    "page": [*_NO_NUMBER, "0", "-1", "1001", "10000"],
}
_SEVERAL: set[Kind] = {"texts", "states", "choices", "numbers"}


def refused(words: Mapping[str, Any], operation: Operation) -> str:
    """Expect that words are refused; the message."""
    with pytest.raises(Refused) as caught:
        values_of(words, operation)
    assert (caught.value.status, caught.value.code) == (400, "BadRequest"), (operation.path, words)
    return caught.value.message


def test_wrong_values_are_refused_with_the_name_of_their_word() -> None:
    for operation in OPERATIONS:
        for one in operation.takes:
            wrong = IN_JSON[one.kind] if operation.changes else [[text] for text in IN_URLS[one.kind]]
            for value in wrong:
                message = refused({one.name: value}, operation)
                assert message.startswith(f"{one.name} must be "), (operation.path, one.name, value)


def test_a_word_of_an_url_is_said_once_unless_it_takes_several() -> None:
    for operation in (one for one in OPERATIONS if not one.changes):
        for one in operation.takes:
            if one.kind not in _SEVERAL:
                assert refused({one.name: ["1", "2"]}, operation) == f"{one.name} is said twice."


def test_what_is_needed_and_missing_is_refused() -> None:
    for operation in OPERATIONS:
        for one in operation.takes:
            if one.needed:
                others = {it.name: [1] if it.kind == "number" else ["x"] for it in operation.takes if it is not one}
                words = {name: value if not operation.changes else value[0] for name, value in others.items()}
                needed = {it.name for it in operation.takes if it.needed}
                told = refused({name: value for name, value in words.items() if name in needed}, operation)
                assert told == f"{one.name} is missing.", operation.path


def test_limits_have_defaults_and_several_values_stand_between_commas() -> None:
    by_path = {one.path: one for one in OPERATIONS}
    page = values_of({"state": ["failed, canceled", "gone"], "order": ["due"]}, by_path["/tasks/records"])
    assert (page["limit"], page["state"], page["order"]) == (50, ("failed", "canceled", "gone"), "due")
    change = values_of({"state": ["failed,canceled"], "limit": 10_000}, by_path["/tasks/retry"])
    assert (change["limit"], change["state"]) == (10_000, ("failed,canceled",))
    assert values_of({}, by_path["/tasks/retry"])["limit"] == 1000
    assert values_of({"on_complete_error": [""]}, by_path["/jobs"])["on_complete_error"] == ""
