"""A desk in Litestar. Start it with ``litestar --app desk:web run`` or ``uvicorn desk:web``."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from litestar import Litestar, Request, Response, asgi, get, post
from litestar.di import NamedDependency, Provide
from litestar.types import Receive, Scope, Send

from penstock import App, ApplicationError, Backend, Id, MutationCtx, QueryCtx, Table, asgi_app, public
from penstock.errors import PenstockError
from penstock.server.answers import framework_answer

app = App()


class Visit(Table):
    guest: str


@app.mutation(access=public)
async def plan(ctx: MutationCtx, guest: str) -> Id[Visit]:
    if not guest:
        raise ApplicationError("Who comes?", status=409)
    return await ctx.db.insert(Visit(guest=guest))


@app.query(access=public)
async def visit(ctx: QueryCtx, visit: Id[Visit]) -> Visit | None:
    return await ctx.db.get(Visit, visit)


penstock = asgi_app(app, services="all")


@asynccontextmanager
async def lifespan(_web: Litestar) -> AsyncIterator[None]:
    async with penstock.lifespan():
        yield


async def backend() -> Backend:
    return await penstock.opening.backend()


def answer(_request: Request[Any, Any, Any], error: PenstockError) -> Response[bytes]:
    told = framework_answer(error, dev=False)
    return Response(told.body, status_code=told.status, headers=told.headers, media_type="application/json")


@post("/visits/{guest:str}")
async def plan_visit(guest: str, desk: NamedDependency[Backend]) -> str:
    return await desk.run_mutation(plan, "" if guest == "nobody" else guest)


@get("/visits/{number:str}")
async def show_visit(number: str, desk: NamedDependency[Backend]) -> dict[str, Any] | None:
    found = await desk.run_query(visit, Id(number))
    return None if found is None else found.model_dump(mode="json")


@asgi("/backend", is_mount=True, copy_scope=True)
async def own_api(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer at penstock's paths, to which Litestar adds a slash at the end."""
    given: Any = {**scope, "path": scope["path"].rstrip("/")}
    await penstock(given, receive, send)  # type: ignore[arg-type]  # Litestar's types of ASGI are its own


web = Litestar(
    [plan_visit, show_visit, own_api],
    lifespan=[lifespan],
    dependencies={"desk": Provide(backend)},
    exception_handlers={PenstockError: answer},
)
