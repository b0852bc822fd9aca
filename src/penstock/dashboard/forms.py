"""Inputs of forms: made from the signature of a function or the columns of a table, and read into values for JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import PydanticUndefined, to_jsonable_python

from penstock.codegen.description import Description, Schema, describe, literals, options
from penstock.dashboard.mask import is_secret, secrets_of
from penstock.errors import PenstockError
from penstock.functions.function import AnyFunction
from penstock.schema.fields import Column, Kind

PREFIX, BEFORE = "arg.", "was."  # of the names of inputs, and of what they showed before
MISSING: Any = object()
Shows = Literal["text", "number", "checkbox", "select", "date", "json"]

_OF_TYPES: Mapping[str, Shows] = {"string": "text", "integer": "number", "number": "number", "boolean": "checkbox"}
_OF_KINDS: Mapping[Kind, tuple[Shows, str]] = {
    Kind.TEXT: ("text", "text"),
    Kind.INTEGER: ("number", "whole number"),
    Kind.REAL: ("number", "number"),
    Kind.BOOLEAN: ("checkbox", "true or false"),
    Kind.BYTES: ("text", "bytes as base64"),
    Kind.DATETIME: ("text", "such as 2026-12-24T18:00:00Z"),
    Kind.DATE: ("date", "date"),
    Kind.INTERVAL: ("text", "such as P1DT2H"),
    Kind.DECIMAL: ("text", "decimal number"),
    Kind.UUID: ("text", "UUID"),
    Kind.JSON: ("json", "JSON"),
}
_FORMATS = {"date-time": "such as 2026-12-24T18:00:00Z", "duration": "such as P1DT2H", "decimal": "decimal number"}


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a form.

    Attributes:
        name: The argument or the column.
        shows: How it is shown.
        hint: What it takes.
        choices: The values of a select.
        nullable: Whether it takes None.
        required: Whether it has no default.
        default: What it shows at first.
        secret: Whether it hides what is typed, and never shows what there is.
    """

    name: str
    shows: Shows
    hint: str = ""
    choices: Sequence[Any] = ()
    nullable: bool = False
    required: bool = True
    default: Any = None
    secret: bool = False

    @property
    def options(self) -> list[tuple[str, str]]:
        """The values and the texts of a select."""
        none = [("", "none" if self.nullable else "choose")] if self.nullable or self.default is None else []
        return none + [(json.dumps(one), str(one)) for one in self.choices]

    def text(self, value: Any) -> str:
        """A value as it is shown."""
        if value is None or self.secret:
            return ""
        return value if isinstance(value, str) and self.shows in {"text", "date"} else json.dumps(value, default=str)

    def read(self, given: str | None) -> Any:
        """The value of what a form has sent; `MISSING` for the default. ValueError if it is no JSON."""
        if self.shows == "checkbox":
            return given is not None
        if given is None:
            return MISSING
        if not given.strip() and (self.nullable or self.shows != "text"):
            return (None if self.nullable else given) if self.required else MISSING
        if self.shows in {"text", "date"}:
            return given.replace("\r\n", "\n")
        try:
            return json.loads(given)
        except ValueError:
            if self.shows == "json":
                raise
            return given


def inputs_of(function: AnyFunction, defaults: Mapping[str, Any], secrets: AbstractSet[str]) -> list[Input]:
    """The inputs for the arguments of a function."""
    description = describe([function])
    schema, secrets = description.functions[0].arguments, secrets | secrets_of(function)
    return [
        _of_schema(name, one, description, defaults.get(name, MISSING), secret=is_secret(name, secrets))
        for name, one in schema["properties"].items()
    ]


def _of_schema(name: str, schema: Schema, description: Description, default: Any, *, secret: bool) -> Input:
    parts = [_plain(one, description) for one in options(schema) or [schema]]
    found = [one for one in parts if one.get("type") != "null"]
    one = found[0] if len(found) == 1 else {}
    nullable, required = len(found) < len(parts) or not one, default is MISSING
    shown = None if required else to_jsonable_python(default, fallback=str)
    shows = _OF_TYPES.get(one.get("type", ""), "json")
    said = _FORMATS.get(one.get("format", "")) or one.get("type", "JSON")
    hint = f"id of {one['x-id']}" if "x-id" in one else str(said)
    choices = literals(one)
    if shows == "checkbox" and nullable:
        choices = [True, False]
    if choices:
        shows = "select"
    elif one.get("format") == "date":
        shows = "date"
    return Input(name, shows, hint, choices, nullable and bool(one), required, shown, secret)


def _plain(schema: Schema, description: Description) -> Schema:
    named = description.named(schema)
    return schema if named is None else named[1]


def input_of(column: Column, secrets: Collection[str], *, required: bool | None = None) -> Input:
    """The input for a column; `required` says whether its default is left out of account."""
    info, choices = column.info, column.choices
    secret = is_secret(column.name, secrets)
    shows, hint = _OF_KINDS[Kind.TEXT if secret and column.kind is Kind.JSON else column.kind]
    if shows == "checkbox" and column.optional:
        choices = (True, False)
    has_value = info is not None and info.default_factory is None and info.default is not PydanticUndefined
    default = to_jsonable_python(info.default, fallback=str) if info is not None and has_value else None
    needed = column.required if required is None else required
    shows = "select" if choices else shows
    return Input(column.name, shows, hint, choices, column.optional, needed, default, secret)


def read_all(inputs: Iterable[Input], words: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values that a form has sent, and what is wrong with others, by name."""
    values, wrong = dict[str, Any](), dict[str, str]()
    for one in inputs:
        try:
            value = one.read(words.get(PREFIX + one.name))
        except ValueError as error:
            wrong[one.name] = f"This is no JSON: {error}."
            continue
        if value is not MISSING:
            values[one.name] = value
    return values, wrong


def changed(inputs: Iterable[Input], words: Mapping[str, str]) -> list[Input]:
    """The inputs in which something else stands than they showed before."""
    return [one for one in inputs if words.get(PREFIX + one.name) != words.get(BEFORE + one.name)]


def typed(inputs: Iterable[Input], words: Mapping[str, str]) -> dict[str, str]:
    """What was typed into inputs, or a link says; nothing of secrets."""
    return {one.name: words[PREFIX + one.name] for one in inputs if PREFIX + one.name in words and not one.secret}


def wrong_fields(error: PenstockError | ValueError, names: Iterable[str]) -> dict[str, str]:
    """What an error says about single fields; nothing if it is about none."""
    listed = getattr(error.__cause__ or error, "errors", None)
    details = error.facts.get("errors", ()) if isinstance(error, PenstockError) else ()
    found = dict[str, str]()
    for detail in details or (listed() if callable(listed) else ()):
        name = str(detail["loc"][0]) if detail["loc"] else ""
        if name in names:
            found.setdefault(name, str(detail["msg"]))
    return found
