"""Functions and tables that are declared wrongly: refused at import, with the name, the file and the line."""

from __future__ import annotations

import runpy
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from penstock.errors import DeclarationError

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
    "@app.internal_query\nasync def f(ctx: ActionCtx) -> int: ...": "Write ctx: QueryCtx, or declare it with @app.act",
    "@app.mutation\nasync def f(ctx: ActionCtx) -> int: ...": "Write ctx: MutationCtx, or declare it with @app.action.",
    "@app.action\nasync def f(ctx: QueryCtx) -> int: ...": "Write ctx: ActionCtx, or declare it with @app.query.",
    "@app.query\nasync def f(ctx: sync.QueryCtx) -> int: ...": "and takes a sync.QueryCtx. Write ctx: QueryCtx.",
    "@app.query\ndef f(ctx: QueryCtx) -> int: ...": (
        "takes a QueryCtx. Write async def, or take ctx: sync.QueryCtx after from penstock import sync."
    ),
    "@app.query\nasync def f(x: int) -> int: ...": (
        "the first parameter of a query is its ctx, not x: int. Write (ctx: QueryCtx, …)."
    ),
    "@app.query\ndef f(x: list[int]) -> int: ...": "Write (ctx: sync.QueryCtx, …).",
    "@app.mutation\nasync def f(x: int | str) -> int: ...": "a mutation is its ctx, not x: int |",
    "@app.mutation\nasync def f(order: Order) -> int: ...": "the first parameter of a mutation is its ctx, not order",
    "@app.query\nasync def f() -> int: ...": "the first parameter of a query is its ctx.",
    "@app.action(batch=5, of=Person)\nasync def f(x: int, people: list[Person]) -> list[int]: ...": "not x: int.",
    "@app.cron('0 9 * * *')\ndef f(ctx: MutationCtx) -> None: ...": "or take ctx: sync.MutationCtx",
    "@app.cron('0 9 * * *')\ndef f(x: int) -> None: ...": "does not say whether it is a mutation or an action.",
    "@app.reactive_task(Order)\nasync def f(ctx: TaskCtx[Person]) -> None: ...": (
        "takes TaskCtx[Person]. Write ctx: TaskCtx[Order]."
    ),
    "@app.reactive_task(Order)\nasync def f(ctx: MutationTaskCtx[Person]) -> None: ...": "MutationTaskCtx[Order].",
    "@app.reactive_task(Order, batch=5)\nasync def f(ctx: TaskBatchCtx[Person]) -> None: ...": "TaskBatchCtx[Order].",
    "@app.reactive_task(Order)\nasync def f(ctx: ActionCtx) -> None: ...": "does not say what kind of task it is.",
    "@app.outbox(Order)\nasync def f(ctx: QueryCtx, order: Order) -> None: ...": "does not say what kind of function",
    "@app.reactive_task\nasync def f(ctx: TaskCtx[Order]) -> None: ...": ("@app.reactive_task stands above shop:f ("),
    "@app.outbox\nasync def f(ctx: ActionCtx, order: Order) -> None: ...": "Write @app.outbox(Booking).",
    "@app.cron\nasync def f(ctx: ActionCtx) -> None: ...": 'Write @app.cron("0 9 * * *").',
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
async def any_object(ctx: object) -> int: return 1
@app.query
async def unannotated(ctx) -> int: return 1
@app.query
async def of_a_protocol(ctx: Reads) -> int: return 1
@app.mutation
async def one_of_two(ctx: QueryCtx | ActionCtx) -> int: return 1
@app.action
async def annotated(ctx: Annotated[ActionCtx, "told"]) -> int: return 1
@app.query()
async def in_parentheses(ctx: QueryCtx) -> int: return 1
@app.internal_mutation()
async def in_parentheses_too(ctx: MutationCtx) -> int: return 1
@app.action()
def and_an_action(ctx: sync.ActionCtx) -> int: return 1
@app.reactive_task(Order)
async def of_any_table(ctx: TaskCtx[Any]) -> None: ...
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
