"""Inputs of forms: made from the signature of a function or the columns of a table, and read into values for JSON."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any, Literal

from pydantic_core import to_jsonable_python

from penstock.codegen.description import Description, Schema, describe, literals, options
from penstock.dashboard.mask import is_secret, secrets_in, secrets_of
from penstock.dataclass import dataclass
from penstock.errors import PenstockError
from penstock.functions.function import AnyFunction
from penstock.schema.table import Table, definition_of

PREFIX, BEFORE = "arg.", "was."  # of the names of inputs, and of what they showed before
MISSING: Any = object()
Shows = Literal["text", "number", "checkbox", "select", "date", "json"]

_OF_TYPES: Mapping[str, Shows] = {"string": "text", "integer": "number", "number": "number", "boolean": "checkbox"}
_FORMATS = {
    "date": "date",
    "date-time": "such as 2026-12-24T18:00:00Z",
    "duration": "such as P1DT2H",
    "decimal": "decimal number",
}


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a form."""

    name: str  # the argument or the column
    shows: Shows  # how it is shown
    hint: str = ""  # what it takes
    choices: Sequence[Any] = ()  # the values of a select
    nullable: bool = False  # whether it takes None
    required: bool = True  # whether it has no default
    default: Any = None  # what it shows at first
    secret: bool = False  # whether it hides what is typed, and never shows what there is

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
        has_none = not self.required and (self.default is None or self.secret)  # which it could have shown
        if not given.strip() and (self.nullable or self.shows != "text" or has_none):
            return (None if self.nullable else given) if self.required else MISSING
        if self.shows in {"text", "date"}:
            return given.replace("\r\n", "\n")
        try:
            return json.loads(given)
        except ValueError:
            if self.shows == "json":
                raise
            return given


@lru_cache(maxsize=4096)
def inputs_of(function: AnyFunction, secrets: frozenset[str]) -> Sequence[Input]:
    """The inputs for the arguments of a function."""
    description = describe([function])
    parameters = inspect.signature(function.handler).parameters.values()
    defaults = {one.name: one.default for one in parameters if one.default is not one.empty}
    return _inputs(description.functions[0].arguments, description, defaults, secrets | secrets_of(function))


@lru_cache(maxsize=1024)
def inputs_of_row(table: type[Table], secrets: frozenset[str], *, is_new: bool) -> Sequence[Input]:
    """The inputs for a new row of a table, or for the columns that can be changed, whose defaults do not count."""
    definition = definition_of(table)
    description = describe((), [definition])
    schema = next(one for one in description.types.values() if one.get("x-table") == definition.name)
    left_out = () if is_new else definition.key
    names = [name for name in table.model_fields if name not in left_out]
    columns = [definition.column(name) for name in names] if is_new else []
    defaults = {one.name: one.info and one.info.get_default() for one in columns if not one.required}
    wanted = {"properties": {name: schema["properties"].get(name, {}) for name in names}}
    return _inputs(wanted, description, defaults, secrets | secrets_in(table))


def _inputs(
    schema: Schema, description: Description, defaults: Mapping[str, Any], secrets: AbstractSet[str]
) -> Sequence[Input]:
    return [
        _of_schema(name, one, description, defaults.get(name, MISSING), secret=is_secret(name, secrets))
        for name, one in schema["properties"].items()
    ]


def _of_schema(name: str, schema: Schema, description: Description, default: Any, *, secret: bool) -> Input:
    named = [description.resolve(one) or ("", one) for one in options(schema) or [schema]]
    parts = [part for _name, part in named]
    found = [one for one in parts if one.get("type") != "null"]
    one = found[0] if len(found) == 1 else {}
    nullable, required = len(found) < len(parts), default is MISSING
    shown = None if required else to_jsonable_python(default, fallback=str)
    shows = _OF_TYPES.get(one.get("type", ""), "text" if secret else "json")
    said = _FORMATS.get(one.get("format", "")) or one.get("contentEncoding") or _shape(one)
    hint = f"id of {one['x-id']}" if "x-id" in one else str(said)
    choices = literals(one) or ([True, False] if shows == "checkbox" and nullable else [])
    if choices:
        shows = "select"
    elif one.get("format") == "date":
        shows = "date"
    return Input(name, shows, hint, choices, nullable, required, shown, secret)


def _shape(schema: Schema) -> str:
    """The JSON that a value takes: its type, and the names in an object."""
    names = ", ".join(schema.get("properties", ()))
    return f"JSON object: {names}" if names else str(schema.get("type", "JSON"))


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


def diff(inputs: Iterable[Input], words: Mapping[str, str]) -> list[Input]:
    """The inputs in which something else stands than they showed before."""
    return [one for one in inputs if words.get(PREFIX + one.name) != words.get(BEFORE + one.name)]


def form_of(inputs: Sequence[Input], words: Mapping[str, str]) -> dict[str, Any]:
    """The values of a template that shows a form: as it was sent, if it was, and before anything is found wrong."""
    return {"inputs": inputs, "typed": entries(inputs, words), "wrong": {}, "error": None, "is_sent": "act" in words}


def entries(inputs: Iterable[Input], words: Mapping[str, str]) -> dict[str, str]:
    """The texts that were typed into inputs, or that a link says; nothing of secrets."""
    return {one.name: words[PREFIX + one.name] for one in inputs if PREFIX + one.name in words and not one.secret}


def wrong_fields(error: PenstockError | ValueError, names: Iterable[str]) -> dict[str, str]:
    """The messages of an error about single fields; nothing if it is about none."""
    listed = getattr(error.__cause__ or error, "errors", None)
    details = error.facts.get("errors", ()) if isinstance(error, PenstockError) else ()
    found = dict[str, str]()
    for detail in details or (listed() if callable(listed) else ()):
        name = str(detail["loc"][0]) if detail["loc"] else ""
        if name in names:
            found.setdefault(name, str(detail["msg"]))
    return found
