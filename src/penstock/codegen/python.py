"""A typed module for Python: the functions of an app as methods, over `penstock.client`.

Types are `TypedDict`, of the wire's names. Values are Python's own: datetimes, decimals, UUIDs, bytes.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator

from penstock.codegen.description import Description, FunctionDescription, Schema, literals, options, type_name
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
_IMPORTED = re.findall(r"\b[A-Z_a-z]+\b", _HEAD.partition("annotations\n")[2])
_TYPES = {"integer": "int", "number": "float", "boolean": "bool", "null": "None", "string": "str"}
_TIMES = {"date-time": "datetime", "date": "date", "time": "time", "duration": "timedelta"}
_FORMATS = {**_TIMES, "uuid": "UUID", "decimal": "Decimal", "int64": "int", "base64": "bytes"}
_COLLECTIONS = ("list", "dict", "tuple", "Any")
_PARAMETERS = {sent: name for name, sent in WIRE_NAMES.items()}
_LIVE = "live"  # the attribute of a client beside its modules


def python_module(description: Description) -> str:
    """The source of the module."""
    types = _Types(description)
    faces = [*_face("Async", description, types), *_face("", description, types)]
    return "\n".join([_HEAD, *types.lines(), *faces]) + "\n"


def _face(prefix: str, description: Description, types: _Types) -> Iterator[str]:
    """The classes of one face, whose names begin with a prefix: of modules, of their live queries, and of both."""
    modules = {_attribute(module): functions for module, functions in description.modules().items()}
    watched = {name: [one for one in functions if one.kind == "query"] for name, functions in modules.items()}
    for kind, found, write in (("Calls", modules, _call), ("Live", watched, _watch)):
        for name, functions in found.items():
            yield from ("", "", f"class _{prefix}{kind}_{name}({prefix}Module):")
            yield from [] if functions else ["    pass"]
            yield from (line for function in functions for line in write(prefix, function, types))
    yield from ("", "", f"class _{prefix}Live:", f"    def __init__(self, client: {prefix}Client) -> None:")
    yield from [f"        self.{name} = _{prefix}Live_{name}(client)" for name in modules] or ["        pass"]
    yield from ("", "", f"class {prefix}Api:", '    """The public functions; in `live` the queries, live."""', "")
    yield f"    def __init__(self, client: {prefix}Client) -> None:"
    yield from (f"        self.{name} = _{prefix}Calls_{name}(client)" for name in modules)
    yield f"        self.{_LIVE} = _{prefix}Live(client)"


def _call(prefix: str, function: FunctionDescription, types: _Types) -> Iterator[str]:
    begin, wait = ("async def", "await ") if prefix else ("def", "")
    returns, reader = types.result(function.returns)
    yield from ("", f"    {begin} {function.name}(self{_parameters(function, types)}) -> {returns}:")
    yield from _docstring(function.about)
    yield f'        return {wait}self._call("{function.kind}", {_target(function)}, {reader})'


def _watch(prefix: str, query: FunctionDescription, types: _Types) -> Iterator[str]:
    returns, reader = types.result(query.returns)
    answers = f"Abstract{prefix}ContextManager[{prefix}Iterator[{returns}]]"
    yield from ("", f"    def {query.name}(self{_parameters(query, types)}) -> {answers}:")
    yield from _docstring(query.about)
    yield f"        return self._live({_target(query)}, {reader})"


def _parameters(function: FunctionDescription, types: _Types) -> str:
    fields, required = function.arguments["properties"], function.arguments["required"]
    written = [
        f"{_PARAMETERS.get(name, name)}: {types.type(schema)}{'' if name in required else ' = OMITTED'}"
        for name, schema in sorted(fields.items(), key=lambda field: field[0] not in required)
    ]
    return ", ".join(["", "*", *written]) if written else ""


def _target(function: FunctionDescription) -> str:
    given = (f'"{name}": {_PARAMETERS.get(name, name)}' for name in function.arguments["properties"])
    return f'"{function.module}:{function.name}", {{{", ".join(given)}}}'


def _docstring(text: str, indent: str = "        ") -> Iterator[str]:
    first, *more = text.replace("\\", "\\\\").replace('"', '\\"').splitlines() or [""]
    if more:
        yield from (f'{indent}"""{first}', *(f"{indent}{line}".rstrip() for line in more), f'{indent}"""')
    elif first:
        yield f'{indent}"""{first}"""'


def _attribute(module: str) -> str:
    name = module.replace(".", "_")
    return f"{name}_" if name == _LIVE or keyword.iskeyword(name) else name


class _Types:
    """Writes schemas as annotations, and collects the lines that must stand before them."""

    def __init__(self, description: Description) -> None:
        self._description = description
        # In a class that has a member called list, this word is no type: there it is spelled otherwise.
        members = {function.name for function in description.functions}
        for schema in (*(function.arguments for function in description.functions), *description.types.values()):
            members |= schema.get("properties", {}).keys()
        self._others = {
            name: f"_{name}" for name in (*_COLLECTIONS, *_TYPES.values(), *_FORMATS.values()) if name in members
        }
        closed = [name for name, schema in description.types.items() if _is_closed(schema)]
        self._names = {name: type_name(name, {*_IMPORTED, *members}) for name in closed}
        self._ids: dict[str, str] = {}
        self._readers: dict[str, str] = {}

    def lines(self) -> list[str]:
        """What stands before the functions, all of which have been written."""
        classes = [line for name, written in self._names.items() for line in self._class(name, written)]
        others = [f"{other} = {name}" for name, other in self._others.items()]
        ids = [f'{name} = NewType("{name}", str)' for name in self._ids.values()]
        readers = [f"{reader}: TypeAdapter[{type_}] = TypeAdapter({type_})" for type_, reader in self._readers.items()]
        return [*others, *ids, *classes, "", "", *readers]

    def result(self, schema: Schema) -> tuple[str, str]:
        """The type of a result, and the name of its reader."""
        written = self.type(schema)
        return written, self._readers.setdefault(written, f"_RESULT_{len(self._readers)}")

    def type(self, schema: Schema, within: tuple[str, ...] = ()) -> str:
        """The annotation for a schema. Types that are no class are written out, `within` are those under way."""
        named = self._description.named(schema)
        if named is not None:
            name, found = named
            return self._names.get(name) or ("Any" if name in within else self.type(found, (*within, name)))
        kind = str(schema.get("type"))
        if values := literals(schema):
            return f"Literal[{', '.join(map(repr, values))}]"
        if union := options(schema):
            return " | ".join(dict.fromkeys(self.type(option, within) for option in union))
        if kind in {"array", "object"}:
            return self._collection(schema, within)
        if kind == "string" and "x-id" in schema:
            parts = re.split(r"[\W_]+", schema["x-id"])
            return self._ids.setdefault(schema["x-id"], "".join(part.capitalize() for part in parts) + "Id")
        form = schema.get("format") or schema.get("contentEncoding")
        return self._word(_FORMATS.get(str(form)) or _TYPES.get(kind, "Any"))

    def _collection(self, schema: Schema, within: tuple[str, ...]) -> str:
        if parts := schema.get("prefixItems"):
            return f"{self._word('tuple')}[{', '.join(self.type(part, within) for part in parts)}]"
        if schema["type"] == "array":
            return f"{self._word('list')}[{self.type(schema.get('items', {}), within)}]"
        more = {} if schema.get("properties") else schema.get("additionalProperties")
        return f"{self._word('dict')}[{self._word('str')}, {self.type(more if isinstance(more, dict) else {}, within)}]"

    def _word(self, name: str) -> str:
        return self._others.get(name, name)

    def _class(self, name: str, written: str) -> Iterator[str]:
        schema = self._description.types[name]
        required = schema.get("required", ())
        fields = {
            key: self.type(one) if key in required else f"NotRequired[{self.type(one)}]"
            for key, one in schema["properties"].items()
        }
        yield from ("", "", f"class {written}(TypedDict):", *_docstring(schema.get("description", ""), "    "))
        yield from (f"    {key}: {type_}" for key, type_ in fields.items())


def _is_closed(schema: Schema) -> bool:
    """Whether a type is an object of known fields, and no others; all of them with names that a class can have."""
    names = schema.get("properties", {})
    sayable = all(name.isidentifier() and not keyword.iskeyword(name) and name[:2] != "__" for name in names)
    return bool(names) and sayable and not schema.get("additionalProperties")
