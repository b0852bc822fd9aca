"""Names of TypeScript, Convex and Python in a program: its generated clients compile and run, and the wire has them."""

from __future__ import annotations

import asyncio
import builtins
import importlib
import inspect
import json
import keyword
import re
import sys
from collections.abc import Iterable
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Generic, Literal, Self, TypeVar

import pytest
from clients.test_codegen import SETTINGS, public, run, write
from pydantic import BaseModel, Field, RootModel, create_model
from stage.clients import COMPILERS, node_modules
from stage.needs import LONG, program
from stage.sockets import listening
from typing_extensions import TypeAliasType, TypedDict

from penstock import App, Id, MutationCtx, Page, PaginationOptions, QueryCtx, Table, asgi_app
from penstock import public as anybody
from penstock.client import AsyncClient
from penstock.schema.table import snake_case
from penstock.testing import TestApp

HERE = Path(__file__).parent

DECLARED = re.compile(
    r"^\s*(?:declare )?(?:abstract )?(?:interface|type|class|function|var|let|const|namespace) +(\w+)", re.MULTILINE
)
MEMBER = re.compile(r"^\s*(?:readonly )?([A-Za-z_]\w*)\??[(:<]", re.MULTILINE)
WORDS = """
any unknown never void number string boolean symbol object undefined null bigint break case catch class const continue
debugger default delete do else enum export extends false finally for function if import in instanceof new null return
super switch this throw true try typeof var while with as implements interface let package private protected public
static yield abstract accessor asserts assert async await constructor declare from get global infer intrinsic is keyof
module namespace out override readonly require satisfies set type unique using of prototype then
api anyApi Doc Id Rows TableNames GenericId FunctionReference PaginationOptions PaginationResult
Api AsyncApi Module AsyncModule Client AsyncClient OMITTED TypeAdapter NewType NotRequired TypedDict Literal Any Decimal
UUID datetime date time timedelta AsyncIterator Iterator AbstractContextManager AbstractAsyncContextManager live self
cls client _call _live _client
"""
USE = """import {{ ConvexHttpClient }} from "convex/browser";
import {{ api }} from "./{0}/api.js";
import type {{ {1} }} from "./{0}/dataModel.js";
export type Used = [{1}];
export async function use(client: ConvexHttpClient) {{
  const more = {{ a: [new ArrayBuffer(1)] }};
  const plays: {{ [key: string]: number }} = await client.query(api.here.plays, {{ more }});
  // @ts-expect-error it is a number
  const wrong: string = plays["a"];
  // @ts-expect-error it is bytes
  void client.query(api.here.plays, {{ more: {{ a: ["a"] }} }});
  return [wrong, (await client.query(api.here.pages, {{ paginationOpts: {{ numItems: 1, cursor: null }} }})).isDone];
}}
"""


make_model: Any = create_model  # type checkers know these with literal names and types only
make_dict: Any = TypedDict
make_enum: Any = Enum
tuples: Any = tuple
ids_of: Any = Id


@cache
def names(*, members: bool = False) -> list[str]:
    """What TypeScript, Convex and Python call their own; with the members of its types. A short run has some."""
    files = (node_modules(COMPILERS) / "node_modules" / "@typescript").glob("*/lib/lib.es*.d.ts")
    text = "".join(file.read_text("utf-8") for file in files)
    found = {*DECLARED.findall(text), *WORDS.split(), *(MEMBER.findall(text) if members else ())}
    assert {"Record", "Promise", "parseInt", *["toFixed"] * members} < found
    own = known()
    others = sorted(found.difference(own))
    return sorted([*own, *(others if LONG else others[::8])])


def known() -> list[str]:
    """Those of Python, and of the files of clients."""
    return sorted({*WORDS.split(), *keyword.kwlist, *keyword.softkwlist, *dir(builtins)})


def arguments(names: Iterable[str]) -> list[str]:
    """Those that Python lets parameters have."""
    return [name for name in names if not keyword.iskeyword(name) and name != "__debug__"]


