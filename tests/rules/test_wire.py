"""The wire: what comes in and what leaves, without a server."""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
import math
import struct
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    RootModel,
    SecretStr,
    computed_field,
    field_serializer,
)
from pydantic_core import to_json
from stage.needs import examples
from typing_extensions import TypedDict

from penstock import BigInt, Id, InputError, Page, QueryCtx, ResultInvalid, Table
from penstock.client import encoding as client
from penstock.errors import ArgumentsInvalid, LimitExceeded, ValueInvalid
from penstock.functions.signature import Signature
from penstock.schema.table import make_row
from penstock.wire.incoming import MAX_NESTING, Message
from penstock.wire.outgoing import Format, encode_result, format_of
from penstock.wire.tags import read_tag, tag_bytes, tag_float, tag_integer

INT64 = st.integers(-(2**63), 2**63 - 1)
KEYS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8).filter(lambda key: key[:1] != "$")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS = st.none() | st.booleans() | INT64 | st.floats() | TEXT | st.binary(max_size=12)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=20
)
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


class Level(enum.IntEnum):
    LOW = 1


def arguments_of(text: str | bytes) -> Any:
    """The arguments in a message that is nothing but arguments."""
    message = Message(text)
    return json.loads(message.arguments(message.value))


def sent(value: Any, form: Format = Format.TAGGED) -> Any:
    """A result as a plain JSON parser sees it."""
    return json.loads(encode_result(value, form))


