"""Signatures: what a function takes and gives is what its annotations say, from Python and from JSON."""

from __future__ import annotations

import enum
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass as make_dataclass
from typing_extensions import TypedDict

from penstock import BigInt, Int64
from penstock.errors import ArgumentsInvalid, DeclarationError, ResultInvalid
from penstock.functions.signature import Signature, check_declaration
from penstock.schema.ids import Id
from penstock.schema.table import Table
from penstock.wire.incoming import Message as Incoming


class Colour(enum.Enum):
    RED = "red"


class Booking(Table):
    customer: str


class Item(BaseModel):
    name: str
    price: Decimal = Decimal(0)


class Sealed(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    seal: bytes


@dataclass
class Stamp:
    seal: bytes


class SealedNote(TypedDict):
    seal: bytes


async def everything(
    ctx: Any,
    text: str,
    number: int = 5,
    *,
    real: float = 0.0,
    truth: bool = False,
    data: bytes = b"",
    at: datetime | None = None,
    wait: timedelta = timedelta(0),
    price: Decimal = Decimal(0),
    uuid: UUID | None = None,
    colour: Colour = Colour.RED,
    word: Literal["yes", "no"] = "yes",
    booking: Id[Booking] | None = None,
    item: Item | None = None,
    items: list[Item] | None = None,
    mapping: dict[str, int] | None = None,
    sealed: Sealed | None = None,
    small: Annotated[int, Field(ge=0, le=9)] = 0,
    anything: Any = None,
) -> None:
    """Take all there is."""


async def untyped(ctx: Any, value, *, other=1):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Take anything."""


EVERYTHING = Signature(everything, "module:everything")


def returning(annotation: Any) -> Signature:
    async def function(ctx: Any) -> Any:
        """Give something."""

    function.__annotations__["return"] = annotation
    return Signature(function, "module:function")


# ----- arguments


def test_arguments_by_place_and_by_name_become_one_dict() -> None:
    assert EVERYTHING.parameters[:3] == ("text", "number", "real")
    assert EVERYTHING.bind(("a", 1), {"real": 0.5}) == {"text": "a", "number": 1, "real": 0.5}
    assert EVERYTHING.bind((), {"number": 1}) == {"number": 1}
    with pytest.raises(ArgumentsInvalid, match="text is given twice"):
        EVERYTHING.bind(("a",), {"text": "b"})
    with pytest.raises(ArgumentsInvalid, match="takes 18 arguments, but 19 were given"):
        EVERYTHING.bind(("a",) * 19, {})
    assert EVERYTHING.check({"text": "a"}) == {"text": "a"}, "defaults are left to the function"
    assert EVERYTHING.check_json('{"text": "a"}') == {"text": "a"}
    for arguments in ({}, {"number": 5}):
        with pytest.raises(ArgumentsInvalid, match="text: Field required"):
            EVERYTHING.check(arguments)
    anything = Signature(untyped, "module:untyped")
    assert anything.check({"value": object, "other": None}) == {"value": object, "other": None}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"number": 1.0}', {"number": 1}),
        ('{"number": 9007199254740992.0}', {"number": 2**53}),
        ('{"number": 1e3, "small": 9.0, "real": 1.0, "anything": {"a": [1.5]}}', {"number": 1000, "small": 9}),
        ('{"number": 1, "real": 1, "anything": 1.0}', {"real": 1.0, "anything": 1.0}),
    ],
)
def test_a_whole_number_in_json_is_an_integer_where_one_is_asked_for(text: str, found: dict[str, Any]) -> None:
    checked = EVERYTHING.check_json(f'{{"text": "a", {text[1:]}')
    for name, value in found.items():
        assert (checked[name], type(checked[name])) == (value, type(value))


@pytest.mark.parametrize("of", ["3", "3.0"])
@pytest.mark.parametrize("large", ['"7"', '{"$integer": "BwAAAAAAAAA="}', "7.0"])
def test_bytes_and_integers_in_any_are_kept_however_the_numbers_around_them_are_spelled(of: str, large: str) -> None:
    async def take(ctx: Any, of: int, large: Int64, whatever: dict[str, Any]) -> None:
        """Take numbers in several spellings."""

    whatever = '{"a": {"$bytes": "/w=="}, "b": {"$integer": "BwAAAAAAAAA="}}'
    text = f'{{"of": {of}, "large": {large}, "whatever": {whatever}}}'
    sent = Incoming(text)
    found = Signature(take, "f").check_json(sent.arguments(sent.value))
    assert found == {"of": 3, "large": 7, "whatever": {"a": b"\xff", "b": 7}}
    assert type(found["whatever"]["b"]) is BigInt


@pytest.mark.parametrize("number", ["1.5", "9007199254740994.0", "1e300", "true", '"1"', '"1.0"', "NaN", "[1.0]"])
def test_no_other_number_is_an_integer(number: str) -> None:
    with pytest.raises(ArgumentsInvalid, match="number: Input should be"):
        EVERYTHING.check_json(f'{{"text": "a", "number": {number}}}')


WRONG: dict[str, list[Any]] = {
    "text": [None, 5, b"a", ["a"]],
    "unknown": [1],
    "ctx": [1],
    "number": ["5", 5.0, True, None, 2**63],
    "real": ["0.5", True, None],
    "truth": [1, "true", None],
    "data": ["x", 5],
    "at": [datetime(2030, 1, 1), "2030-01-01T00:00:00Z", 5],  # noqa: DTZ001 - what is tested
    "wait": [5, "PT1H"],
    "price": ["1", 1.5, Decimal("NaN"), Decimal("Infinity")],
    "uuid": ["00000000-0000-0000-0000-000000000000", 5],
    "colour": ["red"],
    "word": ["maybe", None],
    "booking": ["x", 5, "other_01jd3k4v5w6x7y8z9a0b1c2d3e"],
    "item": [{"name": 5}, {}, "x", {"name": "x", "price": "cheap"}],
    "items": ["x", ["x"], Item(name="x"), [None]],
    "mapping": [{1: 1}, {"a": "1"}, [], "x"],
    "sealed": [{"seal": 5}, {}, "x"],
    "small": [10, -1],
}


@pytest.mark.parametrize("name", WRONG)
def test_arguments_of_another_type_are_refused(name: str) -> None:
    for value in WRONG[name]:
        with pytest.raises(ArgumentsInvalid, match=rf"^module:everything: invalid arguments: {name}"):
            EVERYTHING.check({"text": "a", name: value})


def collections(
    ctx: Any,
    items: list[int] | None = None,
    numbers: dict[str, int] | None = None,
    names: set[str] | None = None,
    pair: tuple[int, ...] = (),
) -> None: ...


COLLECTIONS = Signature(collections, "module:collections")


def test_each_mistake_is_told_but_not_endlessly_and_never_with_its_value() -> None:
    with pytest.raises(ArgumentsInvalid) as caught:
        EVERYTHING.check({"text": "a", "items": [{"name": 666}], **{f"x{number}": 666 for number in range(900)}})
    assert len(caught.value.facts["errors"]) == 20
    assert "; 881 more errors." in str(caught.value)
    assert len(str(caught.value)) < 2000
    assert "666" not in str(caught.value) + repr(caught.value.facts)
    with pytest.raises(ArgumentsInvalid, match=r"invalid arguments: 2000 errors\.$") as caught:
        COLLECTIONS.check({f"x{number}": number for number in range(2000)})
    assert caught.value.facts["errors"] == []
    with pytest.raises(ArgumentsInvalid) as caught:
        COLLECTIONS.check({"x" * 100_000: 1})
    assert len(str(caught.value)) < 500


def test_a_collection_is_refused_for_its_first_mistake() -> None:
    wrong = {"items": [1.5, 1.5], "numbers": {"a": 1.5, "b": 1.5}, "names": {1, 2}, "pair": ["a", "b"]}
    with pytest.raises(ArgumentsInvalid) as caught:
        COLLECTIONS.check_json(json.dumps({**wrong, "names": [1, 2]}))
    assert len(caught.value.facts["errors"]) == 4
    with pytest.raises(ArgumentsInvalid) as caught:
        COLLECTIONS.check({**wrong, "pair": ("a", "b")})
    assert len(caught.value.facts["errors"]) == 4
    with pytest.raises(ArgumentsInvalid, match=r"invalid arguments: items\.1: Input should be a valid integer\.$"):
        COLLECTIONS.check_json('{"items": [1.0, "x"]}')
    assert COLLECTIONS.check_json('{"items": [1.0, 2]}') == {"items": [1, 2]}


# ----- results


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (int, [0, 2**70], ["1", 1.0, None, True]),
        (dict[str, int], [{}, {"a": 1}], [{"a": "1"}, {1: 1}, []]),
        (tuple[int, str], [(1, "a")], [[1, "a"], (1,), ("a", 1)]),
        (Booking, [Booking(customer="a")], [{"name": "a"}, Item(name="a"), None, 5]),
        (list[Booking], [[], [Booking(customer="a")]], [[{"name": "a"}], [None], Booking(customer="a")]),
        (Item, [Item(name="a")], [5, "x", None]),
        (SealedNote, [{"seal": b""}], [{"seal": ""}, {}, None]),
        (Id[Booking], ["booking_01jd3k4v5w6x7y8z9a0b1c2d3e"], ["x", 5, "other_01jd3k4v5w6x7y8z9a0b1c2d3e"]),
        (Any, [1, None, object, [object]], []),
        (None, [None], [0, "", False, []]),
    ],
)
def test_a_result_is_what_its_annotation_says(annotation: Any, good: list[Any], bad: list[Any]) -> None:
    signature = returning(annotation)
    for value in good:
        assert signature.check_result(value) == value
    for value in bad:
        with pytest.raises(ResultInvalid, match=r"^module:function returned "):
            signature.check_result(value)


# ----- declarations


async def fine(ctx: Any, a: int, /, b: int, *, c: int = 1) -> None:
    """A positional-only parameter cannot be named."""


async def no_ctx() -> None:
    """No ctx."""


async def star_ctx(*ctx: Any) -> None:
    """A ctx among others."""


async def double_star(ctx: Any, **rest: int) -> None:
    """Arguments of any name."""


async def generator(ctx: Any) -> AsyncIterator[int]:
    """Give one by one."""
    yield 1


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (no_ctx, "the first parameter of a query is its ctx"),
        (star_ctx, "the first parameter of a query is its ctx"),
        (fine, "cannot be called by name"),
        (double_star, "cannot be called by name"),
        (generator, "yields; a query returns one result"),
    ],
)
@pytest.mark.parametrize("public", [True, False])
def test_a_handler_that_cannot_be_called_by_name_is_refused(
    handler: Callable[..., Any], message: str, public: bool
) -> None:
    with pytest.raises(DeclarationError, match=message):
        check_declaration(handler, "module:function", "query", public)


def test_a_public_function_says_what_it_takes_and_gives() -> None:
    async def no_return(ctx: Any, value: int):  # type: ignore[no-untyped-def]  # noqa: ANN202
        """No annotation of the result."""

    for handler, missing in ((no_return, "return"), (untyped, "value, other, return")):
        with pytest.raises(DeclarationError, match=f"is public, and lacks an annotation of {missing}:"):
            check_declaration(handler, "module:function", "mutation", public=True)
        check_declaration(handler, "module:function", "mutation", public=False)


class Opaque:
    """A class that pydantic knows nothing of."""


def test_annotations_that_cannot_be_checked_are_refused_by_name() -> None:
    async def missing_type(ctx: Any, value: Missing) -> int:  # type: ignore[name-defined]  # noqa: F821
        """Name what is not there."""
        return 1

    async def opaque(ctx: Any, value: Opaque) -> Opaque:
        """Name what cannot be checked."""
        return value

    with pytest.raises(DeclarationError, match="an annotation names 'Missing', which does not exist in its module"):
        Signature(missing_type, "module:function")
    with pytest.raises(DeclarationError, match="module:function: its annotations cannot be checked"):
        Signature(opaque, "module:function")
    with pytest.raises(DeclarationError, match="module:function: its annotations cannot be checked"):
        returning(Opaque)


async def mixed(ctx: Any, value: bytes | str, numbers: list[Int64 | Colour]) -> None:
    """Take what is told apart by tags, and what is read from text."""


@pytest.mark.parametrize("arguments", [{"value": 1, "numbers": []}, {"value": "", "numbers": [[]]}])
def test_errors_lead_to_a_value_by_steps_that_its_sender_knows(arguments: Any) -> None:
    with pytest.raises(ArgumentsInvalid) as caught:
        Signature(mixed, "module:function").check_json(json.dumps(arguments))
    assert "[" not in str(caught.value)
    assert {one["loc"][0] for one in caught.value.facts["errors"]} <= {"value", "numbers"}


class Tolerant(BaseModel):
    model_config = ConfigDict(strict=False, extra="ignore")

    size: int


class Box(BaseModel):
    kind: Literal["box"] = "box"
    size: int
    boxes: list[Box] = []


class Bag(BaseModel):
    kind: Literal["bag"] = "bag"
    size: float


@make_dataclass
class Crate:
    size: int


class Rack(Table):
    box: Box


async def pack(
    ctx: Any,
    box: Box | None = None,
    boxes: list[Box] | None = None,
    either: Box | Bag | None = None,
    marked: Annotated[Box | Bag, Field(discriminator="kind")] | None = None,
    crate: Crate | None = None,
    shelf: Rack | None = None,
) -> None: ...


packing = Signature(pack, "pack")


@pytest.mark.parametrize("wrong", [{"size": "1"}, {"size": 1, "colour": "red"}, {"size": 2**70}], ids=str)
@pytest.mark.parametrize("place", ["box", "boxes", "deep", "either", "marked", "crate", "shelf"])
def test_classes_in_arguments_are_as_strict_as_the_arguments_themselves(place: str, wrong: dict[str, Any]) -> None:
    def sent(item: dict[str, Any]) -> str:
        values: dict[str, Any] = {
            "boxes": [item],
            "deep": {"size": 1, "boxes": [item]},
            "either": {"kind": "box", **item},
            "marked": {"kind": "box", **item},
            "shelf": {"box": item},
        }
        return json.dumps({"box" if place == "deep" else place: values.get(place, item)})

    packing.check_json(sent({"size": 1}))
    packing.check_json(sent({"size": 1.0}))
    with pytest.raises(ArgumentsInvalid, match=r"valid integer|not permitted|[uU]nexpected|less than or equal"):
        packing.check_json(sent(wrong))


def test_a_class_in_arguments_is_as_tolerant_as_its_config_says() -> None:
    async def take(ctx: Any, item: Tolerant, box: Box) -> None: ...

    found = Signature(take, "take").check_json('{"item": {"size": "1", "colour": "red"}, "box": {"size": 1}}')
    assert found == {"item": Tolerant(size=1), "box": Box(size=1)}
