"""The app: what it finds of a program, what it refuses before anything runs, and its life from open to close."""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from penstock import (
    ActionCtx,
    App,
    Config,
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
from penstock.app import Backend
from penstock.clock import SystemClock
from penstock.functions.function import AnyFunction, FunctionKind
from penstock.testing import TestApp

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]  # what is tested


class Note(Table):
    text: str

    by_text = Index("text")


app = App()


@app.mutation
async def add(ctx: MutationCtx, text: str) -> Id[Note]:
    """Insert a note."""
    return await ctx.db.insert(Note(text=text))


@app.query
async def count(ctx: QueryCtx) -> int:
    """Count notes."""
    return await ctx.db.query(Note).count()


@app.internal_action
async def echo(ctx: ActionCtx, value: Any) -> Any:
    """Give back."""
    return value


@app.internal_query
async def secret(ctx: QueryCtx) -> str:
    """Say what only this program may know."""
    return "secret"


# ----- what it finds


def test_a_decorated_function_is_still_itself() -> None:
    functions: list[AnyFunction] = [add, count, echo, secret]
    assert [function.name for function in functions] == [
        f"test_app:{name}" for name in ("add", "count", "echo", "secret")
    ]
    assert [function.kind for function in functions] == [
        FunctionKind.MUTATION, FunctionKind.QUERY, FunctionKind.ACTION, FunctionKind.QUERY,
    ]  # fmt: skip
    assert [function.public for function in functions] == [True, True, False, False]
    assert repr(add) == "<mutation test_app:add>"
    assert repr(secret) == "<internal query test_app:secret>"
    assert add.__doc__ == "Insert a note."
    assert add.__name__ == "add"  # type: ignore[attr-defined]  # update_wrapper sets it
    assert list(app.registry) == functions
    assert app.registry.find("test_app:add") is add
    assert app.registry.find("add") is None


def test_tables_are_found_in_the_modules_of_functions_and_beside_them() -> None:
    class Given(Table):
        text: str

    given = App(tables=[Given, Given, Note])
    given.query(count.handler)
    assert [definition.name for definition in given.definitions()] == ["given", "note"]
    assert [definition.name for definition in app.definitions()] == ["note"]
    assert App().definitions() == []


def test_tables_of_modules_that_a_functions_module_imports_are_found() -> None:
    package, models, other = ModuleType("shop"), ModuleType("shop.models"), ModuleType("elsewhere")

    class Booking(Table):
        text: str

    class Stranger(Table):
        text: str

    models.__dict__["Booking"] = Booking
    other.__dict__["Stranger"] = Stranger
    package.__dict__.update(models=models, other=other, MutationCtx=MutationCtx, __name__="shop.functions")
    exec("async def book(ctx): ...", package.__dict__)
    shop = App()
    shop.internal_mutation(package.__dict__["book"])
    assert [definition.name for definition in shop.definitions()] == ["booking"]


PROGRAM = """
from penstock import ActionCtx, App, Message, MutationCtx, MutationTaskCtx, Table

class Order(Table):
    status: str

class Total(Table):
    amount: int

app = App()
"""
HANDLERS = {
    "outbox": "@app.outbox(Order)\nasync def send(ctx: MutationCtx, message: Message[Order]) -> None: ...",
    "task": "@app.reactive_task(Order)\nasync def sync(ctx: MutationTaskCtx[Order]) -> None: ...",
}


@pytest.mark.parametrize("kind", HANDLERS)
def test_tables_beside_the_handler_of_a_task_or_an_outbox_are_found(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"only_{kind}.py").write_text(PROGRAM + HANDLERS[kind])
    monkeypatch.syspath_prepend(tmp_path)
    only: App = importlib.import_module(f"only_{kind}").app
    assert sorted(definition.name for definition in only.definitions()) == ["order", "total"]


# ----- what it refuses before anything runs


def exists(sqlite_url: str) -> bool:
    return Path(sqlite_url.removeprefix("sqlite:///")).exists()


async def test_two_tables_of_one_name_are_refused_before_anything_is_created(database_url: str) -> None:
    class Note(Table):
        title: str

    twice = App(tables=[Note])
    twice.query(count.handler)
    with pytest.raises(DeclarationError, match=r"Two tables are named note: .*Note and .*Note"):
        async with TestApp(twice, database_url):
            pass
    async with TestApp(app, database_url) as backend:
        assert await backend.run_query(count) == 0


async def test_a_function_whose_types_do_not_exist_is_refused_at_the_start(empty_sqlite_url: str) -> None:
    broken = App()

    @broken.query
    async def look(ctx: QueryCtx, missing: Missing) -> int:
        """Name a type that is there for type checkers only."""
        return 0

    with pytest.raises(DeclarationError, match=r"look: an annotation names 'Missing', which does not exist"):
        async with TestApp(broken, empty_sqlite_url):
            pass
    assert not exists(empty_sqlite_url)


