"""Filters: what can be written, what it says of rows, and how everything else is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import reduce
from itertools import count
from operator import or_
from typing import Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel

from penstock import DeclarationError, Id, Table, UsageError, contains, has, in_, is_none, known, length, matches
from penstock.reactive.describe import explain
from penstock.reactive.evaluate import holds, read_each, row_values, same
from penstock.reactive.expression import Condition, fields
from penstock.reactive.signature import read_signature, signature
from penstock.reactive.tracing import trace_filter, trace_watch
from penstock.schema.table import definition_of


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    city: str
    zip_code: str = Field(default="", alias="zip")
    lines: list[str] = []


class Tags(RootModel[list[str]]):
    pass


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")


class Order(Table):
    status: Literal["new", "paid"] = "new"
    name: str = ""
    amount: int | None = None
    quantity: int = 1
    ratio: float = 0.0
    price: Decimal = Decimal(0)
    active: bool = True
    at: datetime | None = None
    until: datetime | None = None
    day: date | None = None
    took: timedelta | None = None
    key: UUID | None = None
    raw: bytes = b""
    colour: Colour = Colour.RED
    parent: Id[Order] | None = None
    address: Address | None = None
    tags: Tags = Tags([])
    loose: Loose = Loose()
    data: Any = None


DEFINITION = definition_of(Order)
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def trace(function: Callable[[Any], Any]) -> Condition:
    return trace_filter(DEFINITION, function, "Reactive task sync: filter")


def says(function: Callable[[Any], Any], **values: Any) -> bool:
    row = Order(**values)
    condition = trace(function)
    assert read_signature(signature(condition)) == condition
    return holds(condition, row_values(DEFINITION, row, fields(condition)))


# ----- what can be written


@pytest.mark.parametrize(
    ("function", "matching", "other"),
    [
        (lambda o: (o.status == "paid") & (o.amount > 100), {"status": "paid", "amount": 101}, {"status": "paid"}),
        (lambda o: ((o.amount == 1) | (o.amount == 2)) & ~(o.name == "x"), {"amount": 2}, {"amount": 2, "name": "x"}),
        (lambda o: o.amount.in_((1, None)), {}, {"amount": 2}),
        (lambda o: ~o.amount.in_([1, 2]), {"amount": 3}, {"amount": 1}),
        (lambda o: o.amount == None, {}, {"amount": 0}),  # noqa: E711
        (lambda o: o.amount > o.quantity, {"amount": 2}, {"amount": 1}),
        (lambda o: o.active, {}, {"active": False}),
        (lambda o: o.name.startswith("a%"), {"name": "a%b"}, {"name": "axb"}),
        (lambda o: o.name.matches("^[a-c]+$"), {"name": "abc"}, {"name": "abcd"}),
        (lambda o: o.name.length() == 2, {"name": "é😀"}, {"name": "a"}),
        (lambda o: o.raw.length() > 1, {"raw": b"\xc3\xa9"}, {"raw": b"a"}),
        (lambda o: o.price == 1, {"price": Decimal("1.00")}, {"price": Decimal("1.01")}),
        (lambda o: o.price * o.quantity > Decimal("9.5"), {"price": Decimal(5), "quantity": 2}, {"price": Decimal(5)}),
        (lambda o: o.ratio > o.quantity, {"ratio": 1.5}, {}),
        (lambda o: o.until - o.at >= timedelta(days=1), {"at": NEW_YEAR, "until": NEW_YEAR + timedelta(days=1)}, {}),
        (
            lambda o: o.at < datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=2))),
            {"at": datetime(2025, 12, 31, tzinfo=UTC)},
            {"at": NEW_YEAR},
        ),
        (lambda o: o.colour == Colour.BLUE, {"colour": Colour.BLUE}, {}),
        (
            lambda o: o.address.zip_code == "60200",
            {"address": Address(city="", zip="60200")},
            {"address": Address(city="")},
        ),
        (lambda o: o.tags[-1] == "b", {"tags": Tags(["a", "b"])}, {"tags": Tags(["b", "a"])}),
        (lambda o: o.tags.has("a"), {"tags": Tags(["b", "a"])}, {"tags": Tags(["ab"])}),
        (lambda o: o.loose.anything == 1, {"loose": Loose(anything=1)}, {}),  # type: ignore[call-arg]
        (lambda o: o.data.a.b[0] == 2.5, {"data": {"a": {"b": [2.5]}}}, {"data": {"a": {"b": {"0": 2.5}}}}),
        (lambda o: o.data == {"a": [1, None]}, {"data": {"a": [1.0, None]}}, {"data": {"a": [1]}}),
        (lambda o: o.data.a == 1, {"data": {"a": 1}}, {"data": {"a": True}}),
        (lambda o: o.data.a.is_none(), {"data": {"a": None}}, {"data": {"a": 0}}),
        (lambda o: in_(o.name, ("a", "b")) & contains(o.name, "b"), {"name": "b"}, {"name": "a"}),
        (lambda o: (known(o.amount) > 1) & (length(o.name) == 0), {"amount": 2}, {"amount": 2, "name": "a"}),
        (lambda o: matches(o.name, "a") | has(o.tags, "a"), {"name": "a"}, {}),
    ],
)
def test_what_can_be_written(function: Callable[[Any], Any], matching: dict[str, Any], other: dict[str, Any]) -> None:
    assert says(function, **matching)
    assert not says(function, **other)


# ----- true or false, and never a third thing


@pytest.mark.parametrize(
    "function",
    [
        lambda o: o.amount > 1,
        lambda o: o.amount.in_([1]),
        lambda o: o.amount > o.quantity,
        lambda o: o.amount + 1 > 0,
        lambda o: o.at > NEW_YEAR,
        lambda o: o.address.city == "x",
        lambda o: o.address.city.matches(""),
        lambda o: o.data.a.b.length() >= 0,
        lambda o: o.data.has(None),
        lambda o: o.data[0],
    ],
)
def test_what_is_not_there_makes_a_comparison_false_and_its_opposite_true(function: Callable[[Any], Any]) -> None:
    assert not says(function)
    assert says(lambda o: ~function(o))


# ----- what is refused


def later() -> Callable[[Any], Any]:
    numbers = count()
    return lambda o: o.amount == next(numbers)


async def asynchronous(o: Any) -> Any:
    return o.active


CHOICES = ["new"]
_listed = ["x"]


@pytest.mark.parametrize(
    ("function", "part", "instead"),
    [
        (lambda o: o.status == "paid" and o.active, "and, or, not, if, in", "Write & for and"),
        (lambda o: 1 < o.amount < 5, "amount > 1", "a < b < c"),
        (lambda o: o.status in ("new", "paid"), "status == 'new'", ".in_("),
        (lambda o: "a" in o.tags, "in needs the value of tags", ".has("),
        (lambda o: "a" in o.name, "in needs the value of name", ".contains("),
        (lambda o: [x for x in o.tags] == [], "a loop", ".has("),  # noqa: C416
        (lambda o: o.status == "paid" & o.active, "active is joined with 'paid'", "parentheses"),
        (lambda o: (o.status == "paid") & o.amount, "amount stands where a condition belongs", "parentheses"),
        (lambda o: o.amount, "amount stands where a condition belongs", "Compare it"),
        (lambda o: (o.amount > 1) == True, "amount > 1 is true or false already", "as it is"),  # noqa: E712
        (lambda o: o.statsu == "paid", "no column 'statsu'", "There is status"),
        (lambda o: o.status == "payd", "'payd' is not a value of it", "Compare with 'new', 'paid'"),
        (lambda o: o.parent == "customer_1", "'customer_1' is not a value of it", "an id"),
        (lambda o: o.amount == True, "True is not a value of it", "an int"),  # noqa: E712
        (lambda o: o.at > datetime(2026, 1, 1), "has no time zone", "tzinfo"),  # noqa: DTZ001
        (lambda o: o.name == "a\0", "NUL", ""),
        (lambda o: o.data == NEW_YEAR, "JSON holds no datetime", "such as a text"),
        (lambda o: o.data > [1], "no order", "=="),
        (lambda o: o.name == o.amount, "kind text with kind integer", ""),
        (lambda o: o.name.lower() == "a", "name has no lower", "startswith"),
        (lambda o: o.amount == 2**63, "64 bits", ""),
        (lambda o: o.data[1:] == [], "no step into JSON", "[0]"),
        (lambda o: o.data["a\nb"] == 1, "cannot be looked up", "printable"),
        (lambda o: o.address.town == "x", "Address has no field 'town'", "city, zip_code, lines"),
        (lambda o: o.amount.startswith("a"), "amount is no text", "Compare it"),
        (lambda o: o.data.has([1]), "takes a str, a number", ""),
        (lambda o: o.amount.length() > 1, "amount has no length", ""),
        (lambda o: o.status.in_("new"), "takes a list or tuple", ""),
        (lambda o: o.amount / 2 > 1, "amount is computed with", "+, - and *"),
        (lambda o: o.name + o.name == "ba", "no + of kind text and kind text", "field of its own"),
        (lambda o: o.ratio * 1e200 > 1, "cannot compute with 1e+200", ""),
        (lambda o: o.quantity + 1 + 2 + 3 + 4 + 5 + 6 > 1, "more than 6 operands", "field of its own"),
        (lambda o: f"{o.name}" == "a", "an f-string", "the field itself"),
        (lambda o: o == 1, "the row as a whole", "Name its fields"),
        (lambda o: o, "instead of a condition", "comparison"),
        (lambda _: True, "it returned True", "comparison"),
        (lambda o: o.active & undefined, "it raised NameError", "stand-in"),  # type: ignore[name-defined]  # noqa: F821
        (lambda o: o.name.in_(CHOICES), "it uses CHOICES, a list", "a tuple"),
        (lambda o, some=_listed: o.name.in_(some), "it uses some, a list", "a tuple"),
        (lambda o: o.name.in_([x for x in ("a",) if x not in CHOICES]), "it uses CHOICES, a list", "a tuple"),
        (later(), "called twice it said amount == 0 and amount == 1", "time or on chance"),
        (asynchronous, "an async function", "plain function"),
        ("status", "'status' is no function", "lambda"),
        (
            lambda o: reduce(or_, [o.amount == number for number in range(201)]),
            "more than 200 parts",
            "field of its own",
        ),
    ],
)
def test_what_cannot_be_translated_is_refused(function: Any, part: str, instead: str) -> None:
    with pytest.raises(DeclarationError) as raised:
        trace(function)
    assert raised.value.what.startswith("Reactive task sync: filter on Order: ")
    assert part in raised.value.what
    assert instead in str(raised.value)


tags = ["x"]


def test_what_a_filter_takes_from_outside_cannot_change() -> None:
    local, nested = ["a"], ["b"]
    refused: list[Callable[[Any], Any]] = [
        lambda o: o.name.in_(local),
        lambda o: o.name.in_([one for one in nested]),  # noqa: C416
        lambda o: (lambda: o.name.in_(local))(),  # noqa: PLC3002
    ]
    for function in refused:
        with pytest.raises(DeclarationError, match="which may change later"):
            trace(function)
    fixed = tuple(local)
    assert str(trace(lambda o: o.name.in_(fixed))) == "name.in_(['a'])"


def test_nothing_is_set_on_a_row() -> None:
    def setting(order: Any) -> Any:
        order.status = "paid"
        return order.active

    with pytest.raises(DeclarationError, match="it sets status; a filter or watch changes nothing"):
        trace(setting)


def test_words_of_filters_are_for_filters() -> None:
    for use in (
        lambda: in_(1, [1]),
        lambda: is_none(None),
        lambda: known(1),
        lambda: length("a"),
        lambda: matches("", "a"),
    ):
        with pytest.raises(UsageError, match="takes a field of the row"):
            use()  # type: ignore[no-untyped-call]


# ----- watches


def changed(watch: Any, before: Order, after: Order) -> bool:
    found = trace_watch(DEFINITION, watch, "Reactive task sync: watch")
    old, new = (
        read_each(found.expressions, row_values(DEFINITION, row, DEFINITION.positions)) for row in (before, after)
    )
    return not same(old, new)


@pytest.mark.parametrize(
    ("watch", "before", "after", "changes"),
    [
        (("status",), {}, {"status": "paid"}, True),
        (("address.city",), {"address": Address(city="a")}, {"address": Address(city="a", lines=["x"])}, False),
        (("address.zip_code",), {"address": Address(city="a")}, {"address": Address(city="a", zip="1")}, True),
        (("data",), {"data": {"a": 1, "b": 2}}, {"data": {"b": 2, "a": 1.0}}, False),
        (("data",), {"data": {"a": 1}}, {"data": {"a": True}}, True),
        (("data.a",), {"data": {}}, {"data": {"a": None}}, False),
        ((lambda o: o.amount * o.quantity,), {"amount": 2, "quantity": 3}, {"amount": 2, "quantity": 4}, True),
        ((lambda o: o.quantity > 10,), {"quantity": 10}, {"quantity": 11}, True),
        (("price",), {"price": Decimal("1.0")}, {"price": Decimal("1.00")}, False),
        (None, {}, {"raw": b"x"}, True),
    ],
)
def test_what_a_watch_takes_for_a_change(watch: Any, before: Any, after: Any, changes: bool) -> None:
    assert changed(watch, Order(**before), Order(**after)) is changes


@pytest.mark.parametrize(
    ("watch", "part"),
    [
        ("status", "'status' is no tuple"),
        ((), "it is empty"),
        (("status.city",), "status is no JSON"),
        (("address.town",), "Address has no field 'town'"),
        (("status", "status"), "status is named twice"),
        (("-status",), "no column '-status'"),
        (({"status": 0},), "neither a field's name nor a function"),
        ((lambda _: 5,), "it returned 5"),
    ],
)
def test_what_cannot_be_watched_is_refused(watch: Any, part: str) -> None:
    with pytest.raises(DeclarationError) as raised:
        trace_watch(DEFINITION, watch, "Reactive task sync: watch")
    assert raised.value.what.startswith("Reactive task sync: watch on Order: ")
    assert part in raised.value.what


# ----- signatures


def test_equal_filters_have_equal_signatures_and_others_do_not() -> None:
    functions: list[Callable[[Any], Any]] = [
        lambda o: o.amount == 1,
        lambda o: o.amount == 2,
        lambda o: o.quantity == 1,
        lambda o: o.amount != 1,
        lambda o: o.amount >= 1,
        lambda o: o.amount.in_([1]),
        lambda o: o.amount.is_none(),
        lambda o: o.ratio == 1,
        lambda o: o.name == "1",
        lambda o: o.data.a == 1,
        lambda o: o.data.a == "1",
        lambda o: o.data["a"]["b"] == 1,
        lambda o: o.data[0] == 1,
        lambda o: o.data["0"] == 1,
        lambda o: (o.amount == 1) & (o.quantity == 1),
        lambda o: (o.amount == 1) | (o.quantity == 1),
    ]
    texts = [signature(trace(function)) for function in functions]
    assert len(set(texts)) == len(texts)
    assert texts == [signature(trace(function)) for function in functions]
    assert signature(trace(lambda order: order.amount == 1)) == texts[0]
    some = frozenset("edcba")
    assert signature(trace(lambda o: o.name.in_(some))) == signature(trace(lambda o: o.name.in_(tuple("abcde"))))
    assert signature(trace(lambda o: o.price == Decimal("1.0"))) == signature(trace(lambda o: o.price == 1))


def test_a_signature_is_a_text_that_stays() -> None:
    """It is compared with that of the version before, so a change of its form is a change of all filters."""
    text = signature(trace(lambda o: (o.status == "paid") & ~(o.at > NEW_YEAR)))
    assert text == (
        '["every",[["compare","==",["field","status","text"],["constant","text","paid"]],'
        '["not",["compare",">",["field","at","datetime"],["constant","datetime","2026-01-01T00:00:00+00:00"]]]]]'
    )


# ----- as people read them


def test_a_filter_reads_as_it_was_written() -> None:
    written = (
        "(status == 'paid') & (~(amount > 5)) & (address.city == \"Brno\") & (tags.has(\"a\")) & (name.matches('^a'))"
    )
    found = str(
        trace(
            lambda o: (
                (o.status == "paid")
                & ~(o.amount > 5)
                & (o.address.city == "Brno")
                & o.tags.has("a")
                & o.name.matches("^a")
            )
        )
    )
    assert found == written


def test_a_row_is_explained_by_the_parts_that_decide() -> None:
    condition = trace(lambda o: (o.status == "paid") & ((o.amount > 100) | o.name.startswith("VIP")) & ~o.active)
    row = Order(status="paid", amount=7, name="Bob")
    found = tuple(explain(condition, row_values(DEFINITION, row, DEFINITION.positions)))
    assert list(map(str, found)) == [
        "amount > 100 is false: amount is 7",
        "name.startswith('VIP') is false: name is 'Bob'",
        "~(active) is false: active is True",
    ]
    right = Order(status="paid", amount=700, active=False)
    found = tuple(explain(condition, row_values(DEFINITION, right, DEFINITION.positions)))
    assert [one.part for one in found] == ["status == 'paid'", "amount > 100", "~(active)"]
    assert all(one.holds for one in found)


def test_two_that_are_not_there_are_equal() -> None:
    assert says(lambda o: o.at == o.until)
    assert says(lambda o: o.data.a == o.address.city)
    assert not says(lambda o: o.at != o.until)
    assert not says(lambda o: o.at <= o.until)
