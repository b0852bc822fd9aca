"""What tests of the admin interface share: a small program with tasks, and a desk from which it is looked after."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from penstock import App, Id, MutationCtx, MutationTaskCtx, Table, TaskCtx, asgi_app
from penstock.clock import SystemClock
from penstock.operations.every import OPERATIONS
from penstock.testing import TestApp, TestClock

SECRET = "Let-me-in-7f3a"
TOKEN = {"authorization": f"Bearer {SECRET}"}
READS = ("live", *(one.path.strip("/") for one in OPERATIONS if not one.changes))
CHANGES = tuple(one.path.strip("/") for one in OPERATIONS if one.changes)
BY_FILTER = ("tasks/retry", "tasks/cancel", "tasks/skip", "tasks/delete")
BY_NAME = ("tasks/pause", "tasks/resume", "tasks/reconcile")

app, stranger = App(), App()
failing: set[str] = set()


class Order(Table, name="order_of_admins"):
    name: str
    amount: int = 1


@app.reactive_task(Order, filter=lambda order: order.amount > 0, watch=("amount",), name="ship", retry=None)
async def ship(ctx: TaskCtx[Order]) -> None:
    order = await ctx.get_document()
    if order.name in failing:
        raise ConnectionError(f"no way for {order.name}")


@app.reactive_task(Order, name="note", filter=lambda order: order.amount > 100)
async def note(ctx: MutationTaskCtx[Order]) -> None:
    await ctx.get_document()


@app.mutation
async def put(ctx: MutationCtx, names: list[str], amount: int = 1) -> list[Id[Order]]:
    return [await ctx.db.insert(Order(name=name, amount=amount)) for name in names]


@stranger.mutation
async def nothing(ctx: MutationCtx) -> None:
    """A program that declares no task."""


class Desk:
    def __init__(self, backend: TestApp, http: httpx.AsyncClient) -> None:
        self.backend = backend
        self.http = http

    async def get(self, path: str, /, **query: Any) -> Any:
        return self._value(await self.http.get(f"/admin/{path}", params=query))

    async def post(self, path: str, /, **body: Any) -> Any:
        return self._value(await self.http.post(f"/admin/{path}", json=body))

    async def orders(self, *names: str, amount: int = 1) -> list[Id[Order]]:
        made = await self.backend.run_mutation(put, list(names), amount)
        await self.backend.plan()
        return made

    async def run(self) -> None:
        await self.backend.run_until_idle(raise_errors=False)

    async def counts(self, **query: Any) -> dict[str, int]:
        found: dict[str, int] = (await self.get("tasks/count", **query))["counts"]
        return found

    def _value(self, answer: httpx.Response) -> Any:
        assert answer.status_code == 200, answer.text
        assert answer.headers["cache-control"] == "no-store"
        return answer.json()


def on(app: App, url: str, work: Callable[[TestApp], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with TestApp(app, url, clock=TestClock(SystemClock().now())) as test:
            return await work(test)

    return asyncio.run(main())


@asynccontextmanager
async def desk(database: str, of: App = app, token: str = SECRET, **settings: Any) -> AsyncIterator[Desk]:
    async with TestApp(of, database, admin_token=token, **settings) as backend, before(backend) as admin:
        yield admin


@asynccontextmanager
async def before(backend: TestApp) -> AsyncIterator[Desk]:
    web = httpx.ASGITransport(asgi_app(backend.app, backend=backend), raise_app_exceptions=False)
    async with httpx.AsyncClient(base_url="http://shop", transport=web, headers=TOKEN) as http:
        yield Desk(backend, http)


def refused(answer: httpx.Response, status: int, code: str) -> str:
    """Expect a refusal; its message."""
    assert (answer.status_code, answer.json().get("code")) == (status, code), f"{answer.url}: {answer.text}"
    assert answer.json().keys() == {"code", "message"}
    return str(answer.json()["message"])