def declare(app: App, function: str, returns: Any, answer: Any, /, **takes: Any) -> None:
    """A query of any name."""

    async def handler(ctx: QueryCtx, /, **given: Any) -> Any:
        return answer(**given)

    parameters = {"ctx": QueryCtx, **takes}
    kinds = [inspect.Parameter.POSITIONAL_ONLY, *[inspect.Parameter.KEYWORD_ONLY] * len(takes)]
    handler.__annotations__ = parameters | {"return": returns}
    handler.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # which inspect reads
        [inspect.Parameter(*one, annotation=parameters[one[0]]) for one in zip(parameters, kinds, strict=True)],
        return_annotation=returns,
    )
    handler.__module__, _, handler.__name__ = function.rpartition(":")
    handler.__qualname__ = handler.__name__
    app.query(access=anybody)(handler)


def program_of(types: Iterable[Any], tables: Iterable[type[Table]] = ()) -> App:
    """A program of types, and of functions for which TypeScript and Convex have types of their own."""
    app = App(tables=tables)
    declare(app, "here:plays", dict[str, int], dict, more=dict[str, list[bytes]])
    declare(app, "here:pages", Page[Any], dict, pagination_opts=PaginationOptions)
    holder = make_model("Holder", **{f"f{number}": (one, ...) for number, one in enumerate(types)})
    declare(app, "here:all", holder, dict)
    return app


OWN: Any = Self  # a type within itself


def model(name: str) -> Any:
    return make_model(name, value=(int, ...), more=(dict[str, list[OWN]], ...), next=(OWN | None, None))


def alias(name: str) -> Any:
    return TypeAliasType(name, Literal["a", "b"])


def table(name: str) -> Any:
    sql_name = snake_case(name).strip("_")[:48]
    return type(name, (Table,), {"__annotations__": {"text": str}, "__module__": __name__}, name=f"{sql_name or 'no'}")


TYPES: dict[str, Any] = {
    "models": model,
    "enums": lambda name: make_enum(name, {"ONE": "one", "TWO": 2, "THREE": 1.5}),
    "aliases": alias,
    "ids": lambda name: ids_of[table(name)],
}


def program_of_members(
    every: list[str], members: list[str], types: list[Any], tables: list[Any], path: str = "{0}:{0}"
) -> App:
    """A program in which functions, modules, arguments and fields have these names."""
    app = program_of(types, tables)
    for name in every:
        declare(app, path.format(name), str, lambda name=name: name)
    whole = make_model("Whole", **{f"f{number}": (int, Field(alias=name)) for number, name in enumerate(members)})
    takes = dict.fromkeys(arguments(every), int)
    declare(
        app, "here:same", tuples[whole, dict[str, int]], lambda whole, **given: (whole, given), whole=whole, **takes
    )

    async def put(ctx: MutationCtx) -> list[str]:
        return [await ctx.db.insert(one(text=one.__name__)) for one in tables]

    async def rows(ctx: QueryCtx, ids: Any) -> Any:
        return tuple([await ctx.db.get(*one) for one in zip(tables, ids, strict=True)])

    rows.__annotations__ |= {"ids": tuples[*[ids_of[one] for one in tables]], "return": tuples[*tables]}
    for function in (put, rows):
        function.__module__, function.__qualname__ = "here", function.__name__
    app.mutation(access=anybody)(put)
    app.query(access=anybody)(rows)
    return app


T = TypeVar("T")
Json = TypeAliasType("Json", "str | float | list[Json] | dict[str, Json]")


class Nest(RootModel[dict[str, "Nest | list[Nest]"]]):
    """A type within itself that is no object."""


class Box(BaseModel, Generic[T]):
    item: T


