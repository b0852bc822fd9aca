"""Columns: which annotation becomes which kind, and how values reach a store."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType, Optional, Union
from uuid import UUID

import pytest
from pydantic import AwareDatetime, BaseModel, Field, JsonValue
from typing_extensions import TypeAliasType, TypedDict

from penstock.errors import DeclarationError, ValueInvalid
from penstock.schema.fields import ENCODERS, PLAIN, Column, Kind
from penstock.schema.ids import Id
from penstock.schema.table import Table, definition_of

Name = NewType("Name", str)
Nickname = NewType("Nickname", Name)
Alias = TypeAliasType("Alias", Annotated[int, Field(ge=0)])


class Colour(enum.Enum):
    RED = "red"


class Word(enum.StrEnum):
    YES = "yes"


class Level(enum.IntEnum):
    LOW = 1


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"


class Flags(enum.IntFlag):
    A = 1


class Empty(enum.Enum):
    pass


class Part(BaseModel):
    name: str


class Note(TypedDict):
    name: str


@dataclass
class Point:
    x: int


class Every(Table):
    text: str
    number: int
    real: float
    truth: bool
    data: bytes
    moment: datetime
    aware: AwareDatetime
    day: date
    span: timedelta
    price: Decimal
    uuid: UUID
    name: Name
    nickname: Nickname
    short: Annotated[str, Field(max_length=5)]
    alias: Alias
    every: Id[Every]
    anyone: Id[Any]
    colour: Colour
    word: Word
    level: Level
    choice: Literal["a", "b"]
    digit: Literal[1, 2]
    mixed: Mixed
    flags: Flags
    nothing: Empty
    either: Literal[1, "a"]
    truths: Literal[True, False]
    part: Part
    note: Note
    point: Point
    items: list[int]
    mapping: dict[str, int]
    union: int | str
    anything: Any
    thing: object
    json_value: JsonValue


class Maybe(Table):
    old: Optional[int] = None  # noqa: UP045 - one of the ways to say it
    older: Union[str, None] = None  # noqa: UP007
    new: str | None = None
    name: Name | None = None
    inner: Annotated[str | None, Field(max_length=5)] = None
    outer: Annotated[str, Field(max_length=5)] | None = None
    colour: Colour | None = None
    choice: Literal["a", None] = None  # noqa: PYI061
    chosen: Literal["a"] | None = None
    mixed: int | str | None = None
    items: list[int] | None = None
    maybe: Id[Maybe] | None = None


def columns(table: type[Table]) -> dict[str, Column]:
    return {column.name: column for column in definition_of(table).columns[2:]}


def test_each_annotation_becomes_one_kind_of_column() -> None:
    assert {name: column.kind.value for name, column in columns(Every).items()} == {
        "text": "text", "number": "integer", "real": "real", "truth": "boolean", "data": "bytes", "moment": "datetime",
        "aware": "datetime", "day": "date", "span": "interval", "price": "decimal", "uuid": "uuid", "name": "text",
        "nickname": "text", "short": "text", "alias": "integer", "every": "text", "anyone": "text", "colour": "text",
        "word": "text", "level": "integer", "choice": "text", "digit": "integer", "mixed": "json", "flags": "json",
        "nothing": "json", "either": "json", "truths": "json", "part": "json", "note": "json", "point": "json",
        "items": "json", "mapping": "json", "union": "json", "anything": "json", "thing": "json", "json_value": "json",
    }  # fmt: skip


def test_choices_are_the_values_as_they_are_stored() -> None:
    found = {name: column.choices for name, column in columns(Every).items() if column.choices}
    assert found == {
        "colour": ("red",), "word": ("yes",), "level": (1,), "choice": ("a", "b"), "digit": (1, 2),
    }  # fmt: skip
    assert columns(Maybe)["choice"].choices == columns(Maybe)["chosen"].choices == ("a",)


def test_none_is_allowed_where_the_annotation_says_so() -> None:
    optional = {name for name, column in columns(Every).items() if column.optional}
    assert optional == {"anything", "thing", "json_value"}
    assert all(column.optional for column in columns(Maybe).values())
    kinds = {name: column.kind.value for name, column in columns(Maybe).items()}
    assert kinds == {
        "old": "integer", "older": "text", "new": "text", "name": "text", "inner": "text", "outer": "text",
        "colour": "text", "choice": "text", "chosen": "text", "mixed": "json", "items": "json", "maybe": "text",
    }  # fmt: skip


def test_a_column_knows_its_default_in_the_form_of_the_store() -> None:
    class Defaults(Table):
        required: str
        word: Word = Word.YES
        items: list[int] = Field(default_factory=lambda: [1])
        nothing: str | None = None
        moment: datetime = datetime(2030, 1, 1, 5, tzinfo=timezone(timedelta(hours=5)))

    found = {name: (column.required, column.default()) for name, column in columns(Defaults).items()}
    assert found == {
        "required": (True, None), "word": (False, "yes"), "items": (False, "[1]"), "nothing": (False, None),
        "moment": (False, datetime(2030, 1, 1, tzinfo=UTC)),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Kind.TEXT, ["a\0", "\ud800"]),
        (Kind.INTEGER, [2**63, -(2**63) - 1, 10**5000]),
        (Kind.REAL, [float("nan")]),
        (Kind.DATETIME, [datetime(2030, 1, 1), datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))]),  # noqa: DTZ001
        (Kind.INTERVAL, [timedelta(days=100_000_001), timedelta.max, timedelta.min]),
        (Kind.DECIMAL, [Decimal("NaN"), Decimal("sNaN"), Decimal("-Infinity"), Decimal("1E+1001"), Decimal("1E-1001")]),
    ],
)
def test_values_that_a_store_cannot_hold_are_refused(kind: Kind, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueInvalid, match=r"^note\.column"):
            ENCODERS[kind]("note.column", value)


@pytest.mark.parametrize("choice", ["a\0", 2**63])
def test_a_choice_that_a_store_cannot_hold_is_refused_at_import(choice: Any) -> None:
    for annotation in (Literal[choice], enum.Enum("Choice", {"ONE": choice})):
        with pytest.raises(DeclarationError, match=r"A choice of note\.column"):
            type("Note", (Table,), {"__annotations__": {"column": annotation}, "__module__": __name__})


def test_every_plain_type_has_a_kind_and_every_kind_but_json_and_ciphertext_an_encoder() -> None:
    assert set(PLAIN.values()) == set(Kind) - {Kind.JSON, Kind.ENCRYPTED} == set(ENCODERS)


class Opaque:
    """A class that pydantic knows nothing of."""


@pytest.mark.parametrize("annotation", [Opaque, list[Opaque], dict[str, Opaque] | None, Opaque | int])
def test_what_cannot_be_stored_is_refused(annotation: Any) -> None:
    with pytest.raises(DeclarationError, match="cannot be stored"):
        definition_of(type("Odd", (Table,), {"__annotations__": {"value": annotation}, "__module__": __name__}))
