"""A typed module for Python: the functions of an app as methods, over `penstock.client`.

Types are `TypedDict`, of the wire's names. Values are Python's own: datetimes, decimals, UUIDs, bytes.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator

from penstock.codegen.description import (
    Description,
    FunctionDescription,
    Schema,
    literals,
    options,
    type_names,
    unique_name,
)
from penstock.functions.signature import WIRE_NAMES

_HEAD = '''"""Typed clients: `AsyncApi` and `Api`. Written by penstock codegen; changes are lost."""
# ruff: noqa

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal, NewType
from uuid import UUID

from pydantic import TypeAdapter
from typing_extensions import NotRequired, TypedDict

from penstock.client import AsyncClient, Client
from penstock.client.typed import OMITTED, AsyncModule, Module
'''
_TYPES = {"integer": "int", "number": "float", "boolean": "bool", "null": "None", "string": "str"}
_TIMES = {"date-time": "datetime", "date": "date", "time": "time", "duration": "timedelta"}
_FORMATS = {**_TIMES, "uuid": "UUID", "decimal": "Decimal", "int64": "int", "base64": "bytes"}
_IMPORTS = re.findall(r"^from (\S+) import (.+)$", _HEAD, re.MULTILINE)
_WORDS = {name: module for module, names in _IMPORTS for name in names.split(", ")} | dict.fromkeys(
    ("bool", "bytes", "dict", "float", "int", "list", "str", "tuple"), "builtins"
)
_KEYWORDS = (*keyword.kwlist, "__debug__")
_BASE = (*dir(object), "_call", "_client", "_live")  # what the classes of modules inherit
_PARAMETERS = {sent: name for name, sent in WIRE_NAMES.items()}
_LIVE = "live"  # the attribute of a client next to its modules


def python_module(description: Description) -> str:
    """The source of the module."""
    types = _Types(description)
    faces = [*_face("Async", description, types), *_face("", description, types)]
    return "\n".join([_HEAD, *types.lines(), *faces]) + "\n"


def _face(prefix: str, description: Description, types: _Types) -> Iterator[str]:
    """The classes of one face, whose names begin with a prefix: of modules, of their live queries, and of both."""
    used = {*_KEYWORDS, *_BASE, _LIVE}
    known = sorted(description.modules().items(), key=lambda module: "." in module[0])  # plain names stay as they are
    modules = {unique_name(_identifier(module), used): functions for module, functions in known}
    watched = {name: [one for one in functions if one.kind == "query"] for name, functions in modules.items()}
    for kind, found, write in (("Calls", modules, _call), ("Live", watched, _watch)):
        for name, functions in found.items():
            yield from ("", "", f"class _{prefix}{kind}_{name}({prefix}Module):")
            yield from [] if functions else ["    pass"]
            used = {*_KEYWORDS, *_BASE}
            for function in functions:
                yield from write(prefix, unique_name(_identifier(function.name), used), function, types)
    yield from ("", "", f"class _{prefix}Live:", f"    def __init__(self, client: {prefix}Client) -> None:")
    yield from [f"        self.{name} = _{prefix}Live_{name}(client)" for name in modules] or ["        pass"]
    yield from ("", "", f"class {prefix}Api:", '    """The public functions; in `live` the queries, live."""', "")
    yield f"    def __init__(self, client: {prefix}Client) -> None:"
    yield from (f"        self.{name} = _{prefix}Calls_{name}(client)" for name in modules)
    yield f"        self.{_LIVE} = _{prefix}Live(client)"


def _call(prefix: str, name: str, function: FunctionDescription, types: _Types) -> Iterator[str]:
    begin, wait = ("async def", "await ") if prefix else ("def", "")
    returns, reader = types.result(function.returns)
    own, parameters, target = _parameters(function, types, reader)
    yield from ("", f"    {begin} {name}({parameters}) -> {returns}:", *_docstring(function.about))
    yield f'        return {wait}{own}._call("{function.kind}", {target}, {reader})'


def _watch(prefix: str, name: str, query: FunctionDescription, types: _Types) -> Iterator[str]:
    returns, reader = types.result(query.returns)
    own, parameters, target = _parameters(query, types, reader)
    answers = f"{types.word(f'Abstract{prefix}ContextManager')}[{types.word(f'{prefix}Iterator')}[{returns}]]"
    yield from ("", f"    def {name}({parameters}) -> {answers}:", *_docstring(query.about))
    yield f"        return {own}._live({target}, {reader})"


def _parameters(function: FunctionDescription, types: _Types, reader: str) -> tuple[str, str, str]:
    """The name of a method's own object, its parameters, and the call of the function with them."""
    fields, required = function.arguments["properties"], function.arguments["required"]
    used = {*_KEYWORDS, reader}
    names = {sent: unique_name(_identifier(_PARAMETERS.get(sent, sent)), used) for sent in fields}
    own = unique_name("_self" if "self" in used else "self", used)
    omitted = f" = {types.word('OMITTED')}"
    written = [
        f"{names[sent]}: {types.type(schema)}{'' if sent in required else omitted}"
        for sent, schema in sorted(fields.items(), key=lambda field: field[0] not in required)
    ]
    given = ", ".join(f'"{sent}": {name}' for sent, name in names.items())
    return own, ", ".join([own, *["*"] * bool(written), *written]), f'"{function.module}:{function.name}", {{{given}}}'


