"""The description of an app: its functions and rows as JSON Schemas, from which all its clients are written.

Pydantic says what the wire has. Keywords with ``x-`` mark what JSON Schema has no word for: ids, rows and pages.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

from penstock.dataclass import dataclass
from penstock.files.file import File
from penstock.functions.component import Component
from penstock.functions.function import AnyFunction
from penstock.functions.httpaction import HttpAction
from penstock.functions.signature import WIRE_NAMES
from penstock.schema.ids import ID_OF, is_several
from penstock.schema.systemfields import SYSTEM_COLUMNS
from penstock.schema.table import Table, TableDefinition, table_of
from penstock.transaction.pages import Page, PaginationOptions
from penstock.wire.integers import is_int64

Schema = dict[str, Any]
TYPES = "#/components/schemas/"  # where OpenAPI keeps them
_STORAGE = "_storage"  # as Convex names the table of files
_CREATION_TIME = {"type": "number", "description": "Milliseconds since 1970."}
SAME = ("number", "boolean", "null", "string")  # types that JSON Schema and JavaScript call alike


@dataclass(frozen=True, slots=True)
class FunctionDescription:
    """A function as its callers see it: `arguments` is the schema of an object, by their names on the wire.

    `access` is written as in the program; empty if nothing is said.
    """

    module: str
    name: str
    kind: str
    public: bool
    about: str
    arguments: Schema
    returns: Schema
    access: str = ""


@dataclass(frozen=True, slots=True)
class Description:
    """Functions by module and name, the types that schemas refer to, rows of tables among them, and HTTP actions."""

    functions: tuple[FunctionDescription, ...]
    types: Mapping[str, Schema]
    http: tuple[HttpAction[Any, ..., Any, Any], ...] = ()

    def resolve(self, schema: Schema) -> tuple[str, Schema] | None:
        """The type that a schema refers to, by its name; None if it stands for itself."""
        name = schema.get("$ref", "").removeprefix(TYPES)
        return (name, self.types[name]) if name else None

    def modules(self) -> dict[str, list[FunctionDescription]]:
        found: dict[str, list[FunctionDescription]] = {}
        for function in self.functions:
            found.setdefault(function.module, []).append(function)
        return found


def describe(
    functions: Iterable[AnyFunction],
    tables: Iterable[TableDefinition] = (),
    http: Iterable[HttpAction[Any, ..., Any, Any]] = (),
    foreign: Mapping[type, str] | None = None,
) -> Description:
    """Describe functions, the rows that they take or return, the rows of these tables, and HTTP actions.

    `foreign` has the names of tables of components, by the classes of rows that functions of the program return.
    """
    chosen = sorted(functions, key=lambda function: function.name)
    names: dict[Component | None, Mapping[type, str]] = {
        one: {table: twin.__declared__.sql_name for table, twin in one.tables.items()}
        for one in dict.fromkeys(function.component for function in chosen)
        if one is not None
    }
    names[None] = foreign or {}
    functions_of = {part: [one for one in chosen if one.component is part] for part in names}
    parts = [_describe_part(part, functions_of[part], () if part else tables, names[part]) for part in names]
    described = sorted((one for found, _ in parts for one in found), key=lambda one: f"{one.module}:{one.name}")
    types = {name: schema for _, found in parts for name, schema in found.items()}
    return Description(tuple(described), types, tuple(http))


def _describe_part(
    component: Component | None,
    chosen: Sequence[AnyFunction],
    tables: Iterable[TableDefinition],
    names: Mapping[type, str],
) -> tuple[list[FunctionDescription], dict[str, Schema]]:
    """Describe the functions of the program, or of one component, and their types; `names` are those of its tables."""
    prefix = "" if component is None else f"{component.name.replace('/', '.')}."
    inputs: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]] = []
    for function in chosen:
        inputs.append((function.name, "validation", TypeAdapter(function.signature.arguments)))
        inputs.append((function.name, "serialization", TypeAdapter(function.signature.returns)))
    inputs += [(table.name, "serialization", TypeAdapter(table.table)) for table in tables]
    generator = type("_Schemas", (_Schemas,), {"names": names})
    schemas, shared = TypeAdapter.json_schemas(
        inputs, schema_generator=generator, ref_template=f"{TYPES}{prefix}{{model}}"
    )
    types = {f"{prefix}{name}": _as_on_the_wire(schema) for name, schema in shared.get("$defs", {}).items()}
    taken = {function.name: schemas[function.name, "validation"]["$ref"].removeprefix(TYPES) for function in chosen}
    described = [_describe(one, types[taken[one.name]], schemas[one.name, "serialization"]) for one in chosen]
    return described, {name: schema for name, schema in types.items() if name not in taken.values()}


def _describe(function: AnyFunction, arguments: Schema, returns: Schema) -> FunctionDescription:
    module, _colon, name = function.name.rpartition(":")
    renamed = {WIRE_NAMES.get(name, name): schema for name, schema in arguments.get("properties", {}).items()}
    required = [WIRE_NAMES.get(name, name) for name in arguments.get("required", ())]
    schema = {"type": "object", "properties": renamed, "required": required, "additionalProperties": False}
    about = inspect.getdoc(function.declared) or ""
    kind, access = function.kind.value, function.access_text
    return FunctionDescription(module, name, kind, function.public, about, schema, returns, access)


def _as_on_the_wire(schema: Schema) -> Schema:
    """The schema of a type; of a row with its marks, as `wire.outgoing` writes them."""
    if "x-rows-of" not in schema:
        return schema
    several = schema.pop("x-key-columns") > 1
    fields = dict(schema["properties"])
    marks: Schema = {"_id": {"type": "array" if several else "string", "x-id": schema.pop("x-rows-of")}}
    if schema.pop("x-managed"):
        for name in SYSTEM_COLUMNS:
            del fields[name]
        marks["_creationTime"] = _CREATION_TIME
    required = [*marks, *(name for name in schema.get("required", ()) if name in fields)]
    return {**schema, "properties": marks | fields, "required": required}


class _Schemas(GenerateJsonSchema):
    names: ClassVar[Mapping[type, str]] = {}  # of the tables of components, by the classes of their rows
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - as pydantic declares it

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        found = super().generate_inner(schema)
        target = schema.get("metadata", {}).get(ID_OF)
        if target is File:
            return {**found, "x-id": _STORAGE}
        if (declared := getattr(target, "__declared__", None)) is None:
            return found
        name = self.names.get(target, declared.sql_name)
        return {**found, "type": "array" if is_several(target) else "string", "x-id": name}

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        found, cls = super().model_schema(schema), schema["cls"]
        if issubclass(cls, Table) and self.mode == "serialization":
            declared, rows_of = cls.__declared__, table_of(cls)
            name = self.names.get(rows_of, declared.sql_name)
            found |= {"x-rows-of": name, "x-managed": declared.managed, "x-key-columns": len(declared.key)}
            if rows_of is cls:
                found["x-table"] = name
        elif issubclass(cls, File) and self.mode == "serialization":
            found["properties"]["_creationTime"] = _CREATION_TIME
        elif issubclass(cls, Page | PaginationOptions):
            found["x-pages"] = "page" if issubclass(cls, Page) else "options"
            found.pop("description", None)  # it has Python's names
        return found

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:  # noqa: ARG002 - as pydantic calls it
        return {"type": "string", "contentEncoding": "base64"}

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        return {"type": "string", "format": "int64"} if is_int64(schema) else super().int_schema(schema)

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:  # noqa: ARG002 - likewise
        return {"type": "string", "format": "decimal"}

    def field_is_required(self, field: Any, total: bool) -> bool:
        """Results have all their fields, also those with a default, unless they leave some out."""
        outgoing = self.mode == "serialization" and field["type"] != "typed-dict-field"
        return (outgoing or super().field_is_required(field, total)) and not self._leaves_out(field)

    def model_field_schema(self, schema: core_schema.ModelField) -> JsonSchemaValue:
        found = super().model_field_schema(schema)
        if not self._leaves_out(schema) or not schema["serialization_exclude_if"](None):
            return found
        rest = [one for one in found.get("anyOf", ()) if one != {"type": "null"}]
        others = {name: value for name, value in found.items() if name not in {"anyOf", "default"}}
        return others | rest[0] if len(rest) == 1 else others | {"anyOf": rest} if rest else found

    def _leaves_out(self, field: Any) -> bool:
        return self.mode == "serialization" and "serialization_exclude_if" in field

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - likewise
        return False

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:  # noqa: ARG002 - likewise
        return {}  # a type that only Python knows may be anything


def plain_type(schema: Schema, names: Mapping[str, str]) -> str:
    """The name of the type of a single value, from those by format, encoding or JSON type; `any` if it has none."""
    kinds = (schema.get("format", ""), schema.get("contentEncoding") or schema.get("type", ""))
    return next((names[kind] for kind in kinds if kind in names), "any")


def literals(schema: Schema) -> list[Any]:
    """The values to which a schema is limited; none if it is not."""
    return schema.get("enum") or ([schema["const"]] if "const" in schema else [])


def options(schema: Schema) -> list[Schema]:
    """The members of a union; none if the schema is no union."""
    return schema.get("anyOf") or schema.get("oneOf") or []


def type_names(names: Iterable[str], used: set[str]) -> dict[str, str]:
    """Choose the names under which programs write types; none of them is used yet."""
    return {name: unique_name(re.sub(r"\W", "", name, flags=re.ASCII).strip("_"), used) for name in names}


def unique_name(wanted: str, used: set[str]) -> str:
    """A name that begins like another one, is not used yet, and now is."""
    name = wanted if wanted.isidentifier() else f"_{wanted}"
    while name in used:
        name += "_"
    used.add(name)
    return name
