"""What tests of the HTTP door share: a bookshop to call, and a server in front of it, on a socket or without one."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import datetime
from typing import Annotated, Any

import httpx
import pytest
from pydantic import AfterValidator
from stage.sockets import listening

from penstock import (
    ActionCtx,
    App,
    ApplicationError,
    Id,
    Index,
    Int64,
    MutationCtx,
    Page,
    PaginationOptions,
    QueryCtx,
    Table,
    asgi_app,
    public,
    signed_in,
    sync,
)
from penstock.server.asgi import Asgi
from penstock.store.session import Statement
from penstock.testing import TestApp

SECRET = "the-secret-of-the-house"

app = App()


class Book(Table):
    title: str
    copies: int = 0
    added: datetime | None = None
    cover: bytes | None = None

    by_title = Index("title", unique=True)


class Held:
    """Functions that a test holds: they tell that they run, and go on when they may."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.may_go_on = asyncio.Event()


held: dict[str, Held] = {}


@app.mutation
async def add(
    ctx: MutationCtx, title: str, copies: int = 1, added: datetime | None = None, cover: bytes | None = None
) -> Id[Book]:
    return await ctx.db.insert(Book(title=title, copies=copies, added=added, cover=cover))


@app.query
async def all_books(ctx: QueryCtx) -> list[Book]:
    return await ctx.db.query(Book).collect()


@app.query
async def read_all(ctx: QueryCtx) -> int:
    return len(await ctx.db.query(Book).collect())


@app.query
async def find(ctx: QueryCtx, title: str) -> Book | None:
    return await ctx.db.query(Book).with_index(Book.by_title, title=title).unique()


@app.query
async def by_id(ctx: QueryCtx, book: Id[Book]) -> Book | None:
    return await ctx.db.get(Book, book)


@app.query
async def books_of(ctx: QueryCtx, pagination_opts: PaginationOptions) -> Page[Book]:
    return await ctx.db.query(Book).paginate(pagination_opts)


@app.query(access=public & (signed_in | public))
def count(ctx: sync.QueryCtx) -> int:
    return ctx.db.query(Book).count()


@app.mutation
async def sell(ctx: MutationCtx, title: str) -> int:
    book = await ctx.db.query(Book).with_index(Book.by_title, title=title).unique()
    if book is None:
        raise ApplicationError({"kind": "unknown book", "title": title, "raw": b"\xff", "n": 2**60})
    if book.copies == 0:
        raise ApplicationError("sold out")
    return (await ctx.db.patch(Book, book.id, copies=book.copies - 1)).copies


@app.action
async def restock(ctx: ActionCtx, title: str) -> Id[Book]:
    return await ctx.run_mutation(add, title=title, copies=100)


@app.mutation
async def rename(ctx: MutationCtx, title: str, to: str) -> None:
    book = await ctx.db.query(Book).with_index(Book.by_title, title=title).unique()
    await ctx.db.patch(Book, book.id if book else Id(""), title=to)


@app.mutation
async def remove_oldest(ctx: MutationCtx) -> None:
    for book in await ctx.db.query(Book).take(1):
        await ctx.db.delete(Book, book.id)


@app.mutation
async def say_back(ctx: MutationCtx, text: str) -> str:
    await ctx.db.insert(Book(title=text[:9]))
    return text


@app.query
async def none_or_fail(ctx: QueryCtx) -> None:
    for book in await ctx.db.query(Book).collect():
        if book.title == "Persuasion":
            raise ApplicationError("sold out")
        raise ValueError(SECRET)


@app.mutation
async def say(ctx: MutationCtx, text: str, times: int = 1, fails: bool = False) -> None:
    for _ in range(times):
        logging.getLogger("shop").warning("said %s", text)
    await ctx.run_query(say_in_thread)
    logging.getLogger("shop").debug("not said")
    logging.getLogger("penstock").warning("penstock's own")
    if fails:
        raise ApplicationError("said too much")


@app.action
async def say_in_action(ctx: ActionCtx) -> None:
    logging.getLogger("shop").warning("from outside")