def _docstring(text: str, indent: str = "        ") -> Iterator[str]:
    first, *more = text.replace("\\", "\\\\").replace('"', '\\"').splitlines() or [""]
    if more:
        yield from (f'{indent}"""{first}', *(f"{indent}{line}".rstrip() for line in more), f'{indent}"""')
    elif first:
        yield f'{indent}"""{first}"""'


def _identifier(name: str) -> str:
    """A name as an identifier; in a class, two underscores in front would hide it."""
    return re.sub(r"^__+(?!.*__$)", "_", re.sub(r"\W", "_", name))


class _Types:
    """Writes schemas as annotations, and collects the lines that must stand before them."""

    def __init__(self, description: Description) -> None:
        self._description = description
        # In a class that has a member called list, this word is no type: there it is spelled otherwise.
        members = {function.name for function in description.functions}
        for schema in (*(function.arguments for function in description.functions), *description.types.values()):
            members |= schema.get("properties", {}).keys()
        self._used = {*_KEYWORDS, *_WORDS, "Api", "AsyncApi", *members}
        self._others = {name: unique_name(f"_{name}", self._used) for name in _WORDS if name in members}
        self._names = type_names((name for name, schema in description.types.items() if _is_closed(schema)), self._used)
        self._ids: dict[str, str] = {}
        self._readers: dict[str, str] = {}

    def lines(self) -> list[str]:
        """Write the lines before the functions, after all functions have been written."""
        classes = [line for name, written in self._names.items() for line in self._class(name, written)]
        others = [f"from {_WORDS[name]} import {name} as {other}" for name, other in self._others.items()]
        ids = [f'{name} = NewType("{name}", str)' for name in self._ids.values()]
        readers = [f"{reader}: TypeAdapter[{type_}] = TypeAdapter({type_})" for type_, reader in self._readers.items()]
        return [*others, *ids, *classes, "", "", *readers]

    def result(self, schema: Schema) -> tuple[str, str]:
        """The type of a result, and the name of its reader."""
        written = self.type(schema)
        return written, self._readers.setdefault(written, f"_RESULT_{len(self._readers)}")

    def type(self, schema: Schema, within: tuple[str, ...] = ()) -> str:
        """The annotation for a schema. Types that are no class are written out, `within` are those under way."""
        named = self._description.resolve(schema)
        if named is not None:
            name, found = named
            return self._names.get(name) or ("Any" if name in within else self.type(found, (*within, name)))
        kind = str(schema.get("type"))
        if (values := literals(schema)) and all(isinstance(value, str | int | None) for value in values):
            return f"{self.word('Literal')}[{', '.join(map(repr, values))}]"
        if union := options(schema):
            return " | ".join(dict.fromkeys(self.type(option, within) for option in union))
        if kind in {"array", "object"}:
            return self._collection(schema, within)
        if kind == "string" and "x-id" in schema:
            if (table := schema["x-id"]) not in self._ids:
                parts = re.split(r"[\W_]+", table)
                self._ids[table] = unique_name("".join(part.capitalize() for part in parts) + "Id", self._used)
            return self._ids[table]
        form = schema.get("format") or schema.get("contentEncoding")
        return self.word(_FORMATS.get(str(form)) or _TYPES.get(kind, "Any"))

    def _collection(self, schema: Schema, within: tuple[str, ...]) -> str:
        if parts := schema.get("prefixItems"):
            return f"{self.word('tuple')}[{', '.join(self.type(part, within) for part in parts)}]"
        if schema["type"] == "array":
            return f"{self.word('list')}[{self.type(schema.get('items', {}), within)}]"
        more = {} if schema.get("properties") else schema.get("additionalProperties")
        return f"{self.word('dict')}[{self.word('str')}, {self.type(more if isinstance(more, dict) else {}, within)}]"

    def word(self, name: str) -> str:
        """A name of Python's own as classes write it."""
        return self._others.get(name, name)

    def _class(self, name: str, written: str) -> Iterator[str]:
        schema = self._description.types[name]
        required = schema.get("required", ())
        fields = {
            key: self.type(one) if key in required else f"{self.word('NotRequired')}[{self.type(one)}]"
            for key, one in schema["properties"].items()
        }
        if not all(map(_is_attribute, fields)):
            yield from ("", f'{written} = TypedDict("{written}", {fields!r})')
            return
        yield from ("", "", f"class {written}(TypedDict):", *_docstring(schema.get("description", ""), "    "))
        yield from (f"    {key}: {type_}" for key, type_ in fields.items())


def _is_closed(schema: Schema) -> bool:
    """Whether a type is an object of known fields, and no others."""
    fields = schema.get("properties", {})
    return bool(fields) and "" not in fields and not schema.get("additionalProperties")


def _is_attribute(name: str) -> bool:
    """Whether a class can have a field of this name."""
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and name[:2] != "__"
