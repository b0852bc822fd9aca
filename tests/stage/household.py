"""A server whose queries ask who calls, with a provider of identities."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from stage.listening import listening
from stage.provider import Provider, provider
from stage.sockets import SocketClient, socket_client
from stage.waits import SOON
from starlette.applications import Starlette

from penstock import OIDC, App, Identity, MutationCtx, QueryCtx, Table, asgi_app
from penstock.testing import TestApp, TestClock

ADMIN = "the admin token:"


class Paper(Table):
    owner: str
    text: str


class House:
    """A server, its provider, and how often its queries ran."""

    def __init__(self, issuer: Provider) -> None:
        self.issuer = issuer
        self.app = app = App(tables=[Paper], auth=[OIDC(issuer.url, "shop")])
        self.runs = 0
        self.url = ""
        self.web: Starlette
        self.test: TestApp
        self.http: httpx.AsyncClient

        @app.query
        async def whoami(ctx: QueryCtx) -> Identity | None:
            self.runs += 1
            return await ctx.auth.get_user_identity()

        @app.query
        async def papers(ctx: QueryCtx, loud: bool = False) -> list[str]:
            """The papers of the caller."""
            self.runs += 1
            owner = (await ctx.auth.require()).subject
            found = [paper.text async for paper in ctx.db.query(Paper) if paper.owner == owner]
            return [one.upper() for one in found] if loud else found

        @app.query
        async def number(ctx: QueryCtx) -> int:
            self.runs += 1
            return await ctx.db.query(Paper).count()

        @app.mutation
        async def write(ctx: MutationCtx, text: str) -> str:
            owner = (await ctx.auth.require()).subject
            await ctx.db.insert(Paper(owner=owner, text=text))
            return owner

        @app.mutation
        async def greet(ctx: MutationCtx) -> str:
            return (await ctx.auth.require()).subject

        @app.internal_query
        async def inner(ctx: QueryCtx) -> bool:
            return ctx._scope.transaction.caller.is_system

    async def call(self, kind: str, function: str, authorization: str = "", /, **args: Any) -> httpx.Response:
        headers = {"authorization": authorization} if authorization else {}
        body = {"path": f"{__name__}:{function}", "args": args, "format": "json"}
        return await self.http.post(f"/api/{kind}", json=body, headers=headers)

    @asynccontextmanager
    async def socket(self) -> AsyncIterator[SocketClient]:
        async with socket_client(self.url, __name__) as client:
            await client.connect()
            yield client


@asynccontextmanager
async def house(database: str, clock: TestClock | None = None) -> AsyncIterator[House]:
    """The server on a free port."""
    clock = clock or TestClock()
    with provider(clock) as issuer:
        one = House(issuer)
        async with (
            TestApp(one.app, database, clock=clock, admin_token=ADMIN) as test,
            listening(web := asgi_app(one.app, backend=test)) as url,
            httpx.AsyncClient(base_url=url, timeout=SOON) as http,
        ):
            one.url, one.web, one.test, one.http = url, web, test, http
            yield one