@app.query
def say_in_thread(ctx: sync.QueryCtx) -> None:
    logging.getLogger("shop").error("and %d%%", 5)
    logging.getLogger("shop").error("%d", "no number")


@app.query
async def echo(ctx: QueryCtx, value: Any) -> Any:
    return value


@app.query
async def typed(ctx: QueryCtx, number: int = 0, real: float = 0.0, when: datetime | None = None) -> str:
    return f"{number} {real} {when}"


@app.query
async def same_number(ctx: QueryCtx, number: int) -> int:
    return number


@app.query
async def same_large(ctx: QueryCtx, large: Int64) -> Int64:
    return large


@app.query
async def same_real(ctx: QueryCtx, real: float) -> float:
    return real


@app.query
async def same_raw(ctx: QueryCtx, raw: bytes) -> bytes:
    return raw


@app.query
async def raise_for_callers(ctx: QueryCtx, data: Any) -> None:
    raise ApplicationError(data)


@app.query
async def total(ctx: QueryCtx, numbers: list[int]) -> int:
    return sum(numbers)


@app.query
async def now(ctx: QueryCtx) -> datetime:
    return ctx.now()


@app.internal_mutation
async def hidden(ctx: MutationCtx, number: int) -> int:
    return number


def _raise(error: BaseException) -> Any:
    raise error


async def _cancelled() -> None:
    task = asyncio.create_task(asyncio.Event().wait())
    task.cancel()
    await task


FAILURES: dict[str, Callable[[Any], Awaitable[object]]] = {  # what functions do, each with a secret in its error
    "raise": lambda _: _raise(ValueError(f"cannot open the door with {SECRET}")),
    "time out": lambda _: _raise(TimeoutError(SECRET)),
    "exit": lambda _: sys.exit(SECRET),
    "be canceled": lambda _: _cancelled(),
    "raise what cannot be said": lambda _: _raise(ApplicationError({"what": object()})),
    "call wrongly": lambda ctx: ctx.run_query(by_id, book=SECRET),
    "call an internal one wrongly": lambda ctx: ctx.run_mutation(hidden, number=SECRET),
    "insert too much": lambda ctx: ctx.db.insert(Book(title=SECRET * 100_000)),
    "get a wrong id": lambda ctx: ctx.db.get(Book, Id(SECRET)),
    "break the transaction": lambda ctx: ctx._scope.transaction.session.fetch(Statement("select no_such_function()")),
    "name a column that is not there": lambda ctx: ctx.sql(f"select no_such_column_{SECRET.replace('-', '_')}"),
    "cast it": lambda ctx: ctx.sql(f"select cast('{SECRET}' as integer)"),  # which some databases take
}


@app.query
async def fail(ctx: QueryCtx, by: str = "raise") -> None:
    await FAILURES[by](ctx)
    raise LookupError(SECRET)


@app.mutation
async def add_and_fail(ctx: MutationCtx, title: str = "x", by: str = "raise") -> None:
    await ctx.db.insert(Book(title=title))
    await FAILURES[by](ctx)


@app.action
async def fail_in_action(ctx: ActionCtx, by: str = "raise") -> None:
    await FAILURES[by](ctx)


@app.query
def leave_in_thread(ctx: sync.QueryCtx) -> None:
    sys.exit(SECRET)


@app.mutation
async def add_and_return_nonsense(ctx: MutationCtx, title: str) -> Any:
    await ctx.db.insert(Book(title=title))
    return {"secret": 2**70}


def _stars(given: int) -> int:
    if not 1 <= given <= 5:
        raise ValueError("a book has one to five stars")
    return given


@app.mutation
async def rate(ctx: MutationCtx, stars: Annotated[int, AfterValidator(_stars)]) -> int:
    return stars


@app.mutation
async def wait_and_add(ctx: MutationCtx, title: str) -> None:
    await ctx.db.insert(Book(title=title))
    await wait(title)


@app.query
async def wait_and_count(ctx: QueryCtx, title: str) -> int:
    await wait(title)
    return len(await ctx.db.query(Book).collect())


@app.action
async def wait_in_action(ctx: ActionCtx, title: str) -> str:
    await wait(title)
    return "done"


