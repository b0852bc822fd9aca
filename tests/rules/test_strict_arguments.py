"""Models, dataclasses and typed dicts in arguments: as strict as the arguments, unless their config says otherwise."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass as make_dataclass
from typing_extensions import TypedDict

from penstock.errors import ArgumentsInvalid
from penstock.functions.signature import Signature
from penstock.schema.table import Table


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


class Titled(TypedDict):
    __pydantic_config__ = ConfigDict(title="titled")  # type: ignore[misc]  # pydantic's own name for it

    size: int


@make_dataclass
class Crate:
    size: int


@dataclass
class Chest:
    size: int


class Shelf(Table):
    box: Box


async def pack(
    ctx: Any,
    box: Box | None = None,
    boxes: list[Box] | None = None,
    either: Box | Bag | None = None,
    marked: Annotated[Box | Bag, Field(discriminator="kind")] | None = None,
    titled: Titled | None = None,
    crate: Crate | None = None,
    chest: Chest | None = None,
    shelf: Shelf | None = None,
) -> None: ...


packing = Signature(pack, "pack")


@pytest.mark.parametrize("wrong", [{"size": "1"}, {"size": 1, "colour": "red"}, {"size": 2**70}], ids=str)
@pytest.mark.parametrize("place", ["box", "boxes", "deep", "either", "marked", "titled", "crate", "chest", "shelf"])
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


def test_models_of_arguments_stay_as_they_are_elsewhere() -> None:
    assert Box.model_validate({"size": "1", "colour": "red"}) == Box(size=1)
    assert packing.check({"box": {"size": 1}}) == packing.check({"box": Box(size=1)}) == {"box": Box(size=1)}
