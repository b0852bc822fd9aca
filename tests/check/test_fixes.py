"""``penstock check --fix`` breaks no program: each finding stands at every kind of place, is mended there, and runs.

A function with a finding at a place is compared with the one that has a plain value there.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from importlib import util
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner
from stage.needs import LONG

from penstock.check.checker import check
from penstock.cli.check import command
from penstock.testing import TestApp

HEAD = """\
import asyncio
import datetime as dt
import random
import time
from contextlib import suppress
from datetime import UTC, datetime
from random import choice
from typing import Any

from penstock import App, Id, MutationCtx, QueryCtx, Table

app = App()


class Plan(Table):
    name: str


async def same(ctx: MutationCtx, one: Id[Plan]) -> Plan:
    return (await ctx.db.query(Plan).take(1))[0]


def given(value: Any) -> Any:
    return lambda function: (lambda *args: value)


async def shown(value: Any) -> Any:
    return value


@app.internal_mutation
async def run(ctx: MutationCtx, name: str) -> str:
    one = await ctx.db.insert(Plan(name="a"))
    try:
        return repr(await globals()[name](ctx, one, [one]))
    except (LookupError, ArithmeticError, AssertionError, AttributeError, RuntimeError) as error:
        return repr(error)
    finally:
        await ctx.db.delete(Plan, one)