def alike(left: Any, right: Any) -> bool:
    """Equality that tells types, minus zero and NaN apart."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return struct.pack("<d", left) == struct.pack("<d", right) or (math.isnan(left) and math.isnan(right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(alike(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(alike(*pair) for pair in zip(left, right, strict=True))
    return bool(left == right)


# ----- tags


@pytest.mark.parametrize(
    ("tagged", "value"),
    [
        ({"$integer": "AQAAAAAAAAA="}, 1),
        ({"$integer": "//////////8="}, -1),
        ({"$float": "AAAAAAAAAIA="}, -0.0),
        ({"$float": "AAAAAAAA+H8="}, math.nan),
        ({"$bytes": "AP8="}, b"\x00\xff"),
    ],
)
def test_tags_are_spelled_as_documented(tagged: dict[str, str], value: Any) -> None:
    ((name, content),) = tagged.items()
    write: Any = {"$integer": tag_integer, "$float": tag_float, "$bytes": tag_bytes}[name]
    assert write(value) == tagged
    assert alike(read_tag(name, content), value)


@pytest.mark.parametrize(
    "malformed",
    [
        {"$integer": 1},
        {"$integer": "AQ=="},
        {"$float": "AAAAAAAA8D8="},  # 1.0, which is sent as a number
        {"$float": 1.5},
        {"$bytes": "A"},
        {"$set": []},
        {"$integer": "AQAAAAAAAAA=", "x": 1},
        {"x": 1, "$y": 2},
    ],
)
def test_malformed_tags_are_refused(malformed: Any) -> None:
    for args in ({"a": malformed}, {"a": [1, {"b": malformed}]}, malformed):
        with pytest.raises(ValueInvalid, match=r"\$"):
            arguments_of(json.dumps(args))


# ----- what comes in


def test_arguments_may_be_missing_or_stand_in_an_array() -> None:
    message = Message('{"path": "a:b", "args": {"a": [1, 2.5, "x", null, true, {"b": -0.0}]}}')
    assert message.arguments(message.value["args"]) == b'{"a":[1,2.5,"x",null,true,{"b":-0.0}]}'
    message = Message("{}")
    assert message.arguments(None) == b"{}"
    assert message.arguments([{"a": 1}]) == b'{"a":1}'
    wrong: Any
    for wrong in ([], [{}, {}], [1], "a", 1, True, [[{}]]):
        with pytest.raises(ArgumentsInvalid):
            message.arguments(wrong)


def test_tags_are_resolved_wherever_they_stand_and_nothing_else_is_one() -> None:
    found = arguments_of(
        json.dumps({"n": tag_integer(2**62), "deep": [{"f": tag_float(math.inf)}], "b": tag_bytes(b"\xfb\xff")})
    )
    assert found == {"n": 2**62, "deep": [{"f": math.inf}], "b": base64.b64encode(b"\xfb\xff").decode()}
    assert arguments_of(r'{"a": {"\u0024integer": "AQAAAAAAAAA="}}') == {"a": 1}
    with pytest.raises(ValueInvalid):
        arguments_of(r'{"a": {"\u0024set": []}}')
    assert arguments_of('{"a": "$integer", "b$": ["$5", "\\"$6"]}') == {"a": "$integer", "b$": ["$5", '"$6']}
    with pytest.raises(ValueInvalid, match="64 bits"):
        tag_integer(2**63)


def test_nesting_and_numbers_are_limited() -> None:
    def nested(levels: int) -> str:
        return '{"a":' * levels + "1" + "}" * levels

    assert arguments_of(nested(MAX_NESTING))
    with pytest.raises(LimitExceeded):
        arguments_of(nested(MAX_NESTING + 1))
    assert arguments_of(json.dumps({"a": [[index] for index in range(1000)]}))
    for number in ("1e999", "-1e999", "1" * 400 + ".0"):
        with pytest.raises(ValueInvalid, match="too large"):
            arguments_of(f'{{"a": [{number}]}}')


def test_floats_that_look_whole_leave_as_clients_know_them() -> None:
    value = {"a": [1, True, 2**53, -(2**60), Level.LOW, None], "b": {"c": (0, 0.5)}}
    wanted = b'{"a":[1.0,true,9007199254740992.0,{"$integer":"AAAAAAAAAPA="},1.0,null],"b":{"c":[0.0,0.5]}}'
    assert encode_result(value, Format.ENCODED_FLOATS) == wanted
    assert encode_result(7, Format.ENCODED_FLOATS) == b"7.0"
    assert sent(-0.0) == tag_float(-0.0)
    assert encode_result(-0.0, Format.CLEAN) == b"-0.0"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"a":NaN}',
        '{"a":"\\ud800"}',
        '{"a":"\n"}',
        b'{"a":"\xff"}',
        '{"a":' + "1" * 5000 + "}",
        "[" * 10_000,
        "\ud800",
    ],
)
def test_what_is_no_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(InputError, match="not valid JSON"):
        Message(text)


@given(st.binary(max_size=60) | st.text(max_size=60))
@settings(max_examples=examples(300))
def test_whatever_comes_in_is_taken_or_refused(text: bytes | str) -> None:
    try:
        message = Message(text)
        message.arguments(message.value)
    except InputError:
        pass


def test_formats_have_their_names() -> None:
    assert {format_of(name, "rust-1") for name in (None, "json", "convex_clean_json")} == {Format.JSON}
    encoded = {
        "": Format.ENCODED,
        "npm-1.2": Format.ENCODED,
        "python-1": Format.ENCODED_FLOATS,
        "rust-1": Format.TAGGED,
    }
    for client_kind, form in encoded.items():
        assert {format_of(name, client_kind) for name in ("convex_encoded_json", "convex_json")} == {form}
    wrong: Any
    for wrong in ("xml", "", 1, ["json"], {}):
        with pytest.raises(InputError):
            format_of(wrong, "")


# ----- there and back


@given(VALUES)
@settings(max_examples=examples(300))
def test_a_client_gets_what_a_function_returned(value: Any) -> None:
    assert alike(client.decode(encode_result(value, Format.TAGGED)), value)


@given(VALUES)
@settings(max_examples=examples(300))
def test_a_client_and_the_server_write_alike(value: Any) -> None:
    assert json.loads(client.encode(value)) == json.loads(encode_result(value, Format.TAGGED))


@given(VALUES)
@settings(max_examples=examples(200))
def test_clean_json_is_json_that_any_parser_reads(value: Any) -> None:
    found = json.loads(encode_result(value, Format.CLEAN), parse_constant=pytest.fail)
    assert not any(key.startswith("$") for item in _dicts(found) for key in item)


def _dicts(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value, *(found for item in value.values() for found in _dicts(item))]
    return [found for item in value for found in _dicts(item)] if isinstance(value, list) else []


class Colour(enum.Enum):
    RED = "red"


class Point(BaseModel):
    x: float
    names: dict[str, int] = {}


async def takes(
    ctx: QueryCtx,
    when: datetime,
    day: date,
    clock: time,
    span: timedelta,
    amount: Decimal,
    key: UUID,
    raw: bytes,
    real: float,
    number: int,
    text: str,
    colour: Colour,
    point: Point,
    many: list[bytes],
) -> None:
    """All kinds of arguments."""


FIRST, LAST = datetime(1, 1, 3), datetime(9999, 12, 29)  # noqa: DTZ001 - the strategy adds time zones
ARGUMENTS = st.fixed_dictionaries(
    {
        "when": st.datetimes(timezones=ZONES, min_value=FIRST, max_value=LAST),
        "day": st.dates(),
        "clock": st.times(),
        "span": st.timedeltas(timedelta(days=-999_999), timedelta(days=999_999)),
        "amount": st.decimals(allow_nan=False, allow_infinity=False),
        "key": st.uuids(),
        "raw": st.binary(max_size=20),
        "real": st.floats(),
        "number": INT64,
        "text": TEXT,
        "colour": st.just(Colour.RED),
        "point": st.builds(Point, x=st.floats(), names=st.dictionaries(KEYS, INT64, max_size=3)),
        "many": st.lists(st.binary(max_size=4), max_size=3),
    }
)
SIGNATURE = Signature(takes, "test:takes")


def _plain(arguments: dict[str, Any]) -> dict[str, Any]:
    return {**arguments, "point": arguments["point"].model_dump()}


@given(ARGUMENTS)
@settings(max_examples=examples(200))
def test_arguments_of_every_kind_arrive_from_the_client(arguments: dict[str, Any]) -> None:
    message = Message(client.encode([arguments]))
    found = SIGNATURE.check_json(message.arguments(message.value))
    assert found.keys() == arguments.keys()
    assert alike(_plain(found), _plain(arguments))


# ----- what leaves


@pytest.mark.parametrize(
    ("value", "encoded", "clean"),
    [
        (2**53, 2**53, 2**53),
        (2**53 + 1, {"$integer": "AQAAAAAAIAA="}, "9007199254740993"),
        (-(2**63), {"$integer": "AAAAAAAAAIA="}, "-9223372036854775808"),
        (math.nan, {"$float": "AAAAAAAA+H8="}, "NaN"),
        (-math.inf, {"$float": "AAAAAAAA8P8="}, "-Infinity"),
        (b"\xfb\xff", {"$bytes": "+/8="}, "+/8="),
        ({3, 1, 2}, [1, 2, 3], [1, 2, 3]),
        (Colour.RED, "red", "red"),
        (Level.LOW, 1, 1),
        (datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC), "2024-01-02T03:04:05.000006Z", "2024-01-02T03:04:05.000006Z"),
        (Decimal("1.20"), "1.20", "1.20"),
        (SecretStr("hunter2"), "**********", "**********"),
        ({1: "a", UUID(int=0): "b", date(2024, 1, 1): "c", Colour.RED: "d"},)
        + ({"1": "a", str(UUID(int=0)): "b", "2024-01-01": "c", "red": "d"},) * 2,
    ],
)
def test_values_leave_in_two_formats(value: Any, encoded: Any, clean: Any) -> None:
    assert sent(value, Format.TAGGED) == encoded
    assert sent([value], Format.CLEAN) == [clean]


class Opaque:
    pass


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    "value",
    [2**63, -(2**63) - 1, 10**5000, {1: "a", "1": "b"}, "\ud800", Opaque(), Opaque, (x for x in "a"), endless()],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("form", Format)
def test_what_cannot_be_said_is_an_error(value: Any, form: Format) -> None:
    with pytest.raises(ResultInvalid):
        encode_result({"a": [value]}, form)


@pytest.mark.parametrize("key", ["$a", "é", "a\n", "\x7f", "a" * 1025])
def test_keys_that_clients_refuse_are_named(key: str) -> None:
    with pytest.raises(ResultInvalid, match="key"):
        encode_result({"a": {key: 1}}, Format.ENCODED)
    assert sent({"a": {key: 1}}, Format.CLEAN) == {"a": {key: 1}}


# ----- rows and other objects


class Person(Table):
    name: str
    born: datetime | None = None
    tags: list[str] = Field(default_factory=list)


class Legacy(Table, source="legacy", key="code", managed=False):
    code: str
    note: str | None = None


class Numbered(Table, source="numbered", key="id", managed=False):
    id: int | None = None  # type: ignore[assignment]  # it hides Table.id, which is the id as text


class Coded(Table, source="coded", key="code", managed=False):
    code: str
    id: int  # type: ignore[assignment]  # a column of its own, that is no key


class Line(Table, source="lines", key=("day", "place"), managed=False):
    place: int | None = None
    day: date
    raw: bytes = b""


BORN = datetime(2024, 1, 1, microsecond=123_457, tzinfo=UTC)


def person(name: str = "Ada") -> Any:
    """A row as the store gives it."""
    return make_row(Person, {"id": Id("person_1"), "creation_time": BORN, "name": name, "born": None, "tags": ["a"]})


PERSON = {"_id": "person_1", "_creationTime": 1704067200123.457, "name": "Ada", "born": None, "tags": ["a"]}


class Team(BaseModel):
    lead: Person
    members: list[Person] = []
    by_name: dict[str, Person] = {}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def first(self) -> Person:
        return self.lead


class People(RootModel[list[Person]]):
    pass


@dataclasses.dataclass
class Pair:
    left: Person
    right: Person | None = None


@dataclasses.dataclass(slots=True)
class Odd:
    person: Person
    other: Opaque | None = None


def test_rows_of_other_programs_bear_their_key() -> None:
    row = Legacy(code="x1")
    row.__dict__["id"] = Id("x1")
    assert sent(row) == {"_id": "x1", "code": "x1", "note": None}
    assert sent(Numbered(id=7)) == {"_id": "7", "id": 7}
    assert sent(Numbered()) == {"id": None}
    assert sent(Coded(code="x", id=5)) == {"_id": "x", "code": "x", "id": 5}
    line = {"place": 7, "day": "2030-01-02", "raw": ""}
    assert sent(Line(day=date(2030, 1, 2), place=7), Format.CLEAN) == {"_id": ["2030-01-02", 7], **line}
    large = sent(Line(day=date(2030, 1, 2), place=2**60), Format.TAGGED)
    assert large["_id"] == ["2030-01-02", {"$integer": "AAAAAAAAABA="}]
    assert "_id" not in sent(Line(day=date(2030, 1, 2)))
    assert sent(Person(name="new")) == {"name": "new", "born": None, "tags": []}


@pytest.mark.parametrize("form", Format)
def test_rows_bear_them_wherever_they_stand(form: Format) -> None:
    row = person()
    assert sent([row, (row,), {"a": row}], form) == [PERSON, [PERSON], {"a": PERSON}]
    assert sent(People([row]), form) == [PERSON]
    assert sent(Pair(row), form) == {"left": PERSON, "right": None}
    assert sent(Odd(row), form) == {"person": PERSON, "other": None}
    assert sent(Team(lead=row, members=[row], by_name={"Ada": row}), form) == {
        "lead": PERSON,
        "members": [PERSON],
        "by_name": {"Ada": PERSON},
        "first": PERSON,
    }


def test_a_page_leaves_under_the_names_that_clients_know() -> None:
    page = Page[Any](page=[person()], is_done=False, continue_cursor="abc", split_cursor="ab")
    assert sent(page) == {
        "page": [PERSON], "isDone": False, "continueCursor": "abc", "splitCursor": "ab", "pageStatus": None,
    }  # fmt: skip


def test_creation_times_are_exact_to_the_microsecond() -> None:
    row = make_row(Person, {**person().__dict__, "creation_time": datetime(2262, 4, 11, 23, 47, 16, 854_775, UTC)})
    assert sent(row)["_creationTime"] == 9223372036854.775
    row = make_row(Person, {**person().__dict__, "creation_time": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)})
    assert sent(row)["_creationTime"] == -0.001


class Amounts(TypedDict):
    price: Annotated[Decimal, PlainSerializer(float)]


class Account(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str = Field(serialization_alias="fullName")
    password: SecretStr = SecretStr("hunter2")
    internal: str = Field("inside", exclude=True)
    limits: list[Amounts] = []
    until: datetime | None = None
    big: int = 2**60
    raw: bytes = b"\xff"

    @field_serializer("until", when_used="json")
    def year_only(self, until: datetime | None) -> int | None:
        return None if until is None else until.year

    @computed_field(alias="shout")  # type: ignore[prop-decorator]
    @property
    def loud(self) -> str:
        return self.name.upper()


def test_models_leave_as_they_declare() -> None:
    account = Account.model_validate(
        {"name": "ada", "limits": [{"price": Decimal("1.5")}], "until": BORN, "extra_field": b"x"}
    )
    assert sent(account) == {
        "fullName": "ada",
        "password": "**********",
        "limits": [{"price": 1.5}],
        "until": 2024,
        "big": tag_integer(2**60),
        "raw": tag_bytes(b"\xff"),
        "extra_field": tag_bytes(b"x"),
        "shout": "ADA",
    }


class Sparse(BaseModel):
    data: Any = Field(default=None, alias="theData", exclude_if=lambda data: data is None)
    inner: Sparse | None = Field(default=None, exclude_if=lambda inner: inner is None)


def test_a_field_that_may_be_left_out_leaves_as_any_other() -> None:
    assert sent(Sparse()) == sent(Sparse.model_construct()) == {}
    bare = Sparse()
    del bare.__dict__["data"]
    assert sent(bare) == {}
    for value, wanted in (
        (b"ab", {"$bytes": "YWI="}),
        (BigInt(5), tag_integer(5)),
        ([0.5, {"a": b""}], [0.5, {"a": {"$bytes": ""}}]),
    ):
        assert sent(Sparse(theData=value, inner=Sparse(theData=value))) == {
            "theData": wanted,
            "inner": {"theData": wanted},
        }
    with pytest.raises(ResultInvalid, match=r"result\.inner\.theData: The integer 9007199254740993 is beyond"):
        sent(Sparse(inner=Sparse(theData=2**53 + 1)), Format.ENCODED)


class Node(BaseModel):
    value: int
    below: list[Node] = []
    next: Node | None = None


def test_models_that_refer_to_themselves_leave_and_one_that_holds_itself_does_not() -> None:
    node = Node(value=1, below=[Node(value=2, next=Node(value=3))])
    assert sent(node) == node.model_dump()
    node.next = node
    with pytest.raises(ResultInvalid, match="nested"):
        encode_result(node, Format.CLEAN)


async def take_either(
    ctx: Any, a: bytes | str, b: str | bytes, c: list[bytes | str] | None = None, d: bytes = b""
) -> None:
    """Take texts and bytes, which clients tell apart by their tags."""


def test_tagged_bytes_and_texts_are_told_apart_in_unions_of_both() -> None:
    signature, tag = Signature(take_either, "module:function"), {"$bytes": "eA=="}
    for sent, wanted in {"tagged": (tag, b"x"), "text": ("eA==", "eA==")}.values():
        message = Message(to_json({"a": sent, "b": sent, "c": [tag, "eA=="], "d": tag}))
        found = signature.check_json(message.arguments(message.value))
        assert found == {"a": wanted, "b": wanted, "c": [b"x", "eA=="], "d": b"x"}
        assert signature.check_json(signature.encode(found)) == found
