"""Generated types and values on every road to a JavaScript client: all arrive as typed, or are refused.

The client reads and writes values by its own rules, so what it shows in Convex's JSON is the proof of what it has.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, NamedTuple, NewType

import convex
import httpx
import pytest
from pydantic import BaseModel, Field, RootModel, computed_field
from stage.clients import ClientError, client, node_modules
from stage.needs import examples, program
from stage.sockets import listening
from typing_extensions import TypedDict

from penstock import App, Int64, MutationCtx, Page, PaginationOptions, QueryCtx, ResultInvalid, Table, asgi_app
from penstock.client import AsyncClient
from penstock.client.encoding import decode
from penstock.clock import random_of
from penstock.codegen.description import describe, literals, options, plain_type
from penstock.codegen.functionspec import function_spec
from penstock.codegen.python import python_module
from penstock.codegen.typescript import TypeWriter
from penstock.testing import TestApp
from penstock.wire.outgoing import Format, encode_result

Serial = NewType("Serial", Int64)
EDGES = [0, 1, -1, 7, 2**31, 2**53 - 1, 2**53, -(2**53)]
LARGE = [2**53 + 1, -(2**53) - 1, 2**60, 2**63 - 1, -(2**63)]
KEYS = [
    "", "_", "_id", "__proto__", "constructor", "a b", "é", "a\n", "\x7f", "\x1f", "$", "$a", "$bytes", "a$",
    "a" * 1024, "a" * 1025, "\u2028", "~", " ", "'", '"', "\\", "a.b", "0", "hasOwnProperty",
]  # fmt: skip


class Pair(NamedTuple):
    left: Int64
    right: int


class Counts(TypedDict, total=False):
    plain: int
    large: Int64


class Inner(BaseModel):
    plain: int = 3
    large: Annotated[Int64, Field(alias="theLarge", ge=-(2**63))] = 4  # a default is not validated


class Shown(BaseModel):
    large: Int64

    @computed_field
    def half(self) -> Int64:
        return self.large // 2


@dataclasses.dataclass
class Plain:
    plain: int
    large: Int64 | None = None


class Root(RootModel[list[Int64]]):
    pass


def tagged(value: int) -> dict[str, str]:
    return {"$integer": b64encode(value.to_bytes(8, "little", signed=True)).decode()}


@dataclasses.dataclass
class Case:
    """A value, how JavaScript is to have it, how plain JSON has it, and the places of integers it cannot have."""

    value: Any
    there: Any
    clean: Any
    refused: tuple[str, ...] = ()


Make = Callable[[Any], Case]
Kind = tuple[Any, Make]


def plain(chance: Any) -> Case:
    value = chance.choice([*EDGES, *EDGES, *LARGE])
    return Case(value, value, value, ("",) if abs(value) > 2**53 else ())


def large(chance: Any) -> Case:
    value = chance.choice(EDGES + LARGE)
    return Case(value, tagged(value), str(value))


def same(*values: Any) -> Make:
    def make(chance: Any) -> Case:
        value = chance.choice(values)
        return Case(value, value, value)

    return make


def together(parts: dict[str, Case], build: Callable[[list[Any]], Any], names: list[str] | None = None) -> Case:
    """An array of parts, or with names an object of them."""

    def gather(values: list[Any]) -> Any:
        return values if names is None else dict(zip(names, values, strict=True))

    refused = tuple(name + place for name, part in parts.items() for place in part.refused)
    values, there, clean = ([getattr(part, word) for part in parts.values()] for word in ("value", "there", "clean"))
    return Case(build(values), gather(there), gather(clean), refused)


def array_of(make: Make, build: Callable[[list[Any]], Any] = list) -> Make:
    return lambda chance: together({f"[{place}]": make(chance) for place in range(chance.randrange(4))}, build)


def object_of(fields: dict[str, Make], build: Callable[..., Any]) -> Make:
    def make(chance: Any) -> Case:
        parts = {name: field(chance) for name, field in fields.items()}
        names = [*parts]
        dotted = {f".{name}": part for name, part in parts.items()}
        return together(dotted, lambda values: build(**dict(zip(names, values, strict=True))), names)

    return make


def shown(chance: Any) -> Case:
    one = large(chance)
    half = one.value // 2
    there, clean = {"large": one.there, "half": tagged(half)}, {"large": one.clean, "half": str(half)}
    return Case(Shown(large=one.value), there, clean)


inner = object_of({"plain": plain, "theLarge": large}, lambda **values: Inner.model_validate(values))
SINGLE: list[Kind] = [
    (int, plain),
    (Int64, large),
    (Serial, large),
    (str, same("", "7", "é")),
    (bool, same(True, False)),
    (Inner, inner),
    (Counts, object_of({"plain": plain, "large": large}, dict)),
    (Plain, object_of({"plain": plain, "large": large}, Plain)),
    (Pair, lambda chance: together({"[0]": large(chance), "[1]": plain(chance)}, lambda values: Pair(*values))),
    (Root, array_of(large, Root)),
    (Int64 | str, large),
    (bool | Int64, same(True)),
    (Any, plain),
    (Any, inner),
    (Shown, shown),
]


def kinds(chance: Any, depth: int = 0) -> Kind:
    if depth > 2 or chance.random() < 0.4:
        single: Kind = chance.choice(SINGLE)
        return single
    annotation: Any
    several: Any = tuple
    annotation, make = kinds(chance, depth + 1)
    form = chance.randrange(5)
    if form == 0:
        return list[annotation], array_of(make)
    if form == 1:
        return annotation | None if annotation is not Any else Any, make
    if form == 2:
        return several[annotation, ...], array_of(make, tuple)
    if form == 3:
        other, make_other = kinds(chance, depth + 1)
        return several[annotation, other], lambda c: together({"[0]": make(c), "[1]": make_other(c)}, tuple)
    return dict[str, annotation], object_of({"a": make, "b": make}, dict)


def fits(description: Any, schema: Any, there: Any) -> bool:  # noqa: PLR0911 - one for each kind of type
    """Whether a value in Convex's JSON is of the type that codegen writes for a schema."""
    named = description.resolve(schema)
    if named is not None:
        return fits(description, named[1], there)
    if union := options(schema):
        return any(fits(description, one, there) for one in union)
    if values := literals(schema):
        return there in values
    match schema:
        case {"type": "array", "prefixItems": parts}:
            return all(fits(description, part, one) for part, one in zip(parts, there, strict=True))
        case {"type": "array", "items": items}:
            return isinstance(there, list) and all(fits(description, items, one) for one in there)
        case {"type": "object"}:
            fields, more = schema.get("properties", {}), schema.get("additionalProperties") or {}
            more = {} if more is True else more
            return isinstance(there, dict) and all(fits(description, fields.get(k, more), v) for k, v in there.items())
    shown = plain_type(schema, {"integer": "number", "int64": "bigint", "boolean": "boolean", "string": "string"})
    kind = {dict: "bigint", int: "number", float: "number", bool: "boolean", str: "string"}.get(type(there))
    return shown in {"any", kind} or (schema.get("type") == "null" and there is None)