async def test_a_table_that_could_not_be_checked_at_import_is_refused_at_the_start(empty_sqlite_url: str) -> None:
    class Bad(Table):
        later: Id[Later]
        value: list[int]

        by_value = Index("value")

    class Later(Table):
        title: str

    Bad.model_rebuild(_types_namespace={"Later": Later, "Id": Id})
    with pytest.raises(DeclarationError, match="by_value contains value, which is stored as JSON"):
        async with TestApp(App(tables=[Bad]), empty_sqlite_url):
            pass
    assert not exists(empty_sqlite_url)


def test_two_functions_of_one_name_are_refused_at_import() -> None:
    twice = App()
    twice.query(count.handler)
    with pytest.raises(DeclarationError, match="Two functions are named test_app:count"):
        twice.mutation(count.handler)


def test_settings_are_checked_when_they_are_asked_for() -> None:
    with pytest.raises(ConfigError, match="max_conections is no setting"):
        App().config(max_conections=5)
    with pytest.raises(ConfigError, match="threads must be a whole number greater than 0, not 'many'"):
        App().config(threads="many")
    with pytest.raises(ConfigError, match="threads must be a whole number greater than 0, not 0"):
        App().config(threads=0)
    with pytest.raises(ConfigError, match="full or normal"):
        App(synchronous="off").config()


def test_what_is_given_last_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "penstock.toml").write_text("threads = 3\nprocesses = 3\nlease = 3\nworker_jobs = 3\n")
    monkeypatch.setenv("PENSTOCK_PROCESSES", "4")
    monkeypatch.setenv("PENSTOCK_LEASE", "4")
    monkeypatch.setenv("PENSTOCK_WORKER_JOBS", "4")
    found = App(lease=5, worker_jobs=5).config(worker_jobs=6, max_calls=None)
    assert (found.threads, found.processes, found.lease, found.worker_jobs) == (3, 4, 5.0, 6)
    assert found.max_calls == Config().max_calls


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("mysql://root@localhost/x", ConfigError),
        ("sqlite:///:memory:", ConfigError),
        ("sqlite://", ConfigError),
        ("sqlite://host/file.db", ConfigError),
        ("sqlite:////nowhere/at/all.db", DatabaseUnavailable),
        ("postgresql://nobody@127.0.0.1:1/nothing", DatabaseUnavailable),
    ],
)
async def test_a_database_that_cannot_be_is_told_at_once(url: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        async with app.open(url, database_wait=0.05):
            pass


# ----- its life


async def test_what_was_stored_is_there_when_it_is_opened_again(database_url: str) -> None:
    async with app.open(database_url) as backend:
        assert isinstance(backend, Backend)
        assert isinstance(backend.engine.clock, SystemClock)
        await backend.run_mutation(add, "kept")
        await backend.scheduler.run_after(timedelta(hours=1), add, text="later")
    async with app.open(database_url, push_schema=False) as backend:
        assert await backend.run_query(count) == 1
        assert [job.args for job in await backend.jobs("pending")] == [{"text": "later"}]
        assert await backend.job_counts() == {"ready": 0, "scheduled": 1, "running": 0}
        assert await backend.jobs("success") == []


async def test_several_backends_of_one_database_see_the_same(database_url: str) -> None:
    async with app.open(database_url) as one, app.open(database_url) as two:
        await asyncio.gather(*(backend.run_mutation(add, str(n)) for n in range(5) for backend in (one, two)))
        assert await one.run_query(count) == await two.run_query(count) == 10


async def test_without_a_push_the_tables_must_be_there(database_url: str) -> None:
    async with app.open(database_url, push_schema=False) as backend:
        with pytest.raises(Exception, match=r"note") as caught:
            await backend.run_mutation(add, "x")
        assert type(caught.value).__name__ in {"DataError", "SchemaMismatch"}


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


async def test_a_closed_backend_takes_no_calls(database_url: str) -> None:
    async with app.open(database_url) as backend:
        pass
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: backend.run_query(count),
        lambda: backend.run_mutation(add, "x"),
        lambda: backend.scheduler.run_after(timedelta(0), add, text="x"),
        backend.jobs,
    ]
    for call in calls:
        with pytest.raises(ContextError, match=r"^The backend is closed\. Use it inside async with app\.open\(\)\.$"):
            await call()


async def test_only_functions_of_this_app_are_scheduled(sqlite_url: str) -> None:
    other = App()
    foreign = other.internal_mutation(add.handler)
    async with TestApp(app, sqlite_url) as backend:
        with pytest.raises(ContextError, match="is not a function of this app"):
            await backend.scheduler.run_after(timedelta(0), foreign, text="x")
        assert await backend.jobs() == []


async def test_an_action_can_be_run_from_python(sqlite_url: str) -> None:
    async with app.open(sqlite_url) as backend:
        assert await backend.run_action(echo, {"any": [1, None]}) == {"any": [1, None]}
        assert await backend.run_query(secret) == "secret"
