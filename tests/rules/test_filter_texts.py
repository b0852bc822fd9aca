"""Filters as text: that they mean what the same words mean in a function, and how everything else is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
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
        ("5 >= amount", lambda o: o.amount <= 5),
        ("amount is None", lambda o: o.amount.is_none()),
        ("amount is not None", lambda o: o.amount != None),  # noqa: E711
        ("name in ('a', 'b')", lambda o: in_(o.name, ["a", "b"])),
        ("amount not in [1, None]", lambda o: ~in_(o.amount, [1, None])),
        ("amount in {2, 1}", lambda o: o.amount.in_({1, 2})),
        (r"name == '\'; drop table orders; --'", lambda o: o.name == "'; drop table orders; --"),
        ("active == False", lambda o: o.active == False),  # noqa: E712
        ("contains(name, 'x') and name.startswith('x')", lambda o: contains(o.name, "x") & o.name.startswith("x")),
        (r"matches(name, '^\d+$')", lambda o: matches(o.name, r"^\d+$")),
        ("length(name) == 2 and raw.length() > 1", lambda o: (length(o.name) == 2) & (o.raw.length() > 1)),
        ("raw == b'\\0'", lambda o: o.raw == b"\0"),
        ("has(tags, 'a') or tags.has('b')", lambda o: has(o.tags, "a") | o.tags.has("b")),
        ("address['lines'][0] == 'x'", lambda o: o.address.lines[0] == "x"),
        ("tags[-1] == 'b' and tags[+0] == 'a'", lambda o: (o.tags[-1] == "b") & (o.tags[0] == "a")),
        ("data.a['length'].b == {'a': [1, None]}", lambda o: o.data.a["length"].b == {"a": [1, None]}),
        ("quantity * 2 - 1 == 60 * 60", lambda o: o.quantity * 2 - 1 == 3600),
        ("price * quantity > Decimal('9.5')", lambda o: o.price * o.quantity > Decimal("9.5")),
        (f"at + timedelta(hours=1) > {YEAR}", lambda o: o.at + timedelta(hours=1) > NEW_YEAR),
        (f"until < {YEAR} - timedelta(1)", lambda o: o.until < datetime(2025, 12, 31, tzinfo=UTC)),
        ("day >= date.fromisoformat('2026-01-01')", lambda o: o.day >= date(2026, 1, 1)),
        (f"key == UUID('{UUID(int=1)}')", lambda o: o.key == UUID(int=1)),
        ("colour == 'blue'", lambda o: o.colour == Colour.BLUE),
        ("colour in ('red', 'blue')", lambda o: o.colour.in_([Colour.RED, Colour.BLUE])),
        (" & ".join(["active"] * 180), lambda o: _all([o.active] * 180)),
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
        ("name == 'it", "at character 9"),
        ("amount >", "at its end"),
        ("(" * 900 + "active" + ")" * 900, "cannot be read"),
        ("~" * 1900 + "active", "deeper than 50"),
        ("+".join(["amount"] * 250) + " > 1", "deeper than 50"),
        ("data == " + "[" * 60 + "]" * 60, "deeper than 50"),
        ("__class__", "'__class__' is no field"),
        ("__import__('os')", "cannot be called here"),
        ("data.__class__.__mro__", "is no field"),
        ("(amount > 1).__class__", "stands where a field belongs"),
        ("data._node", "'data._node' is no field"),
        ("_at", "no column '_at'"),
        ("data.length == 1", "'data.length' is no field"),
        ("len(name) > 1", "cannot be called here"),
        ("name.format(name)", "cannot be called here"),
        ("'%s' % name == name", "databases do not share"),
        ("timedelta.max > took", "no column 'timedelta'"),
        ("lambda o: active", "cannot be written here"),
        ("[x for x in tags]", "cannot be written here"),
        ("f'{name}' == name", "cannot be written here"),
        ("active if active else active", "cannot be written here"),
        ("data == [*tags]", "cannot be written here"),
        ("data == {**tags}", "no texts"),
        ("data == {1: 2}", "no texts"),
        ("data == {'a': name}", "'name' stands where a constant belongs"),
        ("name in [name]", "'name' stands where a constant belongs"),
        ("in_(*tags)", "cannot be written here"),
        ("in_(name, options=['a'])", "arguments with names"),
        ("in_(name)", "has 0 arguments"),
        ("is_none(name, 1)", "has 1 arguments"),
        ("in_(1, [1])", "'1' stands where a field belongs"),
        ("matches(name, '(?=a)')", "matches()"),
        ("'a' in tags", "is not a field in some values"),
        ("1 in [1]", "compares no field"),
        ("amount is 5", "asks for more"),
        ("amount < None", "never true"),
        ("status == 'paid' & active", "\"'paid'\" stands where a condition"),
        ("True and active", "'True' stands where a condition"),
        ("amount and active", "stands where a condition belongs"),
        ("True", "returned True"),
        ("...", "cannot be written here"),
        ("amount / 2 > 1", "databases do not share"),
        ("amount == 9 ** 9 ** 9", "databases do not share"),
        ("'a' * 1000000000 == name", "no number or time"),
        ("True + amount > 1", "no number or time"),
        ("-amount > 1", "has a sign"),
        ("1e400 * 0 == ratio", ""),
        ("took > timedelta(days=999999999999)", "cannot be"),
        ("price > Decimal('x')", "cannot be"),
        ("price > Decimal('1e9999999')", "1,000 digits"),
        ("price in {Decimal('1e999999999999'), 1}", ""),
        ("1" + "0" * 900 + " * 1" + "0" * 900 + " < quantity", "quantity is compared"),
        ("key == UUID('1')", "cannot be"),
        ("at < datetime.fromisoformat('2026-01-01')", "at is compared"),
        ("data in {[1]}", "cannot be"),
        ("tags[amount] == 1", "no key or place"),
        ("tags[0:1] == 1", "cannot be written here"),
        ("statsu == 'paid'", "There is status"),
        ("address.town == 'x'", "town"),
        ("status == 'payd'", "Compare with 'new', 'paid'"),
        ("amount > name", "kind"),
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
