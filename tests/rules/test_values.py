"""JSON at rest: what it can say comes back, and what SQL cannot hold never gets in."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import LimitExceeded, ValueInvalid
from penstock.values import MAX_NESTING, check_json, check_nesting, check_text, decode_json, encode_json, text_bytes

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(SCALARS, lambda items: st.lists(items) | st.dictionaries(TEXTS, items), max_leaves=20)


def nested(levels: int, *, mapping: bool = False) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = {"a": value} if mapping else [value]
    return value


@given(VALUES)
def test_what_json_can_say_comes_back(value: Any) -> None:
    assert decode_json(encode_json(value, "it")) == value


REFUSED: list[Any] = [
    *(float("nan"), float("inf"), [float("-inf")], {"a": [1, {"b": float("nan")}]}),
    *("\0", ["a\0"], {"\0": 1}, {"a": {"b\0": 1}}, "\ud800", {"\udfff": 1}),
    *(object(), [object()], {object(): 1}, lambda: None),
]


@pytest.mark.parametrize("value", REFUSED)
def test_what_json_or_sql_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(ValueInvalid, match=r"^it "):
        encode_json(value, "it")


def test_text_that_only_looks_like_trouble_is_fine() -> None:
    for value in ("NaN", "Infinity", "-Infinity", "\\u0000", "\\\\u0000", "[" * 100, "{" * 100, {"NaN": "\\u0000"}):
        assert decode_json(encode_json(value, "it")) == value


@pytest.mark.parametrize("mapping", [False, True])
def test_nesting_has_a_limit(mapping: bool) -> None:
    assert decode_json(encode_json(nested(MAX_NESTING, mapping=mapping), "it")) == nested(MAX_NESTING, mapping=mapping)
    for levels in (MAX_NESTING + 1, 150, 201, 230, 255, 300, 5000):
        with pytest.raises(LimitExceeded, match=r"^it is nested deeper than 64 levels"):
            encode_json(nested(levels, mapping=mapping), "it")
    wide = [nested(MAX_NESTING - 1, mapping=mapping)] * 100
    assert decode_json(encode_json(wide, "it")) == wide


def test_what_contains_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    loop: dict[str, Any] = {}
    loop["again"] = {"and": [loop]}
    for value in (circle, loop, [1, circle]):
        with pytest.raises(LimitExceeded):
            encode_json(value, "it")
        with pytest.raises(LimitExceeded):
            check_nesting(value, "it")


def test_a_type_may_say_how_its_values_are_written() -> None:
    assert encode_json(5, "it", lambda value: f'"{value} pieces"'.encode()) == '"5 pieces"'
    with pytest.raises(ValueInvalid):
        encode_json(5, "it", lambda _: b'"\\u0000"')


@given(st.text())
def test_sql_text_is_what_utf8_can_say_without_nul(text: str) -> None:
    try:
        storable = "\0" not in text and text.encode().decode() == text
    except UnicodeEncodeError:
        storable = False
    if storable:
        check_text(text, "it")
        assert text_bytes(text) == len(text.encode())
    else:
        with pytest.raises(ValueInvalid):
            check_text(text, "it")


def test_json_from_elsewhere_is_checked_alike() -> None:
    check_json('{"a": [1, 2.5, null, "\\\\u0000"]}', "it")
    for text in ("[NaN]", '{"a": -Infinity}', '"\\u0000"', '{"a\\u0000": 1}'):
        with pytest.raises(ValueInvalid):
            check_json(text, "it")
    with pytest.raises(LimitExceeded):
        check_json("[" * 100 + "]" * 100, "it")
