"""Functions and tables that are declared wrongly: refused at import, with the name, the file and the line."""

from __future__ import annotations

import runpy
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

from penstock.errors import DeclarationError
from penstock.schema.table import definition_of

HEAD = """\
from datetime import timedelta
from typing import Annotated, Any, Generic, Protocol, TypeVar
from penstock import ActionCtx, App, Index, MutationCtx, MutationTaskCtx, QueryCtx, Table, TaskBatchCtx, TaskCtx, sync
app = App()
class Order(Table):
    paid: bool = False
class Person(Table):
    name: str
"""
TYPES = """\
from collections import OrderedDict
from datetime import datetime
from decimal import Decimal
from threading import Lock
from typing import ClassVar, Literal
from annotated_types import Ge
from pydantic import BeforeValidator, Field, field_validator, model_validator
from penstock import Id
from penstock.schema.rules import Rules
def yes(row: Any, identity: Any) -> bool: ...
"""
LINE = HEAD.count("\n") + 1  # of what follows, whose first line is a decorator


def declare(folder: Path, text: str, *, postponed: bool = True) -> dict[str, Any]:
    """Import a module; what it declares."""
    file = folder / "shop.py"
    first = "from __future__ import annotations;" if postponed else ""
    file.write_text(first + HEAD + dedent(text), "utf-8")
    return runpy.run_path(str(file), run_name="shop")


WRONG_CTX = {
    "@app.query\nasync def f(ctx: MutationCtx) -> int: ...": (
        "is a query written with async def, and takes a MutationCtx. Write ctx: QueryCtx, or declare it with "
        "@app.mutation."
    ),
    "@app.query\nasync def f(ctx: sync.QueryCtx) -> int: ...": "and takes a sync.QueryCtx. Write ctx: QueryCtx.",
    "@app.query\ndef f(ctx: QueryCtx) -> int: ...": (
        "takes a QueryCtx. Write async def, or take ctx: sync.QueryCtx after from penstock import sync."
    ),
    "@app.query\nasync def f(x: int) -> int: ...": (
        "the first parameter of a query is its ctx, not x: int. Write (ctx: QueryCtx, …)."
    ),
    "@app.action(batch=5, of=Person)\nasync def f(x: int, people: list[Person]) -> list[int]: ...": "not x: int.",
    "@app.cron('0 9 * * *')\ndef f(x: int) -> None: ...": "does not say whether it is a mutation or an action.",
    "@app.reactive_task(Order)\nasync def f(ctx: TaskCtx[Person]) -> None: ...": (
        "takes TaskCtx[Person]. Write ctx: TaskCtx[Order]."
    ),
    "@app.reactive_task(Order)\nasync def f(ctx: ActionCtx) -> None: ...": "does not say what kind of task it is.",
    "@app.reactive_task\nasync def f(ctx: TaskCtx[Order]) -> None: ...": ("@app.reactive_task stands above shop:f ("),
    "@app.outbox\n@app.action\nasync def f(ctx: ActionCtx, order: Order) -> None: ...": "without parentheses",
}


@pytest.mark.parametrize("postponed", [True, False])
@pytest.mark.parametrize("text", WRONG_CTX)
def test_a_function_that_could_not_get_its_ctx_is_refused(tmp_path: Path, text: str, postponed: bool) -> None:
    with pytest.raises(DeclarationError) as caught:
        declare(tmp_path, text, postponed=postponed)
    assert WRONG_CTX[text] in str(caught.value)
    assert f"shop:f ({tmp_path}/shop.py:{LINE})" in str(caught.value)


FITTING = """\
Ctx = MutationCtx
T = TypeVar("T")
class Reads(Protocol):
    db: Any
class Holder(Generic[T]): ...
@app.mutation
async def only_reads(ctx: QueryCtx) -> int: return 1
@app.mutation
async def by_another_name(ctx: Ctx) -> int: return 1
@app.query
async def anything(ctx: Any) -> int: return 1
@app.query
async def of_a_protocol(ctx: Reads) -> int: return 1
@app.mutation
async def one_of_two(ctx: QueryCtx | ActionCtx) -> int: return 1
@app.action
async def annotated(ctx: Annotated[ActionCtx, "told"]) -> int: return 1
@app.internal_mutation()
async def in_parentheses_too(ctx: MutationCtx) -> int: return 1
@app.reactive_task(Order)
async def of_its_table(ctx: TaskCtx[Order]) -> None: ...
@app.cron(timedelta(hours=1))
def hourly(ctx: sync.MutationCtx) -> None: ...
"""


def test_what_a_type_checker_accepts_is_declared(tmp_path: Path) -> None:
    declared = declare(tmp_path, FITTING, postponed=False)
    assert len(list(declared["app"].registry)) == FITTING.count("@app.")


def test_an_annotation_that_comes_later_in_the_module_is_not_refused(tmp_path: Path) -> None:
    later = "@app.query\nasync def f(ctx: Later) -> int: return 1\nLater = QueryCtx\n"
    declared = declare(tmp_path, later)
    assert declared["f"].signature.parameters == ()


