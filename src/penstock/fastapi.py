"""penstock in FastAPI: its backend as a dependency, its errors as answers, and rows as bodies.

Imports FastAPI, which penstock does not depend on. Leaves opening to `server/opening`, statuses to `server/answers`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Request, Response
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema, to_json

from penstock.app import App, Backend
from penstock.config import Config
from penstock.errors import PenstockError
from penstock.server.answers import framework_answer
from penstock.server.asgi import asgi_app
from penstock.server.http import send_answer
from penstock.server.requests import Refused
from penstock.services.service import Services

T = TypeVar("T")


def install(
    web: FastAPI,
    app: App,
    *,
    services: Services = (),
    config: Config | None = None,
    path: str | None = None,
) -> Callable[[], Awaitable[Backend]]:
    """Open an app with FastAPI's, and answer its errors with their statuses.

    Args:
        web: FastAPI's app. Its own lifespan runs while the backend is open.
        app: penstock's.
        services: The services to run in this process: ``"all"``, or a list; none by default.
        config: The settings; those of `App.config` by default.
        path: Where penstock's own HTTP API, its web sockets and ``/rest`` are mounted, such as ``"/backend"``; nowhere
            by default.

    Returns:
        The dependency that gives endpoints the backend: ``Annotated[Backend, Depends(backend)]``. Tests replace it in
        ``web.dependency_overrides``.
    """
    asgi, inner = asgi_app(app, services=services, config=config), web.router.lifespan_context

    @asynccontextmanager
    async def lifespan(of: Any) -> AsyncIterator[Any]:
        async with asgi.lifespan(), inner(of) as state:
            yield state

    async def answer(_request: Request, error: Exception) -> Response:
        return send_answer(framework_answer(error, dev=asgi.opening.config.dev))

    web.router.lifespan_context = lifespan
    web.add_exception_handler(PenstockError, answer)
    web.add_exception_handler(Refused, answer)
    if path is not None:
        web.mount(path, asgi)
    return asgi.opening.backend


class _AsJson:
    """Makes an annotation read JSON's values as JSON: FastAPI parses a body first, and then a text is no datetime."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(to_json, core_schema.json_schema(handler(source)))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        inner: Any = schema
        return handler(inner["schema"]["schema"])


FromJson = Annotated[T, _AsJson()]
"""The annotation of a body that is a row, or contains rows: ``order: FromJson[Order]``."""
