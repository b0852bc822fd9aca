"""Filters as text: that they mean what the same words mean in a function, and how everything else is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rules.test_filters import DEFINITION, NEW_YEAR, Colour, trace

from penstock import ValueInvalid, contains, has, in_, length, matches
from penstock.reactive.filtertext import MAX_LENGTH, TextFilter
from penstock.reactive.signature import signature

YEAR = "datetime.fromisoformat('2026-01-01T00:00:00Z')"


def said(text: str) -> str:
    return signature(trace(TextFilter(DEFINITION, text)))


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("status == 'paid' and amount > 100", lambda o: (o.status == "paid") & (o.amount > 100)),
        ("  status != 'paid' or not active\n", lambda o: (o.status != "paid") | ~o.active),
        ("1 < amount <= 5", lambda o: (o.amount > 1) & (o.amount <= 5)),
        ("1 < amount < quantity < 9", lambda o: (o.amount > 1) & (o.amount < o.quantity) & (o.quantity < 9)),
        ("amount is None", lambda o: o.amount.is_none()),
        ("name in ('a', 'b')", lambda o: in_(o.name, ["a", "b"])),
        ("amount not in [1, None]", lambda o: ~in_(o.amount, [1, None])),
        ("amount in {2, 1}", lambda o: o.amount.in_({1, 2})),
        (r"name == '\'; drop table orders; --'", lambda o: o.name == "'; drop table orders; --"),
        ("contains(name, 'x') and name.startswith('x')", lambda o: contains(o.name, "x") & o.name.startswith("x")),
        (r"matches(name, '^\d+$')", lambda o: matches(o.name, r"^\d+$")),
        ("length(name) == 2 and raw.length() > 1", lambda o: (length(o.name) == 2) & (o.raw.length() > 1)),
        ("raw == b'\\0'", lambda o: o.raw == b"\0"),
        ("has(tags, 'a') or tags.has('b')", lambda o: has(o.tags, "a") | o.tags.has("b")),
        ("address['lines'][0] == 'x'", lambda o: o.address.lines[0] == "x"),
        ("tags[-1] == 'b' and tags[+0] == 'a'", lambda o: (o.tags[-1] == "b") & (o.tags[0] == "a")),
        ("quantity * 2 - 1 == 60 * 60", lambda o: o.quantity * 2 - 1 == 3600),
        ("price * quantity > Decimal('9.5')", lambda o: o.price * o.quantity > Decimal("9.5")),
        (f"at + timedelta(hours=1) > {YEAR}", lambda o: o.at + timedelta(hours=1) > NEW_YEAR),
        (f"until < {YEAR} - timedelta(1)", lambda o: o.until < datetime(2025, 12, 31, tzinfo=UTC)),
        (f"key == UUID('{UUID(int=1)}')", lambda o: o.key == UUID(int=1)),
        ("colour == 'blue'", lambda o: o.colour == Colour.BLUE),
        (" and ".join(["active"] * 180), lambda o: _all([o.active] * 180)),
    ],
)
def test_a_text_says_what_a_function_says(text: str, function: Callable[[Any], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert said(text) == signature(trace(function))


def _all(parts: list[Any]) -> Any:
    joined = parts[0]
    for part in parts[1:]:
        joined &= part
    return joined


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "0 characters"),
        ("x" * (MAX_LENGTH + 1), "2,001 characters"),
        ("active\0", "zero byte"),
        (r"name == '\0'", "NUL"),
        (r"name == '\ud800'", "surrogate"),
        ("name == '\ud800'", "cannot be read"),
        ("active = True", "cannot be read"),
        ("(" * 900 + "active" + ")" * 900, "cannot be read"),
        ("data == " + "[" * 60 + "]" * 60, "deeper than 50"),
        ("__class__", "'__class__' is no field"),
        ("__import__('os')", "cannot be called here"),
        ("data.__class__.__mro__", "is no field"),
        ("data._node", "'data._node' is no field"),
        ("data.length == 1", "'data.length' is no field"),
        ("len(name) > 1", "cannot be called here"),
        ("'%s' % name == name", "databases do not share"),
        ("timedelta.max > took", "no column 'timedelta'"),
        ("lambda o: active", "cannot be written here"),
        ("[x for x in tags]", "cannot be written here"),
        ("data == [*tags]", "cannot be written here"),
        ("data == {'a': name}", "'name' stands where a constant belongs"),
        ("name in [name]", "'name' stands where a constant belongs"),
        ("in_(*tags)", "cannot be written here"),
        ("in_(name, options=['a'])", "arguments with names"),
        ("in_(1, [1])", "'1' stands where a field belongs"),
        ("matches(name, '(?=a)')", "matches()"),
        ("'a' in tags", "is not a field in some values"),
        ("amount is 5", "asks for more"),
        ("status == 'paid' & active", "\"'paid'\" stands where a condition"),
        ("True", "returned True"),
        ("amount / 2 > 1", "databases do not share"),
        ("True + amount > 1", "no number or time"),
        ("took > timedelta(days=999999999999)", "cannot be"),
        ("price > Decimal('1e9999999')", "1,000 digits"),
        ("1" + "0" * 900 + " * 1" + "0" * 900 + " < quantity", "quantity is compared"),
        ("at < datetime.fromisoformat('2026-01-01')", "at is compared"),
        ("tags[amount] == 1", "no key or place"),
        ("statsu == 'paid'", "There is status"),
        ("|".join(["active"] * 250), "200 parts"),
    ],
)
def test_everything_else_is_refused_and_the_part_is_named(text: str, part: str) -> None:
    with pytest.raises(ValueInvalid) as refused:
        TextFilter(DEFINITION, text)
    assert part in str(refused.value)
    assert str(refused.value).startswith(("rows", "The filter"))


_WORDS = (
    "status amount data tags active 'paid' 1 None and or not in is == < ( ) [ ] . , + - * & | ~ has length in_ "
    "timedelta { } : lambda if else for ** __class__ = := f' \\ \0 é"
)


@given(st.lists(st.sampled_from(_WORDS.split()), max_size=25).map(" ".join) | st.text(max_size=60))
def test_whatever_is_written_it_is_a_condition_or_refused(text: str) -> None:
    try:
        made = TextFilter(DEFINITION, text)
    except ValueInvalid:
        return
    trace(made)
