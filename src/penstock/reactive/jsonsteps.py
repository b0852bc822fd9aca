"""Steps into JSON columns: a key or a place, checked against the annotation of the column.

Owns the keys that every database looks up alike, and the names of pydantic's fields in JSON.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, RootModel

from penstock.reactive.expression import Step
from penstock.schema.fields import strip_annotated

LARGEST_PLACE = 2**31 - 1


class StepInvalid(ValueError):
    """A step that leads nowhere; its message says what to write instead."""


def step_into(annotation: Any, step: object) -> tuple[Step, Any]:
    """A step as JSON has it, and the annotation of its target."""
    if isinstance(step, bool) or not isinstance(step, (str, int)):
        raise StepInvalid(f"[{step!r}] is no step into JSON. Write a key such as ['city'], or a place such as [0]")
    inner = _bare(annotation)
    if isinstance(step, int):
        if abs(step) > LARGEST_PLACE:
            raise StepInvalid(f"[{step}] is further than any array goes")
        return step, _element(inner, Sequence)
    if isinstance(inner, type) and issubclass(inner, BaseModel):
        return _model_field(inner, step)
    _check_key(step)
    return step, _element(inner, Mapping)


def _bare(annotation: Any) -> Any:
    """An annotation without None and without metadata; anything if it is one of several."""
    while True:
        annotation = strip_annotated(annotation)
        if get_origin(annotation) in {Union, types.UnionType}:
            members = [one for one in get_args(annotation) if one is not type(None)]
            annotation = members[0] if len(members) == 1 else Any
        elif isinstance(annotation, type) and issubclass(annotation, RootModel):
            annotation = annotation.model_fields["root"].annotation
        else:
            return annotation


def _element(annotation: Any, of: type) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if not arguments or not isinstance(origin, type) or not issubclass(origin, of):
        return Any
    return arguments[-1] if len(arguments) == (1 if of is Sequence else 2) else Any


def _model_field(model: type[BaseModel], name: str) -> tuple[str, Any]:
    """The key under which a model's field stands in JSON."""
    field = model.model_fields.get(name) or model.model_computed_fields.get(name)
    if field is None:
        if model.model_config.get("extra") == "allow":
            _check_key(name)
            return name, Any
        known = ", ".join([*model.model_fields, *model.model_computed_fields])
        raise StepInvalid(f"{model.__name__} has no field {name!r}. Its fields are {known}")
    key = getattr(field, "serialization_alias", None) or field.alias or name
    _check_key(key)
    return key, getattr(field, "annotation", Any)


def _check_key(key: str) -> None:
    if not key or any(letter in '"\\' or not letter.isprintable() for letter in key):
        raise StepInvalid(
            f"the key {key!r} cannot be looked up in every database. Use keys of printable characters, without "
            "quotation marks and backslashes",
        )