def same_value(left: Any, right: Any) -> bool:
    """Equality that tells numbers from booleans and texts."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def python_value(found: Any) -> Any:
    """A value of the client for Python, which knows integers alone, or one of Convex's JSON as that client has it."""
    return decode(json.dumps(found).encode())


def function(app: App, name: str, annotation: Any, case: Case) -> None:
    async def give(ctx: QueryCtx) -> Any:
        return case.value

    async def echo(ctx: MutationCtx, value: Any) -> Any:
        return value

    give.__annotations__["return"] = annotation
    echo.__annotations__ |= {"return": annotation, "value": annotation}
    give.__name__, echo.__name__ = f"give{name}", f"echo{name}"
    app.query(give)
    app.mutation(echo)


@asynccontextmanager
async def served(app: App, url: str) -> AsyncIterator[str]:
    async with TestApp(app, url) as backend, listening(asgi_app(app, backend=backend)) as address:
        yield address


@pytest.mark.parametrize("seed", range(max(1, examples(40) // 8)))
async def test_integers_arrive_as_their_type_says_or_are_refused_by_name(database_url: str, seed: int) -> None:
    chance, app = random_of(seed), App()
    cases: list[tuple[Any, Case]] = []
    for number in range(40):
        annotation, make = kinds(chance)
        case = make(chance)
        function(app, str(number), annotation, case)
        cases.append((annotation, case))
    described = describe(app.registry)
    schemas = {one.name: one.returns for one in described.functions}
    async with (
        served(app, database_url) as url,
        client("node", url) as socket,
        client("http", url) as http,
        AsyncClient(url) as python,
        httpx.AsyncClient(base_url=url) as rest,
    ):
        for number, (annotation, case) in enumerate(cases):
            path, about = f"{__name__}:give{number}", (annotation, case)
            answer = await rest.post(f"/rest/{path.replace(':', '/')}", json={})
            assert python_value(await python.query(path)) == python_value(case.there), about
            if case.refused:
                for one in (socket, http):
                    with pytest.raises(ClientError, match="Declare Int64") as refusal:
                        await one.query(path)
                    assert any(f"result{place}:" in str(refusal.value) for place in case.refused), (
                        refusal.value,
                        about,
                    )
                assert answer.status_code == 500
                assert "Declare Int64" in answer.text
                continue
            assert answer.json() == case.clean, about
            for one in (socket, http):
                assert same_value(await one.query(path), case.there), about
            assert fits(described, schemas[f"give{number}"], case.there), about
            if "Shown" in repr(annotation):
                continue  # what is computed is no argument
            echo = path.replace("give", "echo")
            for one in (socket, http):
                assert same_value(await one.mutation(echo, value=case.there), case.there), about
            again = await rest.post(f"/rest/{echo.replace(':', '/')}", json={"value": case.clean})
            assert again.json() == case.clean, about


class Meter(BaseModel):
    total: Int64 = 5


class Reading(Table):
    count: int
    serial: Int64
    many: list[Int64]
    meter: Meter = Meter()
    labels: dict[str, int]
    note: str | None = Field(default=None, exclude_if=lambda note: note is None)


stored = App()


@stored.mutation
async def keep(
    ctx: MutationCtx, count: int, serial: Int64, labels: dict[str, int] | None = None, note: str | None = None
) -> Int64:
    row = Reading(count=count, serial=serial, many=[serial], labels=labels or {}, note=note)
    row.meter.total = serial
    await ctx.db.insert(row)
    return serial


@stored.query
async def readings(ctx: QueryCtx) -> list[Reading]:
    return await ctx.db.query(Reading).collect()


@stored.query
async def page(ctx: QueryCtx, pagination_opts: PaginationOptions) -> Page[Reading]:
    return await ctx.db.query(Reading).paginate(pagination_opts)


@stored.query
async def labels(ctx: QueryCtx) -> list[dict[str, int]]:
    return [row.labels for row in await ctx.db.query(Reading).collect()]


async def test_rows_bear_what_their_columns_declare_and_one_that_cannot_be_said_is_named(database_url: str) -> None:
    here, least = __name__, -(2**63)
    async with (
        TestApp(stored, database_url) as backend,
        listening(asgi_app(stored, backend=backend)) as url,
        client("node", url) as socket,
        client("http", url) as http,
        client("python", url) as theirs,
        AsyncClient(url) as python,
        httpx.AsyncClient(base_url=url) as rest,
    ):
        await socket.subscribe("all", f"{here}:readings")
        assert await http.mutation(f"{here}:keep", count=1, serial=tagged(least)) == tagged(least)
        wanted = {"count": 1, "serial": tagged(least), "many": [tagged(least)], "meter": {"total": tagged(least)}}
        seen = await socket.comes(lambda seen: bool(seen["all"].get("value")))
        assert seen["all"]["value"][0].items() >= wanted.items()
        assert "note" not in seen["all"]["value"][0], "it is None"
        assert [one.note for one in await backend.run_query(readings)] == [None]
        found = await http.query(f"{here}:page", paginationOpts={"numItems": 5, "cursor": None})
        assert found["page"][0].items() >= wanted.items()
        (row,) = await theirs.query(f"{here}:readings")
        assert row.items() >= {**wanted, "count": 1.0}.items()
        (row,) = (await rest.post(f"/rest/{here}/readings", json={})).json()
        clean = {"count": 1, "serial": str(least), "many": [str(least)], "meter": {"total": str(least)}}
        assert row.items() >= clean.items()
        await python.mutation(f"{here}:keep", count=2**60, serial=1)
        seen = await socket.comes(lambda seen: "error" in seen["all"])
        identifier = (await python.query(f"{here}:readings"))[1]["_id"]
        assert f"result[1] {identifier}.count: The integer {2**60}" in seen["all"]["error"]["message"]
        assert (await theirs.query(f"{here}:readings"))[1]["count"] == tagged(2**60)
        given = {"count": 1, "serial": 1, "labels": {"é": 1}}  # a key that Convex's encoding does not have
        body = {"path": f"{here}:keep", "args": given, "format": "convex_encoded_json"}
        assert (await rest.post("/api/mutation", json=body)).status_code == 400
        assert (await rest.post(f"/rest/{here}/keep", json=given)).status_code == 200
        with pytest.raises(ClientError, match=r"result\[2\]: The key 'é'"):
            await http.query(f"{here}:labels")


def test_generated_types_say_bigint() -> None:
    described = describe((one for one in stored.registry if one.public), stored.definitions())
    writer = TypeWriter(described)
    (written,) = [writer.structure(one) for one in described.types.values() if one.get("x-table") == "reading"]
    for part in ("count: number", "serial: bigint", "many: Array<bigint>", "note?: string }"):
        assert part in written
    spec = {one["identifier"].partition(":")[2]: one for one in function_spec(described, "http://x")["functions"]}
    assert spec["keep"]["returns"] == {"type": "bigint"}
    assert spec["keep"]["args"]["value"]["serial"] == {"fieldType": {"type": "bigint"}, "optional": False}
    assert "serial: int" in python_module(described)


def carried_by_javascript(keys: list[str]) -> list[bool]:
    """For each key whether an object keeps it on its way to Convex's client, and on its way back."""
    source = """
        const { convexToJson, jsonToConvex } = require("convex/values");
        const kept = (key, change) => {
          try {
            return Object.keys(change(JSON.parse(`{${JSON.stringify(key)}: 1}`)))[0] === key;
          } catch { return false; }
        };
        const keys = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
        console.log(JSON.stringify(keys.map((key) => [kept(key, jsonToConvex), kept(key, convexToJson)])));
    """
    command = [program("node", "nodejs"), "-e", source]
    done = subprocess.run(command, input=json.dumps(keys).encode(), capture_output=True, check=True, cwd=node_modules())
    found = json.loads(done.stdout)
    assert all(there == back for there, back in found)
    return [there for there, _back in found]


def is_written(key: str, form: Format) -> bool:
    try:
        encode_result([{key: 1}], form)
    except ResultInvalid as error:
        return not (repr(key[:100]) in str(error) and "result[0]" in str(error))
    return True


def carried_by_python(key: str) -> bool:
    given: Any = {key: 1.0}
    try:
        return bool(convex.json_to_convex(given) == given == convex.convex_to_json(given))
    except (TypeError, ValueError):
        return False


def test_keys_are_refused_where_a_client_would_refuse_or_lose_them() -> None:
    chance = random_of(7)
    letters = "a$_é\u2028\n\x00 ~\x7f\U0001f600"
    keys = KEYS + ["".join(chance.choices(letters, k=chance.randrange(5))) for _ in range(examples(2000))]
    assert [is_written(key, Format.ENCODED) for key in keys] == carried_by_javascript(keys)
    assert [is_written(key, Format.ENCODED_FLOATS) for key in keys] == [
        carried_by_python(key) and key != "__proto__" for key in keys
    ]
    assert [is_written(key, Format.TAGGED) for key in keys] == [key[:1] != "$" for key in keys]
    assert all(is_written(key, form) for key in keys for form in (Format.JSON, Format.CLEAN))