def odd() -> App:
    """A program of odd names, of names that look alike once they are written, and of types within themselves."""

    class Theirs(Table, managed=False, source='shop."Order\'s items"', key=("self", "class_")):
        self: int
        class_: int

    spelled = ["_Private", "Private", "Private_", "Účet", "名前", "値", "1a", "a-b", "a.b", "Box_int", "__x", "OrderId"]
    types: list[Any] = [make_model(name, **{"value": (Nest, ...), name.strip("_"): (Json, ...)}) for name in spelled]
    same = [make_model("Twice", __module__=module, value=(int, ...)) for module in ("one", "other")]
    fields = dict.fromkeys(["the-name", "class", "__x", "", "a\nb", 'q"', "é", "constructor", "self"], list[Json])
    numbers = make_enum("Numbers", {"HALF": 0.5, "PAIR": (1, 2), "NONE": None, "TRUE": True})
    types += [*same, Box[int], Box[Box[int]], make_dict("Fields", fields), numbers]
    app = program_of(
        [*types, ids_of[Theirs], Theirs, *[ids_of[table(name)] for name in ("Order", "Orders", "o_rder", "o__rder")]]
    )
    for name in ["a.b:c", "a:b", "a_b:c", "_a:f", "__a:f", "a:_a", "a:__a", "live:f", "live.live:f", "here:Twice"]:
        declare(app, name, str, str, self=int, _self=int, __x=int, _RESULT_0=int, ü=Json)
    return app


@cache
def programs() -> dict[str, App]:
    """Programs by name: each gives these names to other things."""
    own, every = known(), names() if LONG else names()[::2]
    parts = range(len(TYPES))  # in a short run each kind of type has its part of the names
    found = {
        name: program_of(map(make, every if LONG else every[part :: len(TYPES)]))
        for part, (name, make) in zip(parts, TYPES.items(), strict=True)
    }
    tables = {
        one.__declared__.sql_name: one for one in map(table, [*keyword.kwlist, "Record", "Promise", "Date", "Id"])
    }
    return found | {
        "functions": program_of_members(every, [], [], [], "here.{0}:{0}"),
        "python": program_of_members(own, own, [*map(model, own)], [], "own:{0}"),
        "wire": program_of_members(own, names(members=True), [int], [*tables.values()]),
        "odd": odd(),
    }


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the clients of each program, and with the packages of npm."""
    folder = tmp_path_factory.mktemp("names")
    (folder / "node_modules").symlink_to(node_modules(COMPILERS) / "node_modules")
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "tsconfig.json").write_text(json.dumps(SETTINGS))
    for name, app in programs().items():
        write(public(app), folder / name)
        types = re.findall(r"^export type (\w+) =", (folder / name / "dataModel.d.ts").read_text("utf-8"), re.MULTILINE)
        (folder / f"{name}.ts").write_text(USE.format(name, ", ".join(types)))
    return folder


def test_compilers_accept_them(project: Path) -> None:
    run(project, project / "node_modules" / ".bin" / "tsc")
    run(project, project / "node_modules" / ".bin" / "pyright", "--pythonpath", sys.executable, "python", "odd")
    run(project, sys.executable, "-W", "error", "-c", f"import {', '.join(f'{name}.api' for name in programs())}")


async def test_the_wire_has_them(sqlite_url: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(project)
    module: Any = importlib.import_module("wire.api")
    app, every, members = programs()["wire"], known(), names(members=True)
    given, called = arguments(every), every if LONG else every[::4]
    async with TestApp(app, sqlite_url) as backend, listening(asgi_app(app, backend=backend)) as url:
        told = json.dumps({"names": called, "members": members, "given": given})
        (project / "names.mjs").write_text((HERE / "names.mjs").read_text("utf-8"))
        script: list[str | Path] = [program("node", "nodejs"), project / "names.mjs", url]
        assert json.loads(await asyncio.to_thread(run, project, *script, told=told)) == []
        async with AsyncClient(url) as client:
            api = module.AsyncApi(client)
            for name in called:
                assert await spelled(spelled(api, name), name)() == name
            whole, args = ({name: number for number, name in enumerate(some)} for some in (members, given))
            assert await api.here.same(whole=whole, **args) == (whole, args)
            ids = await api.here.put()
            assert [row["_id"] for row in await api.here.rows(ids=ids)] == ids


def spelled(thing: Any, name: str) -> Any:
    """The attribute for a name; words of Python and of the client have an underscore more."""
    return getattr(thing, f"{name}_", None) or getattr(thing, name)
