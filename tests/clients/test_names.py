"""Names of TypeScript, Convex and Python in a program: its generated clients compile and run, and the wire has them."""

from __future__ import annotations

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
from typing import Any, Literal, Self

import pytest
from clients.test_codegen import SETTINGS, public, run
from pydantic import Field, create_model
from stage.clients import COMPILERS, node_modules
from typing_extensions import TypeAliasType

from penstock import App, Page, PaginationOptions, QueryCtx
from penstock import public as anybody
from penstock.codegen.python import python_module
from penstock.codegen.typescript import typescript_files

DECLARED = re.compile(
    r"^\s*(?:declare )?(?:abstract )?(?:interface|type|class|function|var|let|const|namespace) +(\w+)", re.MULTILINE
)
MEMBER = re.compile(r"^\s*(?:readonly )?([A-Za-z_]\w*)\??[(:<]", re.MULTILINE)
WORDS = """
any unknown never void number string boolean symbol object undefined null bigint break case catch class const continue
debugger default delete do else enum export extends false finally for function if import in instanceof new null return
super switch this throw true try typeof var while with as implements interface let package private protected public static
yield abstract accessor asserts assert async await constructor declare from get global infer intrinsic is keyof module
namespace out override readonly require satisfies set type unique using of prototype then
api anyApi Doc Id Rows TableNames GenericId FunctionReference PaginationOptions PaginationResult
Api AsyncApi Module AsyncModule Client AsyncClient OMITTED TypeAdapter NewType NotRequired TypedDict Literal Any Decimal UUID
datetime date time timedelta AsyncIterator Iterator AbstractContextManager AbstractAsyncContextManager live self cls client
_call _live _client
"""
USE = """import {{ ConvexHttpClient }} from "convex/browser";
import {{ api }} from "./{0}/api.js";
import type {{ {1} }} from "./{0}/dataModel.js";
export type Used = [{1}];
export async function use(client: ConvexHttpClient) {{
  const plays: {{ [key: string]: number }} = await client.query(api.here.plays, {{ more: {{ a: [new ArrayBuffer(1)] }} }});
  // @ts-expect-error it is a number
  const wrong: string = plays["a"];
  // @ts-expect-error it is bytes
  void client.query(api.here.plays, {{ more: {{ a: ["a"] }} }});
  return [wrong, (await client.query(api.here.pages, {{ paginationOpts: {{ numItems: 1, cursor: null }} }})).isDone];
}}
"""


@cache
def names(*, members: bool = False) -> list[str]:
    """What TypeScript, Convex and Python call their own; with the members of TypeScript's types."""
    files = (node_modules(COMPILERS) / "node_modules" / "@typescript").glob("*/lib/lib.es*.d.ts")
    text = "".join(file.read_text("utf-8") for file in files)
    found = {*DECLARED.findall(text), *WORDS.split(), *(MEMBER.findall(text) if members else ())}
    assert {"Record", "Promise", "parseInt", *["toFixed"] * members} < found
    return sorted(found.union(keyword.kwlist, keyword.softkwlist, dir(builtins)))


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


def program_of(types: Iterable[Any]) -> App:
    """A program of types, and of functions for which TypeScript and Convex have types of their own."""
    app = App()
    declare(app, "here:plays", dict[str, int], dict, more=dict[str, list[bytes]])
    declare(app, "here:pages", Page[Any], dict, pagination_opts=PaginationOptions)
    declare(app, "here:all", tuple[*types], dict)
    return app


def model(name: str) -> Any:
    return create_model(name, value=(int, ...), more=(dict[str, list[Self]], ...), next=(Self | None, None))


def alias(name: str) -> Any:
    return TypeAliasType(name, Literal["a", "b"])  # type: ignore[misc]  # the name is any


PROGRAMS: dict[str, Any] = {
    "models": model,
    "enums": lambda name: Enum(name, {"ONE": "one", "TWO": 2, "THREE": 1.5}),
    "aliases": alias,
}


def every_name() -> App:
    """A program in which functions, modules, arguments, fields, tables and columns have these names."""
    app, every = program_of([int]), names(members=True)
    for name in names():
        declare(app, f"functions:{name}", str, lambda name=name: name)
        declare(app, f"{name}:f", str, lambda name=name: name)
        declare(app, f"{name}.{name}:f", str, lambda name=name: f"{name}.{name}")
    fields: Any = {f"f{number}": (int, Field(alias=name)) for number, name in enumerate(every)}
    takes = dict.fromkeys((name for name in every if not keyword.iskeyword(name)), int)
    everything = create_model("Everything", **fields)
    declare(
        app,
        "here:same",
        tuple[everything, dict[str, int]],
        lambda the_whole, **given: (the_whole, given),
        the_whole=everything,
        **takes,
    )
    return app


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the clients of each program, and with the packages of npm."""
    (tmp_path / "node_modules").symlink_to(node_modules(COMPILERS) / "node_modules")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "tsconfig.json").write_text(json.dumps(SETTINGS))
    programs = {name: program_of(map(make, names())) for name, make in PROGRAMS.items()} | {"every": every_name()}
    for folder, app in programs.items():
        (tmp_path / folder).mkdir()
        files = {**typescript_files(public(app)), "api.py": python_module(public(app))}
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text, "utf-8")
        types = re.findall(r"^export type (\w+) =", files["dataModel.d.ts"], re.MULTILINE)
        (tmp_path / f"{folder}.ts").write_text(USE.format(folder, ", ".join(types)))
    return tmp_path


def test_compilers_accept_them(project: Path) -> None:
    import time

    a = time.time()
    run(project, project / "node_modules" / ".bin" / "tsc")
    print("tsc", time.time() - a)
    a = time.time()
    run(project, project / "node_modules" / ".bin" / "pyright", "--pythonpath", sys.executable)
    print("pyright", time.time() - a)
    for folder in (*PROGRAMS, "every"):
        a = time.time()
        run(project / folder, sys.executable, "-W", "error", "api.py")
        print(folder, time.time() - a)
