"""Types for Convex's clients in TypeScript: of functions in ``api.d.ts``, of rows and ids in ``dataModel.d.ts``.

A value is typed as these clients decode it: bytes are an `ArrayBuffer`, dates and decimals are strings.
"""

from __future__ import annotations

import json
import re

from penstock.codegen.description import (
    SAME,
    Description,
    FunctionDescription,
    Schema,
    literals,
    options,
    plain_type,
    type_names,
)

_HEAD = "// Written by penstock codegen; changes are lost.\n\n"
_API = _HEAD + 'import { anyApi } from "convex/server";\n\nexport const api = anyApi;\n'
_IMPORTS = 'import type { FunctionReference, PaginationOptions, PaginationResult } from "convex/server";\n'
_MODEL = """import type { GenericId } from "convex/values";

export type TableNames = keyof Rows;
export type Id<Table extends string> = GenericId<Table>;
export type Doc<Table extends TableNames> = Rows[Table];
"""
# What types may not be called: words of the language, and names that stand in these files.
_USED = """
any as await bigint boolean break case catch class const continue debugger default delete do else enum export extends
false finally for function if implements import in infer instanceof interface keyof let never new null number object
package private protected public readonly return static string super switch symbol this throw true try typeof undefined
unique unknown var void while with yield
api Array ArrayBuffer Doc FunctionReference GenericId Id PaginationOptions PaginationResult Rows TableNames
"""
_PLAIN = {"integer": "number", "int64": "bigint", "base64": "ArrayBuffer"} | {same: same for same in SAME}
_NAME = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)


def typescript_files(description: Description) -> dict[str, str]:
    """The files of a client in TypeScript, by name."""
    writer = TypeWriter(description)
    return {"api.d.ts": _api(description, writer), "api.js": _API, "dataModel.d.ts": _model(description, writer)}


def _api(description: Description, writer: TypeWriter) -> str:
    names = ", ".join(["Doc", "Id", *writer.names.values()])
    imports = f'{_IMPORTS}import type {{ {names} }} from "./dataModel.js";\n'
    modules = [_module(module, functions, writer) for module, functions in description.modules().items()]
    return f"{_HEAD}{imports}\nexport declare const api: {' & '.join(modules) or '{}'};\n"


def _module(module: str, functions: list[FunctionDescription], writer: TypeWriter) -> str:
    """The functions of a module, `a.b` or `a/b` as an object in an object; objects of the same name add up."""
    path = re.split("[./]", module)
    lines = [" ".join(f"{{ {_key(part)}:" for part in path) + " {"]
    for function in functions:
        lines += [*_comment(function.about, "  "), f"  {_key(function.name)}: {writer.function(function)};"]
    return "\n".join([*lines, "}" + " }" * len(path)])


def _model(description: Description, writer: TypeWriter) -> str:
    rows = {schema["x-table"]: schema for schema in description.types.values() if "x-table" in schema}
    lines = ["", "export interface Rows {"]
    lines += [f"  {json.dumps(name)}: {writer.structure(row)};" for name, row in rows.items()]
    lines.append("}")
    for name, written in writer.names.items():
        schema = description.types[name]
        lines += ["", *_comment(schema.get("description", "")), f"export type {written} = {writer.structure(schema)};"]
    return _HEAD + _MODEL + "\n".join(lines) + "\n"


def _comment(text: str, indent: str = "") -> list[str]:
    lines = text.replace("*/", "* /").splitlines()
    if len(lines) > 1:
        return [f"{indent}/**", *(f"{indent} * {line}".rstrip() for line in lines), f"{indent} */"]
    return [f"{indent}/** {line} */" for line in lines]


class TypeWriter:
    """Writes schemas as types."""

    def __init__(self, description: Description) -> None:
        self._description = description
        own = [name for name, schema in description.types.items() if not schema.keys() & {"x-table", "x-pages"}]
        # the types that have a name of their own, by their name in the description
        self.names = type_names(own, set(_USED.split()))

    def function(self, function: FunctionDescription) -> str:
        arguments, returns = self.type(function.arguments), self.type(function.returns)
        return f'FunctionReference<"{function.kind}", "public", {arguments}, {returns}>'

    def type(self, schema: Schema) -> str:
        """The type of a schema; of one that has a name, its name."""
        named = self._description.resolve(schema)
        if named is None:
            return self.structure(schema)
        name, found = named
        if "x-table" in found:
            return f"Doc<{json.dumps(found['x-table'])}>"
        if "x-pages" not in found:
            return self.names[name]
        if found["x-pages"] == "options":
            return "PaginationOptions"
        return f"PaginationResult<{self.type(found['properties']['page']['items'])}>"

    def structure(self, schema: Schema) -> str:
        """The type of a schema in full."""
        if union := [json.dumps(value) for value in literals(schema)] or list(map(self.type, options(schema))):
            return " | ".join(dict.fromkeys(union))
        match schema:
            case {"type": "array", "prefixItems": parts}:
                return f"[{', '.join(map(self.type, parts))}]"
            case {"type": "array"}:
                return f"Array<{self.type(schema.get('items', {}))}>"
            case {"type": "object"}:
                return self._object(schema)
            case {"type": "string", "x-id": table}:
                return f"Id<{json.dumps(table)}>"
        return plain_type(schema, _PLAIN)

    def _object(self, schema: Schema) -> str:
        more, fields = schema.get("additionalProperties"), schema.get("properties", {})
        if not fields and more is not False:
            return f"{{ [key: string]: {self.type(more) if isinstance(more, dict) else 'any'} }}"
        required = schema.get("required", ())
        parts = [f"{_key(name)}{'' if name in required else '?'}: {self.type(one)}" for name, one in fields.items()]
        if more:
            parts.append("[key: string]: any")
        return f"{{ {'; '.join(parts)} }}" if parts else "{}"


def _key(name: str) -> str:
    return name if _NAME.fullmatch(name) else json.dumps(name)
