"""``/admin``: looks after reactive tasks, outboxes and live queries, for people and programs that have the admin token.

Owns admission, the number of requests at once, and the form of answers and errors. Each noun has a file of
its own with its routes, ``/admin/<noun>/<verb>``, in the words of the command line.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock import errors
from penstock.app import Backend
from penstock.calls.run.dispatch import Places
from penstock.config import Config
from penstock.server.access import admit, exchange_of
from penstock.server.adminoutbox import OUTBOX_ROUTES
from penstock.server.admintasks import TASK_ROUTES
from penstock.server.adminwords import LISTED, MOST_LISTED, AdminRoute, Words, read_words
from penstock.server.answers import Answer, answer_error, name_of, refusal
from penstock.server.audited import audited
from penstock.server.http import not_routed, opened, send_answer, send_json
from penstock.server.opening import Opening
from penstock.server.requests import Refused
from penstock.wire.outgoing import Format, encode_result

_MOST_AT_ONCE = 8  # so that looking at millions of rows leaves connections for calls
_LONGEST = 1000  # characters of the arguments of a watched query
_NOT_FOUND = (errors.TaskNotFound, errors.OutboxNotFound)


async def _live(backend: Backend, words: Words) -> Any:
    """The watched queries of this process, those that cost most first."""
    limit = words.number("limit", LISTED, MOST_LISTED)
    found = sorted(backend.live_queries.report(), key=lambda one: one.seconds, reverse=True)
    told = [one._replace(arguments=one.arguments[:_LONGEST])._asdict() for one in found[:limit]]
    return {"queries": told, "more": len(found) - len(told)}


_ROUTES = (*TASK_ROUTES, *OUTBOX_ROUTES, AdminRoute("/live", ("limit",), _live))


def admin_mount(opening: Opening) -> Mount:
    """The admin interface. There is none without the setting `admin_token`."""
    admin = Admin(opening)
    router = Router([admin.route(route) for route in _ROUTES], redirect_slashes=False)
    return Mount("/admin", app=ExceptionMiddleware(_gate(router, opening.config), handlers={HTTPException: not_routed}))


def _gate(app: ASGIApp, config: Config) -> ASGIApp:
    """Checks the token before the route is looked up."""

    async def gated(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":  # there are routes of no other kind
            admit(Request(scope), config.admin_token)
        await app(scope, receive, send)

    return gated


class Admin:
    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._config = opening.config
        taken = f"{_MOST_AT_ONCE} requests to the admin interface are in progress."
        self._places = Places(_MOST_AT_ONCE, self._config.call_timeout, taken)

    def route(self, route: AdminRoute) -> Route:
        async def endpoint(request: Request) -> Response:
            with self._opening.traced(request.headers):
                try:
                    return await self._answer(request, route)
                except (Refused, errors.TryAgain, errors.InputError, *_NOT_FOUND) as error:
                    return send_answer(self._refusal(request, error))

        return Route(route.path, endpoint, methods=["POST" if route.changes else "GET"])

    # ----- steps

    async def _answer(self, request: Request, route: AdminRoute) -> Response:
        words = await read_words(request, route, self._config)
        backend = await opened(self._opening)
        async with self._places.take("It", limited=not route.changes):  # a change ends by itself in time
            if route.changes:
                about, act = words.given, f"admin: {route.path.strip('/').replace('/', ' ')}"
                async with audited(backend.engine, "the admin token", "edit", act, about) as outcome:
                    value = await route.answer(backend, words)
                    outcome.told = "Done."
            else:
                value = await route.answer(backend, words)
        return send_json(await asyncio.to_thread(encode_result, value, Format.CLEAN))  # it may be thousands of rows

    def _refusal(self, request: Request, error: Refused | errors.PenstockError) -> Answer:
        exchange = exchange_of(request)
        if isinstance(error, Refused | errors.TryAgain):
            return answer_error(error, exchange, Format.CLEAN, dev=self._config.dev)
        exchange.error = name_of(error)
        status = 404 if isinstance(error, _NOT_FOUND) else 400
        return refusal(status, exchange.error, str(error))
