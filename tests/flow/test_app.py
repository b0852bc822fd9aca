"""The app: what it finds of a program, what it refuses before anything runs, and its life from open to close."""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from penstock import (
    ActionCtx,
    App,
    ConfigError,
    ContextError,
    DatabaseUnavailable,
    DeclarationError,
    Id,
    Index,
    MutationCtx,
    QueryCtx,
    SchemaMismatch,
    Table,
)
from penstock.testing import TestApp

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]  # what is tested


class Note(Table):
    text: str

    by_text = Index("text")


app = App()


@app.mutation
async def add(ctx: MutationCtx, text: str) -> Id[Note]:
    return await ctx.db.insert(Note(text=text))


@app.query
async def count(ctx: QueryCtx) -> int:
    return await ctx.db.query(Note).count()


@app.internal_action
async def echo(ctx: ActionCtx, value: Any) -> Any:
    return value


# ----- what it finds


def test_tables_are_found_in_and_beside_the_modules_of_functions() -> None:
    package, models, other = ModuleType("shop"), ModuleType("shop.models"), ModuleType("elsewhere")

    class Given(Table):
        text: str

    class Booking(Table):
        text: str

    class Stranger(Table):
        text: str

    given, shop = App(tables=[Given, Given, Note]), App()
    given.query(count.handler)
    models.__dict__["Booking"] = Booking
    other.__dict__["Stranger"] = Stranger
    package.__dict__.update(models=models, other=other, MutationCtx=MutationCtx, __name__="shop.functions")
    exec("async def book(ctx): ...", package.__dict__)
    shop.internal_mutation(package.__dict__["book"])
    for declares, names in ((given, ["given", "note"]), (app, ["note"]), (shop, ["booking"]), (App(), [])):
        assert [definition.name for definition in declares.definitions()] == names


PROGRAM = """
from penstock import App, Message, MutationCtx, MutationTaskCtx, Table

class Order(Table):
    status: str

class Total(Table):
    amount: int

app = App()
"""
HANDLERS = [
    "@app.outbox(Order)\nasync def send(ctx: MutationCtx, message: Message[Order]) -> None: ...",
    "@app.reactive_task(Order)\nasync def sync(ctx: MutationTaskCtx[Order]) -> None: ...",
]


def test_tables_beside_the_handler_of_a_task_or_an_outbox_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for number, handler in enumerate(HANDLERS):
        (tmp_path / f"only_{number}.py").write_text(PROGRAM + handler)
        only: App = importlib.import_module(f"only_{number}").app
        assert sorted(definition.name for definition in only.definitions()) == ["order", "total"], handler


# ----- what it refuses before anything runs


async def test_wrong_tables_and_types_are_refused_before_anything_is_created(empty_sqlite_url: str) -> None:
    class Note(Table):
        title: str

    class Bad(Table):
        later: Id[Later]
        value: list[int]

        by_value = Index("value")

    class Later(Table):
        title: str

    Bad.model_rebuild(_types_namespace={"Later": Later, "Id": Id})
    twice, broken = App(tables=[Note]), App()
    twice.query(count.handler)

    @broken.query
    async def look(ctx: QueryCtx, missing: Missing) -> int:
        """Name a type that is there for type checkers only."""
        return 0

    for wrong, said in (
        (twice, r"Two tables are named note: .*Note and .*Note"),
        (broken, r"look: an annotation names 'Missing', which does not exist"),
        (App(tables=[Bad]), "by_value contains value, which is stored as JSON"),
    ):
        with pytest.raises(DeclarationError, match=said):
            async with TestApp(wrong, empty_sqlite_url):
                pass
    assert not is_there(Path(empty_sqlite_url.removeprefix("sqlite:///")))
    with pytest.raises(DeclarationError, match="Two functions are named test_app:count"):
        twice.mutation(count.handler)


def is_there(path: Path) -> bool:
    return path.exists()


async def test_a_database_that_cannot_be_is_told_at_once() -> None:
    for url, error in (
        ("mysql://root@localhost/x", ConfigError),
        ("sqlite:///:memory:", ConfigError),
        ("sqlite://host/file.db", ConfigError),
        ("sqlite:////nowhere/at/all.db", DatabaseUnavailable),
        ("postgresql://nobody@127.0.0.1:1/nothing", DatabaseUnavailable),
    ):
        with pytest.raises(error):
            async with app.open(url, database_wait=0.05):
                pass


# ----- its life


async def test_what_was_stored_is_there_when_it_is_opened_again(database_url: str) -> None:
    async with app.open(database_url, push_schema=False) as backend:
        with pytest.raises(Exception, match=r"note") as caught:
            await backend.run_mutation(add, "x")
        assert type(caught.value).__name__ in {"DataError", "SchemaMismatch"}, "without a push there are no tables"
    async with app.open(database_url) as backend:
        assert await backend.run_action(echo, {"any": [1, None]}) == {"any": [1, None]}
        await backend.run_mutation(add, "kept")
        await backend.scheduler.run_after(timedelta(hours=1), add, text="later")
    async with app.open(database_url, push_schema=False) as one, app.open(database_url) as two:
        assert [job.args for job in await one.jobs("pending")] == [{"text": "later"}]
        assert await one.job_counts() == {"ready": 0, "scheduled": 1, "retrying": 0, "running": 0}
        await asyncio.gather(*(backend.run_mutation(add, str(n)) for n in range(5) for backend in (one, two)))
        assert await one.run_query(count) == await two.run_query(count) == 11
    for call in (lambda: one.run_mutation(add, "x"), one.jobs):
        with pytest.raises(ContextError, match=r"^The backend is closed\. Use it inside async with app\.open\(\)\.$"):
            await call()


async def test_a_start_that_fails_leaves_nothing_open(database_url: str) -> None:
    async with app.open(database_url) as backend:
        await backend.run_mutation(add, "kept")

    class Note(Table):
        text: int

    changed = App(tables=[Note])
    for _ in range(3):
        with pytest.raises(SchemaMismatch):
            async with changed.open(database_url):
                pass
    async with app.open(database_url) as backend:
        assert await backend.run_query(count) == 1
    if database_url.startswith("sqlite"):
        path = Path(database_url.removeprefix("sqlite:///"))
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("begin exclusive")  # no other connection is left
        connection.close()
