"""Rows of every kind of column: what goes in comes out, and nothing else goes in."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from stage.stories import tell_in

from penstock import (
    App,
    ArgumentsInvalid,
    ConstraintViolation,
    Id,
    IdInvalid,
    Index,
    LimitExceeded,
    MutationCtx,
    QueryCtx,
    RowNotFound,
    Table,
    ValueInvalid,
)
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

INT64 = 2**63
MIB = 1024 * 1024


class Colour(enum.Enum):
    RED = "red"
    BLUE = "it's blue"


class Level(enum.IntEnum):
    LOW = -1
    HIGH = INT64 - 1


class Part(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    name: str
    size: Decimal = Decimal(1)
    weight: float = 0.0
    made: datetime | None = None
    seal: bytes = b""
    parts: list[Part] = []


class Thing(Table):
    text: str = ""
    number: int = 0
    real: float = 0.0
    truth: bool = False
    data: bytes = b""
    moment: datetime = datetime(2030, 1, 1, tzinfo=UTC)
    day: date = date(2030, 1, 1)
    span: timedelta = timedelta(0)
    price: Decimal = Field(default=Decimal(0), max_digits=2001)
    uuid: UUID = UUID(int=0)
    colour: Colour = Colour.RED
    level: Level = Level.LOW
    word: Literal["yes", "no", "it's"] = "yes"
    maybe: str | None = None
    parent: Id[Thing] | None = None
    anything: Any = None
    part: Part | None = None
    parts: list[Part] = Field(default_factory=list)
    numbers: set[int] = Field(default_factory=set)


class Order(Table, name="order"):
    group: str
    where: int = 0
    select: str | None = None

    by_group = Index("group", "where")
    unique = Index("select", unique=True)


class User(Table):
    name: str
    email: str

    by_email = Index("email", unique=True)
    by_name = Index("name")


class Checked(Table):
    low: int
    high: int
    text: str = Field(alias="theText", default="x")

    @field_validator("text")
    @classmethod
    def _no_blank(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("text is blank")
        return text

    @model_validator(mode="after")
    def _in_order(self) -> Checked:
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


app = OPENED = App()
write, read, _ = tell_in(app)


@app.mutation
async def move(ctx: MutationCtx, thing: Id[Thing], text: str) -> None:
    await ctx.db.patch(Thing, thing, text=text)


async def stored(backend: TestApp, row: Table) -> Any:
    """A row as it comes back from the database, in a transaction after the one that inserted it."""
    row_id = await backend.run_mutation(write, lambda ctx: ctx.db.insert(row))
    return await backend.run_query(read, lambda ctx: ctx.db.get(type(row), row_id))


async def whole(backend: TestApp, thing: Id[Thing]) -> bool:
    """Whether a row is as it was inserted."""
    row = await backend.run_query(read, lambda ctx: ctx.db.get(Thing, thing))
    return all(getattr(row, name) == getattr(Thing(text="kept"), name) for name in Thing.model_fields)


async def count(backend: TestApp, table: type[Table]) -> int:
    found: int = await backend.run_query(read, lambda ctx: ctx.db.query(table).count())
    return found


# ----- every kind of column

EXTREMES: dict[str, list[Any]] = {  # beside those of `test_made_up_tables`
    "text": ["a" * (MIB - 1024), "\N{SNOWMAN}" * ((MIB - 1024) // 3)],
    "real": [1.7976931348623157e308, float("-inf"), 5],
    "data": [bytes(MIB - 1024)],
    "moment": [
        datetime(2030, 10, 27, 2, 30, fold=1, tzinfo=timezone(timedelta(hours=1))),
        datetime(1, 1, 1, 6, tzinfo=timezone(timedelta(hours=5))),
    ],
    "span": [timedelta(days=100_000_000), timedelta(days=-100_000_000)],
    "price": [Decimal("1E+1000"), Decimal("-1E-1000"), Decimal("1.500"), Decimal(10**40) + Decimal("1e-40")],
    "anything": [{}, [], "", 0, False, None, {"": {"": [None]}}, "null", "\x7f", 1e-320],
}


async def test_the_ends_of_every_kind_come_back(database_url: str) -> None:
    given = [(name, value) for name, values in EXTREMES.items() for value in values]
    async with TestApp(app, database_url) as backend:
        ids = [
            await backend.run_mutation(write, lambda ctx, one=one: ctx.db.insert(Thing(**dict([one])))) for one in given
        ]

        async def look(ctx: QueryCtx) -> None:
            for (name, value), row_id in zip(given, ids, strict=True):
                row: Any = await ctx.db.get(Thing, row_id)
                assert getattr(row, name) == value
                if isinstance(value, Decimal) and value.as_tuple().exponent in {-3, -40}:
                    assert str(row.price) == str(value), "trailing zeros are kept"

        await backend.run_query(read, look)


# ----- what does not go in


WRONG: list[dict[str, Any]] = [
    {"number": "1"},
    {"number": True},
    {"real": 10**400},
    {"moment": datetime(2030, 1, 1)},  # noqa: DTZ001 - what is tested
    {"price": Decimal("NaN")},
    {"colour": "red"},
    {"word": "maybe"},
    {"parent": "user_01jd3k4v5w6x7y8z9a0b1c2d3e"},
    {"part": {"nome": "x"}},
    {"numbers": {INT64}},
    {"unknown": 1},
    {"id": "thing_01jd3k4v5w6x7y8z9a0b1c2d3e"},
    {"span": 5},
    {"parts": ["x"]},
]
UNCHECKED = {"unknown", "id", "numbers"}  # by the database


def deep(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def circle() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


REFUSED: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"text": "a\0b"}, ValueInvalid),
    ({"moment": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))}, ValueInvalid),
    ({"span": timedelta(days=100_000_001)}, ValueInvalid),
    ({"price": Decimal("1E+1001")}, ValueInvalid),
    ({"text": "\ud800"}, ValueInvalid),
    ({"anything": {"a\0": 1}}, ValueInvalid),
    ({"anything": [1, {"x": float("nan")}]}, ValueInvalid),
    ({"anything": object()}, ValueInvalid),
    ({"anything": 10**5000}, ValueInvalid),
    ({"anything": deep(5000)}, LimitExceeded),
    ({"anything": circle()}, LimitExceeded),
    ({"part": Part(name="x", weight=float("nan"))}, ValueInvalid),
    ({"text": "\N{GRINNING FACE}" * (MIB // 4)}, LimitExceeded),
    ({"data": bytes(MIB)}, LimitExceeded),
]


async def test_what_cannot_be_stored_is_refused_and_leaves_nothing(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        thing = await backend.run_mutation(write, lambda ctx: ctx.db.insert(Thing(text="kept")))
        for given, error in REFUSED:
            with pytest.raises(error):
                await backend.run_mutation(
                    write, lambda ctx, given=given: ctx.db.insert(Thing.model_construct(**given))
                )
            with pytest.raises(error):
                await backend.run_mutation(write, lambda ctx, given=given: ctx.db.patch(Thing, thing, **given))
        assert await count(backend, Thing) == 1
        assert await whole(backend, thing)


async def test_a_row_that_does_not_fit_its_table_cannot_be_made_and_one_that_was_never_validated_is_refused(
    database_url: str,
) -> None:
    async with TestApp(app, database_url) as backend:
        thing = await backend.run_mutation(write, lambda ctx: ctx.db.insert(Thing(text="kept")))
        for given in WRONG:
            with pytest.raises(ValidationError):
                Thing(**given)
            if UNCHECKED & given.keys():
                continue
            made, copied = Thing.model_construct(**given), Thing().model_copy(update=given)
            with pytest.raises((ValueInvalid, ConstraintViolation)):
                await backend.run_mutation(write, lambda ctx, row=made: ctx.db.insert(row))
            with pytest.raises((ValueInvalid, ConstraintViolation)):
                await backend.run_mutation(write, lambda ctx, row=copied: ctx.db.replace(Thing, thing, row))
        for other in (Order(group="a"), {"text": "x"}, None):
            with pytest.raises(ValueInvalid):
                await backend.run_mutation(write, lambda ctx, row=other: ctx.db.replace(Thing, thing, row))
        assert await count(backend, Thing) == 1
        assert await whole(backend, thing)


async def test_a_text_too_long_for_an_index_is_the_same_error_on_both_stores(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def grow(ctx: MutationCtx) -> None:
            longest = await ctx.db.insert(User(name="a" * 2048, email="x"))
            await ctx.db.insert(User(name="ä" * 1024, email="y"))
            for name in ("a" * 2049, "ä" * 1024 + "a"):
                for call in (ctx.db.insert(User(name=name, email="z")), ctx.db.patch(User, longest, name=name)):
                    with pytest.raises(LimitExceeded, match="too long for an index"):
                        await call

        await backend.run_mutation(write, grow)
        assert await count(backend, User) == 2


async def test_ids_that_are_none_or_of_other_tables_are_refused_wherever_they_enter(database_url: str) -> None:
    nobody: Id[Thing] = Id("thing_01jd3k4v5w6x7y8z9a0b1c2d3e")
    wrong: list[Any] = [
        "", "thing_", nobody[:-1], nobody + "e", "THING" + nobody[5:], nobody[:-1] + "\0", nobody[:-1] + "\ud800",
        "order_01jd3k4v5w6x7y8z9a0b1c2d3e", "'; drop table thing; --", None, 5, b"thing", [], {},
    ]  # fmt: skip
    async with TestApp(app, database_url) as backend:

        def calls(ctx: MutationCtx, row_id: Any) -> list[Awaitable[Any]]:
            patch, replace = ctx.db.patch(Thing, row_id, text="x"), ctx.db.replace(Thing, row_id, Thing())
            return [patch, replace, ctx.db.delete(Thing, row_id)]

        async def attack(ctx: MutationCtx) -> None:
            for row_id in wrong:
                for call in (ctx.db.get(Thing, row_id), *calls(ctx, row_id)):
                    with pytest.raises(IdInvalid):
                        await call
            assert await ctx.db.get(Thing, nobody) is None
            for call in calls(ctx, nobody):
                with pytest.raises(RowNotFound) as caught:
                    await call
                assert caught.value.facts == {"table": "thing", "id": nobody}
            parent = await ctx.db.insert(Thing(text="parent"))
            child: Any = await ctx.db.get(Thing, await ctx.db.insert(Thing(parent=parent)))
            assert child.parent == parent
            assert type(child.parent) is Id
            with pytest.raises(ValidationError, match="should be an id of table thing"):
                Thing.model_validate({"parent": await ctx.db.insert(Order(group="a"))})

        await backend.run_mutation(write, attack)
        for row_id in wrong:
            with pytest.raises(ArgumentsInvalid):
                await backend.run_mutation(move, thing=row_id, text="x")
        assert await count(backend, Thing) == 2


# ----- reading what was written


async def test_calls_side_by_side_do_not_lose_each_others_changes(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        thing = await backend.run_mutation(write, lambda ctx: ctx.db.insert(Thing()))

        async def story(ctx: MutationCtx) -> None:
            patches = [ctx.db.patch(Thing, thing, **{name: value}) for name, value in (("text", "a"), ("number", 7))]
            await asyncio.gather(*patches, ctx.db.patch(Thing, thing, maybe="x"))
            row: Any = await ctx.db.get(Thing, thing)
            assert (row.text, row.number, row.maybe) == ("a", 7, "x")

        await backend.run_mutation(write, story)


async def test_a_patch_is_checked_as_a_row_is(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        checked = await backend.run_mutation(write, lambda ctx: ctx.db.insert(Checked(low=1, high=2, theText="y")))
        refused: list[dict[str, Any]] = [{"low": 3}, {"text": "  "}, {"low": "1"}, {"middle": 1}, {"id": checked}]

        async def story(ctx: MutationCtx) -> None:
            for changes in refused:
                with pytest.raises(ValueInvalid):
                    await ctx.db.patch(Checked, checked, **changes)
            assert (await ctx.db.patch(Checked, checked, low=5, high=6)).low == 5
            unchanged = await ctx.db.patch(Checked, checked)
            assert (unchanged.low, unchanged.high, unchanged.text) == (5, 6, "y")

        await backend.run_mutation(write, story)


async def test_rows_cannot_be_changed_in_place_and_are_told_apart_by_their_ids(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        first = await stored(backend, User(name="Ada", email="a"))
        again = await backend.run_query(read, lambda ctx: ctx.db.get(User, first.id))
        twin = await stored(backend, User(name="Ada", email="b"))
        with pytest.raises(ValidationError):
            first.name = "Eve"
        with pytest.raises(AttributeError, match="no id yet"):
            _ = User(name="Ada", email="a").id
        assert first == again
        assert first != User(name="Ada", email="a")
        assert first != twin.model_copy(update={"email": "a"})
        assert len({first, again, twin, User(name="Ada", email="a"), User(name="Ada", email="a")}) == 3