# ----- tables

BARE = "(Table, source='t', managed=False, key='id'):\n    id: int"
WRONG_TABLES = {  # what stands behind `class Wrong`; the line that is named, counted from there; a part of the message
    "(Table):\n    a: str\n    b: int = 'x'": (2, "the default of b, 'x', is not one of its values: Input should be a"),
    "(Table):\n    a: str = Field(\n        default=5)": (1, "the default of a, 5"),
    "(Table):\n    a: Literal['x', 'y'] = 'z'": (1, "Input should be 'x' or 'y'"),
    "(Table):\n    a: datetime = datetime(2026, 1, 1)": (1, "has no time zone"),
    "(Table):\n    a: float = float('nan')": (1, "NaN cannot be stored"),
    "(Table):\n    a: str = '\\0'": (1, "the default of a, '\\x00'"),
    f"{BARE} = 'x'": (1, "the default of id, 'x'"),
    "(Table):\n    a: str\n    one = Rules(read=lambda r, i: True)\n    two = Rules(read=lambda r, i: True)": (
        2,
        "has rules",
    ),
    "(Table):\n    a: OrderedDict[str, int]": (1, "JSON keeps no order of keys"),
    "(Table):\n    a: Literal['\\0']": (1, "A choice of wrong.a"),
    "(Table, name='pg_x'):\n    a: str": (0, "the name 'pg_x' is reserved"),
}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("text", WRONG_TABLES)
def test_a_wrong_table_is_refused_at_import_with_its_file_and_line(tmp_path: Path, text: str, inside: bool) -> None:
    head = HEAD + TYPES + "def make() -> None:\n" * inside
    body = indent(f"class Wrong{text}\n", "    " * inside) + "make()\n" * inside
    (tmp_path / "shop.py").write_text(head + body, "utf-8")
    line, part = WRONG_TABLES[text]
    with pytest.raises(DeclarationError) as caught:
        runpy.run_path(str(tmp_path / "shop.py"), run_name="shop")
    place = f"{tmp_path}/shop.py:{head.count(chr(10)) + 1 + line}"
    assert str(caught.value).startswith(f"Table Wrong ({place})")
    assert part in str(caught.value)
    assert caught.value.facts["place"] == place


FITTING_TABLE = """\
class Fitting(Table):
    empty: str | None = None
    parsed: Annotated[list[str], BeforeValidator(lambda text: text if isinstance(text, list) else [text])] = "a"
    mended: int = "5"
    many: list[int] = []
    made: int = Field(default_factory=lambda: "only an insert may ask for it")
    odd: Any = None
    sized: Annotated[str, Field(min_length=1)] = "x"
    kept: Decimal = Decimal("1.5")
    choice: Literal["a", 1] = 1

    @field_validator("mended", mode="before")
    @classmethod
    def mend(cls, value: Any) -> Any:
        return int(value)
class Filled(Table):
    name: str = None

    @model_validator(mode="before")
    @classmethod
    def fill(cls, given: Any) -> Any:
        return {"name": "nobody"} | given
"""


def test_a_default_that_a_validator_mends_is_taken(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(HEAD + TYPES + FITTING_TABLE, "utf-8")
    declared = runpy.run_path(str(tmp_path / "shop.py"), run_name="shop")
    assert declared["Fitting"](made=1).mended == 5
    assert declared["Filled"]().name == "nobody"


def test_a_table_that_names_later_classes_is_refused_when_it_is_whole(tmp_path: Path) -> None:
    text = "class Wrong(Table):\n    part: Part = 5\nclass Part(BaseModel):\n    x: int\nWrong.model_rebuild()\n"
    declared = declare(tmp_path, f"from pydantic import BaseModel\n{text}")
    with pytest.raises(
        DeclarationError, match=rf"Table Wrong \({tmp_path}/shop.py:{LINE + 2}\): the default of part, 5"
    ):
        definition_of(declared["Wrong"])


# ----- two tables of one name


def test_two_tables_of_one_name_in_one_module_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    with pytest.raises(DeclarationError) as caught:
        declare(tmp_path, "x = 1\nclass Order(Table):\n    total: int = 0\n")
    assert str(caught.value) == (
        f"Two tables of shop are called Order: {file}:5 and {file}:{LINE + 1}. Rename one of them."
    )


def test_a_module_that_is_loaded_again_declares_its_tables_again(tmp_path: Path) -> None:
    text = HEAD + "def make() -> Any:\n    class Inner(Table):\n        x: int\n    return Inner\nmake()\nmake()\n"
    module: dict[str, Any] = {"__name__": "shop"}
    for added in ("", "", "\n", "x = 1\n"):
        exec(compile(added + text, "shop.py", "exec"), module)


def test_a_class_in_another_class_may_have_the_name_of_a_table(tmp_path: Path) -> None:
    declare(tmp_path, 'class Archive:\n    class Order(Table, name="archived"):\n        total: int = 0\n')
