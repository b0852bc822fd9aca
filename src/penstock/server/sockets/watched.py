"""The queries that one client asks to watch: its view watches some, others are refused.

Owns the modifications of queries that go out with the next transition. Leaves answers to the view.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from penstock.app import Backend
from penstock.clock import SystemClock
from penstock.errors import InputError, LimitExceeded, Unauthenticated, at_the_door
from penstock.functions.function import AnyFunction
from penstock.live.view import View
from penstock.observe.logs import event
from penstock.server.requests import Refused, function_path
from penstock.server.sockets.client import ClientKind
from penstock.server.sockets.system import system_query
from penstock.wire import sockets
from penstock.wire.incoming import check_keys

_MOST_BYTES = 24 * 1024 * 1024  # of queries, so that with their journals one message can bring them all back
_AT_ONCE = 100  # queries
_TOO_LARGE = f"The queries that a client watches may have {_MOST_BYTES} bytes with their arguments."

_Query = tuple[AnyFunction, dict[str, Any], str | None]  # with its arguments, and the journal of an earlier answer
Fail = Callable[[InputError, str], bytes]  # the fields of an error, and the path of its function


class Watched:
    """See the module."""

    _clock = SystemClock()

    def __init__(self, client: ClientKind, view: View, backend: Backend, fail: Fail) -> None:
        self.changes: dict[int, bytes] = {}  # the next modifications, by the numbers of their queries
        # while some of a message's queries are added: no transition may go out between two of them
        self.is_changing = False
        self._client = client
        self._view = view
        self._backend = backend
        self._fail = fail
        self._sizes: dict[int, int] = {}  # of the arguments of all queries
        self._bytes = 0
        self._refused: dict[int, _Query | None] = {}  # with queries to watch once a token is accepted
        self._refusal: Unauthenticated | None = None

    async def modify(self, found: sockets.ModifyQuerySet) -> None:
        """Watch some queries, and others no more."""
        self.is_changing = True
        for place, one in enumerate(found.modifications):
            if place % _AT_ONCE == _AT_ONCE - 1:
                await self._clock.sleep(0)  # others have their turn
            is_known = one.query_id in self._sizes
            if is_known and isinstance(one, sockets.Remove):
                self._remove(one.query_id)
            elif not is_known and isinstance(one, sockets.Add):
                self._add(one)
            else:
                known = "is watched already" if is_known else "is not watched"
                tell_bad(self._client.name, f"{type(one).__name__} of query {one.query_id}, which {known}")
        self.is_changing = False

    def refuse(self, error: Unauthenticated) -> None:
        """Fail all queries until a token is accepted."""
        self._refusal = error
        for number, entry in list(self._view.queries.items()):
            self._view.remove(number)
            self._refuse(number, entry.function.name, entry.journal, error)
            self._refused[number] = entry.function, entry.arguments, entry.journal

    def accept(self) -> None:
        """Watch again the queries that failed for want of a token."""
        self._refusal = None
        for number, query in list(self._refused.items()):
            if query is not None:
                del self._refused[number]
                try:
                    self._view.add(number, *query)
                except LimitExceeded as error:
                    self._refuse(number, query[0].name, query[2], error)

    def _add(self, one: sockets.Add) -> None:
        self._sizes[one.query_id] = size_of(one)
        self._bytes += size_of(one)
        query = None
        try:
            if self._bytes > _MOST_BYTES:
                raise LimitExceeded(
                    _TOO_LARGE, fix="Store what is large, and give the id of its row.", limit=_MOST_BYTES
                )
            path, args = read_call(one, is_npm=self._client.is_npm)
            query = *self._prepare(path, args), one.journal
            if self._refusal is not None:
                raise self._refusal
            self._view.add(one.query_id, *query)
        except InputError as error:
            self._refuse(one.query_id, one.udf_path, one.journal, error)
            if error is self._refusal:
                self._refused[one.query_id] = query

    def _prepare(self, path: str, args: bytes) -> tuple[AnyFunction, dict[str, Any]]:
        """A query with its checked arguments: a public one, or one that only administrators can name."""
        own = system_query(self._backend.app, path) if self._view.caller.is_system else None
        return self._backend.dispatch.prepare_query(path, args, own)

    def _refuse(self, number: int, path: str, journal: str | None, error: InputError) -> None:
        self._refused[number] = None
        error.at_the_door = True
        self.changes[number] = sockets.query_modification(number, self._fail(error, path), journal, failed=True)

    def _remove(self, number: int) -> None:
        self._bytes -= self._sizes.pop(number)
        if number in self._refused:
            del self._refused[number]
        else:
            self._view.remove(number)
        self.changes[number] = sockets.query_removed(number)


def read_call(call: sockets.Call | sockets.Add, *, is_npm: bool) -> tuple[str, bytes]:
    """The function and the arguments that a client names; one of JavaScript has to be able to read them again.

    Raises:
        InputError: They cannot be read.
    """
    with at_the_door():
        if isinstance(call.args, InputError):
            raise call.args
        if is_npm:
            check_keys(call.args)
        try:
            return function_path(call.udf_path), call.args
        except Refused as error:
            raise InputError(error.message) from error


def size_of(call: sockets.Call | sockets.Add) -> int:
    return len(call.args) if isinstance(call.args, bytes) else 0


def tell_bad(client: str, error: str) -> None:
    event("socket.bad_message", logging.WARNING, client=client[:100], error=error[:500])
