"""``/admin``: each operation as a route, ``/admin/<noun>/<verb>``, for people and programs that have the admin token.

Owns admission, the number of requests at once, the form of answers and errors, and the audit log. `operations` says
what can be done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock import errors
from penstock.app import Backend
from penstock.calls.run.dispatch import Places
from penstock.calls.run.engine import Engine
from penstock.config import Config
from penstock.dataclass import dataclass
from penstock.errors import PenstockError
from penstock.observe.logs import event
from penstock.operations.every import OPERATIONS
from penstock.operations.operation import Given, Noun, Operation, Parameter
from penstock.server.access import admit, exchange_of
from penstock.server.adminwords import read_words, values_of
from penstock.server.answers import Answer, answer_error, name_of, refusal
from penstock.server.http import not_routed, open_backend, send_answer, send_json
from penstock.server.opening import Opening
from penstock.server.requests import Refused
from penstock.wire.outgoing import Format, encode_result

_MOST_AT_ONCE = 8  # so that looking at millions of rows leaves connections for calls
_LONGEST = 1000  # characters of the arguments of a watched query
_NOT_FOUND = (errors.TaskNotFound, errors.OutboxNotFound)


_live = Noun("live")


@_live.lists(Parameter("limit", "page"))
async def _show_watched(backend: Backend, given: Given) -> Any:
    """Show the watched queries of this process, the most expensive first."""
    limit = given["limit"]
    found = sorted(backend.live_queries.report(), key=lambda one: one.seconds, reverse=True)
    told = [one._replace(arguments=one.arguments[:_LONGEST])._asdict() for one in found[:limit]]
    return {"queries": told, "more": len(found) - len(told)}


def admin_mount(opening: Opening) -> Mount:
    """The admin interface. There is none without the setting `admin_token`."""
    admin = Admin(opening)
    router = Router([admin.route(one) for one in (*OPERATIONS, _show_watched)], redirect_slashes=False)
    return Mount("/admin", app=ExceptionMiddleware(_gate(router, opening.config), handlers={HTTPException: not_routed}))


def _gate(app: ASGIApp, config: Config) -> ASGIApp:
    """Check the token before the route is looked up."""

    async def check_token(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":  # there are routes of no other kind
            admit(Request(scope), config.admin_token)
        await app(scope, receive, send)

    return check_token


class Admin:
    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._config = opening.config
        taken = f"{_MOST_AT_ONCE} requests to the admin interface are in progress."
        self._places = Places(_MOST_AT_ONCE, self._config.call_timeout, taken)

    def route(self, operation: Operation) -> Route:
        async def endpoint(request: Request) -> Response:
            with self._opening.trace(request.headers):
                try:
                    return await self._answer(request, operation)
                except (Refused, errors.TryAgain, errors.InputError, *_NOT_FOUND) as error:
                    return send_answer(self._refusal(request, error))

        return Route(operation.path, endpoint, methods=["POST" if operation.changes else "GET"])

    # ----- steps

    async def _answer(self, request: Request, operation: Operation) -> Response:
        words = await read_words(request, operation, self._config)
        given, backend = values_of(words, operation), await open_backend(self._opening)
        with _refusing(operation, given):
            async with self._places.take("It", limited=not operation.changes):  # a change ends by itself in time
                if operation.changes:
                    act = f"admin: {operation.noun} {operation.verb}"
                    async with audit(backend.engine, "the admin token", "edit", act, words) as outcome:
                        value = await operation.run(backend, given)
                        outcome.told = "Done."
                else:
                    value = await operation.run(backend, given)
        return send_json(await asyncio.to_thread(_encode, operation, value))  # it may be thousands of rows

    def _refusal(self, request: Request, error: Refused | errors.PenstockError) -> Answer:
        exchange = exchange_of(request)
        if isinstance(error, Refused | errors.TryAgain):
            return answer_error(error, exchange)
        exchange.error = name_of(error)
        status = 404 if isinstance(error, _NOT_FOUND) else 400
        return refusal(status, exchange.error, str(error))


def _encode(operation: Operation, value: Any) -> bytes:
    return encode_result(operation.answers(value), Format.CLEAN)


@contextmanager
def _refusing(operation: Operation, given: Given) -> Iterator[None]:
    """Answer the errors of an operation as it says, but no error from inside a function of the program."""
    try:
        yield
    except errors.PenstockError as error:
        found = operation.refusals.get(type(error))
        if found is None or error.raised_in:
            raise
        text = found.text.format(**{**given, "what": error.what}) or str(error)
        raise Refused(found.status, found.code, text) from error


@dataclass(slots=True)
class Outcome:
    """How an act ended, as the audit log tells it."""

    told: str = "Not done: an unexpected error."


@asynccontextmanager
async def audit(engine: Engine, who: str, role: str, act: str, about: Mapping[str, Any]) -> AsyncIterator[Outcome]:
    """Log an act, for a block that does it and says how it ended.

    Args:
        engine: The store and the clock.
        who: Who does it.
        role: In which role.
        act: The name of the act.
        about: What it is about, without secrets.
    """
    act_id, outcome = UUID(int=engine.clock.uuid7()), Outcome()
    await engine.store.audit.begin(act_id, engine.clock.now(), who, role, act, about)
    try:
        yield outcome
    except PenstockError as error:
        outcome.told = f"Not done: {error}"
        raise
    finally:
        event("audit.act", logging.INFO, who=who, act=act, about=about, outcome=outcome.told)
        await engine.store.audit.end(act_id, outcome.told)