"""
PARTS = 10 if LONG else 1
CALLS = ["ctx.db.get(Plan, one)", "ctx.db.query(Plan).first()", "same(ctx, one)", "ctx.db.query(\n Plan\n ).first()"]
CLOCKS = ["datetime.now(UTC)", "dt.datetime.now(dt.UTC)", "time.time()", "random.choice(ids)", "choice(ids)"]
CLOCKS += ["datetime.now(\n UTC,\n )"]
WITHIN = [  # an expression with a place in it
    "§", "(§)", "(\n §  # why\n )", "§.__class__", "§.__class__.__name__.upper()", "§.__str__()[0:9]", "(§).__class__",
    "(1 if § else 2)", "(§ if ids else 1)", "(1 if not ids else §)", "(not §)", "(§ == None)", "(a := §)",
    "(§ and 5)", "(ids and §)", "(§ or 5)", "[§]", "(§, 1)", "{'k': §}", "[*[§]]", "f'é{§}'", "f'''{ §!r:>20}'''",
    "f'a' f'{§.__class__}'", "[§ for _ in ids]", "{_: § for _ in ids}", "[x for x in ids if §]",
    "[x for x in [§]]", "list(§ for _ in ids)", "sum(1 for _ in ids if §)", "[x for x in (y for y in [§])]",
    "[[§ for _ in ids] for _ in ids]", "[§ async for _ in ctx.db.query(Plan)]", "sorted(ids, key=lambda x: str(§))",
    "(lambda: §)()", "(lambda x=§: x)()", "(lambda ctx: §)(ctx)", "(lambda: f'{§}')()", "(lambda: [§])()",
    "str(§)", "dict(a=§)", "str(object=§)", "[ids][§ is None]", "(-1 if -(§ is None) else 1)", "await shown([§][0])",
    "[ctx.__class__ and § for ctx in [ctx]]", "[§ for ctx in [ctx]]", "given(§)(1)()",
]  # fmt: skip
STATEMENTS = [  # a function with a place in it
    "return §", "§\nreturn 1", "x = §\nreturn 1", "x: Any = §\nreturn 1", "x = y = §\nreturn 1",
    "é = 1; x = §; return é",
    "if §:\n    return 1\nreturn 2", "while §:\n    return 1", "for x in [§]:\n    return x", "assert §\nreturn 1",
    "with suppress(Exception):\n    return §", "try:\n    return §\nfinally:\n    pass",
    "try:\n    raise LookupError\nexcept LookupError:\n    return §", "match §:\n    case x:\n        return x",
    "def inner():\n    return §\nreturn inner()", "async def inner():\n    return §\nreturn await inner()",
    "async def inner():\n    x = §\n    return 2\nreturn await inner()", "class Inner:\n    x = §\nreturn Inner.x",
    "@given(§)\ndef inner(): ...\nreturn inner()", "def inner(x=§):\n    return x\nreturn inner()",
    "async def inner():\n    yield §\nreturn [x async for x in inner()]",
    "def inner():\n    yield §\nreturn list(inner())",
    "def inner(ctx):\n    return §\nreturn inner(ctx)", "async def inner(ctx):\n    return §\nreturn await inner(ctx)",
    "x = [§]\nreturn x[0]", "x = §\nif ids:\n    return x is None\nreturn 3", "raise LookupError(§)",
    "x = 1 if ids else §\nreturn x", "x, y = §, 1\nreturn y", "x = 'a' + str(§)\nreturn x", "return 1, §",
]  # fmt: skip


def function(name: str, body: str) -> str:
    """A function with a body; only strings in brackets have lines of their own."""
    text = body.replace("\n", "\n    ")
    return f"\n\nasync def {name}(ctx: MutationCtx, one: Id[Plan], ids: list[Id[Plan]]) -> Any:\n    {text}\n"


def value_of(found: str) -> str:
    """What is to stand in place of what is found."""
    if found in CALLS:
        return "row"
    return "now" if "now" in found else "now.timestamp()" if "time.time" in found else "one"


def cases() -> list[tuple[str, str]]:
    """Each place with something to find at it."""
    plain = [*((one, "return §") for one in WITHIN), *(("§", one) for one in STATEMENTS)]
    mixed = [*product(WITHIN, STATEMENTS)]
    found = [*CALLS, *CLOCKS]
    pairs = [(one, found[at % len(found)]) for at, one in enumerate(mixed) if LONG or at % 13 == 0]
    pairs += product(plain, found if LONG else [CALLS[0], CLOCKS[0]])
    return [(statement.replace("§", within), one) for (within, statement), one in pairs]


def split(text: str) -> dict[str, str]:
    """The functions of a program with their texts."""
    parts = re.split(r"\n\n(?=async def (f\d+)\()", text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def compiles(text: str) -> bool:
    """Whether Python takes a text: before 3.12 some strings hold no line ends."""
    with suppress(SyntaxError), warnings.catch_warnings(action="ignore"):
        return compile(text, "", "exec") is not None
    return False


class _WithoutAwait(ast.NodeTransformer):
    def visit_Await(self, node: ast.Await) -> ast.AST:
        return self.visit(node.value)  # type: ignore[no-any-return]


def without_await(text: str) -> str:
    return ast.dump(_WithoutAwait().visit(ast.parse(text)))


def loaded(path: Path) -> ModuleType:
    spec = util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


async def answers(module: ModuleType, names: list[str]) -> dict[str, str]:
    """What each function returns, without the places of objects in memory; or how penstock refuses it."""
    found = {}
    async with TestApp(module.app, practices="off") as backend:
        for name in names:
            try:
                answer = await backend.run_mutation(module.run, name)
            except Exception as error:  # noqa: BLE001 - whatever a broken program raises
                answer = repr(error)
            found[name] = re.sub(r"broken|right|0x\w+|\w+-\w+-\w+-\w+-\w+|id='?\w+'?", "…", answer)
    return found


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore:coroutine:RuntimeWarning")  # of odd places
@pytest.mark.parametrize("part", range(PARTS))
async def test_a_fix_breaks_no_program_wherever_it_stands(tmp_path: Path, part: int) -> None:
    every = {
        f"f{at}": one
        for at, one in enumerate(cases()[part::PARTS])
        if compiles(function("f", one[0].replace("§", one[1])))
    }
    broken = {name: function(name, place.replace("§", found)) for name, (place, found) in every.items()}
    before = "row = await ctx.db.get(Plan, one)\nnow = ctx.now()\n"
    right = {
        name: function(name, before + place.replace("§", value_of(found))) for name, (place, found) in every.items()
    }
    file, other = tmp_path / "broken.py", tmp_path / "right.py"
    file.write_text(HEAD + "".join(broken.values()), "utf-8")
    other.write_text(HEAD + "".join(right.values()), "utf-8")
    told = check([file]).findings
    done = CliRunner().invoke(command, [str(file), "--fix"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    text = file.read_text("utf-8")
    compile(text, str(file), "exec")
    left = check([file])
    mended = Counter(one.code for one in told) - Counter(one.code for one in left.findings)
    assert done.stderr.startswith(f"Mended {mended.total()}.\n")
    after = split(text)
    named = {_function_at(left.lines[file], one.span.line) for one in left.findings if one.code in {"PEN001", "PEN014"}}
    whole = sorted(after.keys() - named, key=lambda one: int(one[1:]))
    for name in named:
        assert after[name].strip() == broken[name].strip(), "left and changed"
    for name in after:
        if every[name][1] in CALLS:
            assert without_await(after[name]) == without_await(broken[name]), after[name]
    mended_ones = [name for name in whole if after[name].strip() != broken[name].strip()]
    expected, got = await answers(loaded(other), mended_ones), await answers(loaded(file), mended_ones)
    wrong = "\n".join(f"{after[one]}{got[one]}\n{expected[one]}" for one in mended_ones if got[one] != expected[one])
    assert not wrong, wrong
    assert len(mended_ones) > len(every) * 0.5


def _function_at(lines: Sequence[str], line: int) -> str:
    heads = (re.match(r"async def (f\d+)\(", one) for one in reversed(lines[:line]))
    return next((found[1] for found in heads if found), "")


def mended(folder: Path, text: str, *imports: str) -> str:
    """What ``--fix`` makes of the body of a program."""
    file = folder / "app.py"
    head = "from penstock import App, Id, MutationCtx, QueryCtx, Table, signed_in\n\napp = App()\n\n\n"
    before = "".join(f"{one}\n" for one in imports) + head + "class Plan(Table):\n    name: str\n\n\n"
    file.write_text(before + text, "utf-8")
    CliRunner().invoke(command, [str(file), "--fix"])
    return file.read_text("utf-8").replace(head, "").replace("class Plan(Table):\n    name: str\n\n\n", "")


LATER = ["x = ctx.db.get(Plan, one)\nif one:\n    x = ctx.db.get(Plan, one)\nreturn await x"]  # what it is then awaited
LATER += ["x = y = asyncio.gather(ctx.db.get(Plan, one))\nif one:\n    y = None\nx = 1\nreturn y and await y"]
LATER += ["return await ctx.db.get(Plan, one).name", "return await (ctx.db.get(Plan, one) or ctx.db.get(Plan, one))"]
LATER += ["x = None\ndef keep():\n    nonlocal x\n    x = ctx.db.get(Plan, one)\nkeep()\nreturn await x"]
LATER += ["x = dict(a=ctx.db.get(Plan, one))\nreturn [await one for one in x.values()]"]
LATER += ["x = ctx.db.query(Plan).take(900)\nreturn [one for one in x if one.name == 'a']"]  # PEN002 then
LATER += [
    "asyncio.create_task(ctx.db.get(Plan, one)).add_done_callback(print)",
    "map(lambda one: ctx.db.get(Plan, one), [1])",
]


def test_what_is_taken_by_its_place_is_awaited_before_and_what_a_fix_would_break_is_left(tmp_path: Path) -> None:
    for body, fixed in (
        ("return ctx.db.query(Plan).take(1)[0]", "return (await ctx.db.query(Plan).take(1))[0]"),
        ("x = ctx.db.query(Plan).take(1)\nreturn x[0]", "x = await ctx.db.query(Plan).take(1)\nreturn x[0]"),
    ):
        assert mended(tmp_path, function("f", body).lstrip()).endswith(function("f", fixed).lstrip())
    for body in LATER:
        text = function("f", body).lstrip()
        assert mended(tmp_path, text, "import asyncio").endswith(text)


def test_an_import_that_a_fix_adds_ends_as_the_lines_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    body = "@app.query(access=signed_in)\nasync def clock(ctx: QueryCtx) -> float:\n    return time.time()\n"
    text = "import time\n\nfrom penstock import App, QueryCtx, signed_in\n\napp = App()\n\n\n" + body
    file.write_bytes(text.replace("\n", "\r\n").encode())
    CliRunner().invoke(command, [str(file), "--fix"])
    assert file.read_bytes().startswith(b"from datetime import timedelta\r\nimport time\r\n")


@pytest.mark.parametrize(
    ("imports", "found", "fixed"),
    [
        ("from datetime import UTC, datetime, timedelta", "datetime.now(UTC)", "ctx.now(every=timedelta(minutes=1))"),
        ("import datetime as dt", "dt.datetime.now(dt.UTC)", "ctx.now(every=dt.timedelta(minutes=1))"),
        ("from time import time", "time()", "ctx.now(every=timedelta(minutes=1)).timestamp()"),
        ("from random import random", "random()", "ctx.random.random()"),
        ("from time import time\nif App:\n    from datetime import timedelta", "time()", "time()"),
        ("from datetime import datetime, timezone as tz\nUTC = 1", "datetime.now(UTC)", "datetime.now(UTC)"),
        ("from datetime import datetime\nUTC = 1", "datetime.now(tz=UTC)", "datetime.now(tz=UTC)"),
        ("from time import time", "[time() for ctx in [1]]", "[time() for ctx in [1]]"),
        ("from time import time", "[time() for timedelta in [1]]", "[time() for timedelta in [1]]"),
    ],
)
async def test_a_live_query_stays_live(tmp_path: Path, imports: str, found: str, fixed: str) -> None:
    text = f"@app.query(access=signed_in)\nasync def clock(ctx: QueryCtx) -> object:\n    return {found}\n"
    text += text.replace("clock", "other").replace("QueryCtx", "QueryCtx | None")
    after = mended(tmp_path, text, "from __future__ import annotations", imports)
    assert f"    return {fixed}\n\n" in after.replace("@", "\n")
    assert after.endswith(f"    return {found}\n")
    assert ("from datetime import timedelta\nfrom time" in after) == (
        imports == "from time import time" and fixed != found
    )