async def wait(name: str) -> None:
    """Wait in a function until the test lets it go on."""
    held[name].running.set()
    await held[name].may_go_on.wait()


# ----- servers


class Api:
    """The HTTP API as a caller sees it."""

    def __init__(self, http: httpx.AsyncClient, asgi: Asgi) -> None:
        self.http = http
        self.asgi = asgi
        self.failures = FAILURES

    def hold(self, name: str) -> Held:
        """Hold the functions that are given this name."""
        held[name] = Held()
        return held[name]

    async def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """The answer to a body, which is sent as JSON if it is not text."""
        if isinstance(body, str | bytes):
            return await self.http.post(path, content=body, **options)
        return await self.http.post(path, json=body, **options)

    async def call(self, kind: str, function: str, form: str = "json", /, **args: Any) -> dict[str, Any]:
        """What a call is answered, with status 200."""
        body = {"path": f"doors.http_fixtures:{function}", "args": args, "format": form}
        response = await self.post(f"/api/{kind}", body)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    async def value(self, kind: str, function: str, form: str = "json", /, **args: Any) -> Any:
        """The value of a call that succeeds."""
        found = await self.call(kind, function, form, **args)
        assert found.keys() == {"status", "value"}, found
        assert found["status"] == "success"
        return found["value"]

    async def error(self, kind: str, function: str, /, **args: Any) -> str:
        """The message of a call that fails."""
        found = await self.call(kind, function, **args)
        assert found.keys() == {"status", "errorMessage"}, found
        assert found["status"] == "error"
        return str(found["errorMessage"])


@asynccontextmanager
async def _before(asgi: Asgi, *, on_socket: bool) -> AsyncIterator[Api]:
    """A caller before a server."""
    if on_socket:
        async with listening(asgi) as url, httpx.AsyncClient(base_url=url, timeout=30) as http:
            yield Api(http, asgi)
    else:
        async with httpx.AsyncClient(base_url="http://shop", transport=httpx.ASGITransport(asgi)) as http:
            yield Api(http, asgi)


Door = Callable[..., AbstractAsyncContextManager[Api]]
Shop = Callable[..., AbstractAsyncContextManager[tuple[Api, TestApp]]]


def door_to(database: str, *, on_socket: bool) -> Door:
    """A way to open the bookshop on a database, with settings of the test's own."""

    @asynccontextmanager
    async def opened(**settings: Any) -> AsyncIterator[Api]:
        asgi = asgi_app(app, config=app.config(database=database, **settings))
        async with nullcontext() if on_socket else asgi.lifespan(), _before(asgi, on_socket=on_socket) as api:
            yield api

    return opened


def shop_on(database: str, *, on_socket: bool) -> Shop:
    """The same with its backend, whose clock the test moves."""

    @asynccontextmanager
    async def opened(**settings: Any) -> AsyncIterator[tuple[Api, TestApp]]:
        async with (
            TestApp(app, database, **settings) as backend,
            _before(asgi_app(app, backend=backend), on_socket=on_socket) as api,
        ):
            yield api, backend

    return opened


@pytest.fixture
def bookshop() -> App:
    """The program behind the door."""
    return app


@pytest.fixture(params=["in process", "on a socket"])
def door(request: pytest.FixtureRequest, database_url: str) -> Door:
    """The bookshop's door, on both stores, with and without a socket."""
    return door_to(database_url, on_socket=request.param == "on a socket")


@pytest.fixture
def shop(database_url: str) -> Shop:
    """The bookshop on both stores, without a socket, and its backend."""
    return shop_on(database_url, on_socket=False)


@pytest.fixture
def far_shop(database_url: str) -> Shop:
    """The same on a socket."""
    return shop_on(database_url, on_socket=True)


@pytest.fixture
def near_door(sqlite_url: str) -> Door:
    """The bookshop's door on SQLite, without a socket: for what depends on neither."""
    return door_to(sqlite_url, on_socket=False)


@pytest.fixture
def far_door(database_url: str) -> Door:
    """The bookshop's door on both stores, on a socket."""
    return door_to(database_url, on_socket=True)
