"""The web socket of Convex's clients: the queries that one client watches, and the mutations and actions that it calls.

Owns the order of what a client is sent: the response of a mutation waits for the first tick that shows its writes. The
transition to that tick follows at once. So a client that has a response has its own write, and never an older state.
Running queries is the matter of `services.live`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any

from pydantic_core import to_json
from starlette.websockets import WebSocket, WebSocketDisconnect

from penstock.app import Backend
from penstock.calls.run.threads import offload
from penstock.clock import SystemClock
from penstock.dataclass import dataclass
from penstock.errors import CallTimeout, InputError, LimitExceeded, TryAgain, Unauthenticated
from penstock.functions.function import FunctionKind
from penstock.identity.caller import Caller
from penstock.live.view import Step, View
from penstock.observe.loglines import log_lines
from penstock.observe.logs import event
from penstock.server.answers import Exchange, function_error
from penstock.server.callers import Credentials, anonymous, as_admin, with_token
from penstock.server.http import check_room, open_backend
from penstock.server.opening import ABORT, SIZE, TAKEN, Opening
from penstock.server.requests import Refused
from penstock.server.sockets.calls import Calls
from penstock.server.sockets.client import kind_of
from penstock.server.sockets.watched import Watched, read_call, tell_bad
from penstock.server.subscribe import WrittenAnswers
from penstock.store.nouns.requests import RequestKey
from penstock.wire import sockets
from penstock.wire.outgoing import encode_result
from penstock.wire.tags import read_u64

_HEARTBEAT = 15.0  # seconds; browsers cannot see a web socket's own pings
_PATIENCE = 60.0  # seconds that a client may take for one message
_LAST_WORD = 1.0  # seconds for the end of the connection
_RETURN, _SETTLE = 0.5, 0.02  # seconds in which a client that is back begins to send again, and sends all of it
# The last bits of the times of a client without a lasting session are the number of its session. The last bits of the
# database's time make room for it, so that times stay below 2**63.
_TAG_BITS, _LEFT_OUT = 30, 19
_TAG = 2**_TAG_BITS - 1

_SUCCESS, _ERROR = b'{"status":"success",', b'{"status":"error",'
_MESSAGE = len(b'{"status":"error","errorMessage":')

LEFT, GOING_AWAY, BAD_REQUEST, OUR_FAULT, TRY_LATER = 1000, 1001, 1008, 1011, 1013
TOO_MUCH, FAILED = "TooManyConcurrentRequests", "InternalServerError"  # reasons for which clients know how long to wait


class HangUp(Exception):
    """The connection ends, with a code and a reason, after a last message; `error` is for the log."""

    def __init__(self, code: int, reason: str, last: bytes = b"", error: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.last = last
        self.error = error


@dataclass(frozen=True, slots=True)
class _Held:
    """The result of a mutation, until a tick shows what it wrote."""

    request: int
    result: bytes
    lines: Sequence[str]
    key: RequestKey | None  # None if nothing is watched that could show what it wrote


class Socket:
    """One connection of one client."""

    _clock = SystemClock()

    def __init__(self, websocket: WebSocket, client: str, opening: Opening, written: WrittenAnswers) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._websocket = websocket
        self._opening = opening
        self._written = written
        self._request_id = f"{self._clock.seed():016x}"
        self._nobody = anonymous(websocket, self._request_id)
        self._credentials = replace(self._nobody)
        self._backend: Backend
        self._view: View | None = None
        self._watched: Watched
        self._client = kind_of(client)
        self._taken: Callable[[], object]  # lets the next client send a large message
        # what the client is to know
        self._out: list[bytes] = []  # messages that can go at once
        self._held: list[_Held] = []
        self._sent = self._reached = sockets.Version(0, 0, 0)
        self._tick = 0  # the last one that the client was brought to
        self._responded = False  # whether a response went out after the last transition
        self._skew: int | None = None  # of the client's clock, in milliseconds
        self._offset = 0  # of its times, if those of the database went back
        # calls
        self._session = ""  # none yet if it has no lasting one, and calls no mutation
        self._is_back = False  # whether it brings the number of its session
        self._resends = False  # whether it may send again what it sent over a connection before
        self._calls = Calls(self._run_call)
        self._committing: RequestKey | None = None  # one that may be visible before its response is here
        self._end: asyncio.Future[HangUp] = asyncio.get_running_loop().create_future()
        self._sent_at = self._clock.monotonic()
        self._beating: asyncio.TimerHandle  # the next heartbeat

    @property
    def _watching(self) -> View:
        assert self._view is not None  # noqa: S101 - it connected
        return self._view

    async def run(self) -> None:
        """Talk to the client until it leaves, or has to go."""
        began = self._clock.monotonic()
        talking = asyncio.create_task(self._talk(), name="penstock-socket")
        self._opening.endless.add(self)
        try:
            end = await self._end
            talking.cancel()
            await asyncio.wait((talking,))
            await self._close(end)
        finally:
            talking.cancel()
            self._calls.clear()
            self._opening.endless.discard(self)
            self.closed.set_result(None)
            for one in self._held:
                if one.key is not None:
                    self._backend.live_queries.let_go(one.key)
            if self._view is not None:
                self._view.close()
        seconds = round(self._clock.monotonic() - began, 1)
        event(
            "socket.closed",
            client=self._client.name[:100],
            code=end.code,
            reason=end.reason,
            error=end.error,
            seconds=seconds,
            request_id=self._request_id,
        )
        # What it has called goes on: the client asks for it again when it is back.
        await self._calls.finish()

    def hang_up(self, code: int = GOING_AWAY, reason: str = "Shutdown", last: bytes = b"", error: str = "") -> None:
        if not self._end.done():
            self._end.set_result(HangUp(code, reason, last, error))

    async def _close(self, end: HangUp) -> None:
        with suppress(OSError, RuntimeError, WebSocketDisconnect):  # it has left
            try:
                async with asyncio.timeout(_LAST_WORD):
                    if end.last:
                        await self._websocket.send_text(end.last.decode())
                    await self._websocket.close(end.code, end.reason)
            except TimeoutError:
                self._abort()

    def _abort(self) -> None:
        if abort := self._websocket.scope.get("state", {}).get(ABORT):
            abort()

    # ----- messages of the client

    async def _talk(self) -> None:
        try:
            self._backend = await open_backend(self._opening)
            check_room(self._backend)
            self._view = view = self._backend.live_queries.view(self._credentials.caller)
            self._watched = Watched(self._client, view, self._backend, self._query_failure)
            await self._connect()
            sending = asyncio.create_task(self._guard(self._send))
            try:
                while True:
                    await self._take(await self._receive())
            finally:
                sending.cancel()
        except Exception as error:  # noqa: BLE001 - each has its own way to end the connection
            self._hang_up_for(error)

    async def _guard(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            with self._opening.follow():
                await run()
        except Exception as error:  # noqa: BLE001 - each has its own way to end the connection
            self._hang_up_for(error)

    def _hang_up_for(self, error: Exception) -> None:
        if isinstance(error, HangUp):
            if error.code == BAD_REQUEST:
                tell_bad(self._client.name, error.error)
            self.hang_up(error.code, error.reason, error.last, error.error)
        elif isinstance(error, WebSocketDisconnect | OSError) and not isinstance(error, TimeoutError):
            self.hang_up(LEFT, "left")
        elif isinstance(error, TimeoutError):
            self._abort()
            self.hang_up(TRY_LATER, "too slow")
        elif isinstance(error, Refused) and error.code == "ShuttingDown":
            self.hang_up()
        elif isinstance(error, TryAgain):
            event("socket.overloaded", logging.WARNING, error=error)
            self.hang_up(TRY_LATER, TOO_MUCH)
        else:
            event("socket.failed", logging.ERROR, exc_info=error, request_id=self._request_id)
            self.hang_up(OUR_FAULT, FAILED)

    async def _receive(self) -> sockets.Incoming:
        got = await self._websocket.receive()
        if got["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(got.get("code", 1000))
        text: bytes = got.get("bytes") or (got.get("text") or "").encode()
        size, most = got.get(SIZE, len(text)), self._opening.config.max_argument_bytes
        try:
            if size > sockets.MOST_BYTES:
                reason = f"This message has {size} bytes; {sockets.MOST_BYTES} are allowed."
                found = sockets.read_ends(text, LimitExceeded(reason))
            else:
                found = await offload(len(text), lambda: sockets.read_message(text, most))
        except InputError as error:
            raise _bad(str(error)) from error
        self._taken = got.get(TAKEN, int)
        if not isinstance(found, sockets.ModifyQuerySet):  # the arguments of many queries take as much memory
            self._taken()
        return found

    async def _take(self, found: sockets.Incoming) -> None:
        if isinstance(found, sockets.ModifyQuerySet):
            await self._watched.modify(found)
            self._taken()
            version = max(self._reached.query_set + 1, found.new_version)
            self._reached = self._reached._replace(query_set=version)
            self._watching.moved.set()
        elif isinstance(found, sockets.Call):
            await self._calls.wait_for_place()
            self._calls.add(found, self._credentials)
        elif isinstance(found, sockets.Authenticate):
            await self._authenticate(found)
        elif isinstance(found, sockets.Connect):
            raise _bad("Connect came twice")

    async def _connect(self) -> None:
        """Find the client's session, and the time that it has seen.

        Clients for browsers and Node keep a session for life. Others begin a new one with each connection, but say the
        last time that they saw. Its last bits are the number of their session here.
        """
        async with asyncio.timeout(_PATIENCE):
            first = await self._receive()
        if not isinstance(first, sockets.Connect):
            raise _bad("the first message must be Connect")
        observed = _time_of(first.max_observed_timestamp)
        if first.client_ts:
            self._skew = int(first.client_ts - self._clock.now().timestamp() * 1000)
        self._resends = first.connection_count > 0
        if self._client.is_npm:
            self._session = f"session {first.session_id}"  # never that of a client with a number
        else:
            self._is_back = observed & _TAG > 0
            observed |= 0 if self._is_back else self._clock.seed() & _TAG or 1
        self._reached = self._reached._replace(ts=observed)

    async def _begin_session(self) -> None:
        """Reserve the number of a session for its first mutation: who only watches writes nothing.

        If another client reserved it meanwhile, this one has the next one that is free.
        """
        requests, now = self._backend.engine.store.requests, self._backend.engine.clock.now()
        number = self._reached.ts & _TAG
        while not await requests.reserve(str(number), now) and not self._is_back:
            number += 1
            self._reached = self._reached._replace(ts=self._reached.ts + 1)
        self._session = str(number)

    async def _authenticate(self, found: sockets.Authenticate) -> None:
        """Learn who the client is. Its queries run again only if they depend on that, and it is somebody else now."""
        try:
            self._credentials = await self._credentials_of(found)
        except Unauthenticated as error:
            if not self._client.keeps_token:
                raise _refusal(error, self._reached.identity, attempted=True) from error
            self._credentials = replace(self._nobody, refusal=error)
            self._watched.refuse(error)
        self._watching.become(self._credentials.caller)
        if self._credentials.refusal is None:
            self._watched.accept()
        self._reached = self._reached._replace(identity=self._reached.identity + 1)
        self._watching.moved.set()

    async def _credentials_of(self, found: sockets.Authenticate) -> Credentials:
        nobody, admin_token = replace(self._nobody), self._opening.config.admin_token
        if found.token_type == "Admin":  # noqa: S105 - the word of the protocol
            return as_admin(nobody, found.value.encode("utf-8", "replace"), admin_token, found.impersonating)
        if found.token_type == "User":  # noqa: S105 - the word of the protocol
            return await with_token(nobody, found.value, self._backend.tokens)
        return nobody

    async def _check(self, credentials: Credentials) -> None:
        """End the connection if a token holds no more.

        Raises:
            Unauthenticated: It does not, and the client cannot fetch another one: what needs it fails instead.
        """
        try:
            await credentials.check(self._backend.tokens)
        except Unauthenticated as error:
            if not self._client.keeps_token:
                raise _refusal(error, self._sent.identity, attempted=False) from error
            error.at_the_door = True
            raise

    async def _check_queries(self) -> None:
        if self._credentials.refusal is not None:
            return
        try:
            await self._check(self._credentials)
        except Unauthenticated as error:
            self._credentials.refusal = error
            self._watched.refuse(error)

    # ----- calls

    async def _run_call(self, call: sockets.Call, credentials: Credentials) -> None:
        self._opening.begin_request()
        try:
            await self._guard(partial(self._answer_call, call, credentials))
        finally:
            self._opening.end_request()
        self._watching.moved.set()

    async def _answer_call(self, call: sockets.Call, credentials: Credentials) -> None:
        """Run a call, and respond; a mutation's response is held until a tick shows what it wrote."""
        key, lines = None, list[str]()
        dispatch, caller = self._backend.dispatch, credentials.caller
        try:
            await self._check(credentials)
            path, args = read_call(call, is_npm=self._client.is_npm)
            if call.type == "Mutation":
                key = await self._key_of(call.request_id, path, args, caller)
            with log_lines(told=self._opening.config.dev or credentials.is_admin) as lines:
                if key is None:
                    result = await dispatch.call(path, FunctionKind.ACTION, args, caller=caller, finish=self._encode)
                else:
                    encode = partial(self._end_mutation, key)
                    result = await dispatch.call_once(path, args, key, encode, resent=self._resends, caller=caller)
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            exchange = self._exchange(call.udf_path, credentials)
            self._respond(call, self._call_failure(error, exchange), lines, failed=True)
            self._responded |= call.type == "Mutation"
        else:
            if key is None:
                self._respond(call, result, lines, failed=False)
            else:
                self._hold(call.request_id, result, lines, key)
        finally:
            if self._committing is not None and self._committing == key:
                self._backend.live_queries.let_go(key)
                self._committing = None

    async def _key_of(self, request: int, path: str, args: bytes, caller: Caller) -> RequestKey:
        if not self._session:
            await self._begin_session()
        return RequestKey(self._session, request, _hash_of(path, args, caller))

    def _end_mutation(self, key: RequestKey, result: Any) -> bytes:
        """Write the result of a mutation, whose commit comes next: a tick may show it before its response is here."""
        if self._committing is None:  # or it runs again, after a conflict
            self._committing = key
            self._backend.live_queries.seek(key)
        return self._encode(result)

    def _encode(self, result: Any) -> bytes:
        written = encode_result(result, self._client.form)
        self._check_size(written)
        return written

    def _check_size(self, written: bytes) -> None:
        if len(written) > self._client.most_bytes:
            what = f"A result of {len(written)} bytes; clients of this kind read {self._client.most_bytes}."
            error = LimitExceeded(what, fix="Return less, such as a page.", limit=self._client.most_bytes)
            error.at_the_door = True
            raise error

    def _respond(self, call: sockets.Call, outcome: bytes, lines: Sequence[str], *, failed: bool) -> None:
        self._out.append(sockets.response(call.type, call.request_id, outcome, lines, failed=failed))

    def _hold(self, request: int, result: bytes, lines: Sequence[str], key: RequestKey) -> None:
        if not self._watching.queries:
            self._held.append(_Held(request, result, lines, None))
            return
        if self._committing is None:  # it took effect before
            self._backend.live_queries.seek(key)
        self._committing = None
        self._held.append(_Held(request, result, lines, key))

    def _call_failure(self, error: Exception, exchange: Exchange) -> bytes:
        """The message of an error, and perhaps the field of its data.

        Raises:
            TryAgain: The call had no effect, or nobody knows: the client is to come back and send it again.
            HangUp: Its token holds no more.
        """
        if isinstance(error, CallTimeout):
            said = str(error) if "limit" in error.facts else f"{exchange.function} took longer than it may."
            return to_json(f"[Request ID: {self._request_id}] {said}")
        if isinstance(error, TryAgain | HangUp):
            raise error
        return function_error(error, exchange)[_MESSAGE:-1]

    def _query_failure(self, error: Exception, path: str) -> bytes:
        return function_error(error, self._exchange(path, self._credentials))[len(_ERROR) : -1]

    def _exchange(self, path: str, credentials: Credentials) -> Exchange:
        dev = self._opening.config.dev or credentials.is_admin
        return Exchange(self._request_id, dev, path, self._client.form)

    # ----- messages for the client

    async def _send(self) -> None:
        not_before = await self._answer_resent() if self._resends and not self._client.is_npm else 0
        self._beat()
        try:
            while True:
                if self._credentials.verified is not None:
                    await self._check_queries()
                for text in self._due(not_before):
                    self._sent_at = self._clock.monotonic()
                    await self._websocket.send_text(text)
                    del text  # it may be large, and the wait long
                await self._watching.moved.wait()
        finally:
            self._beating.cancel()

    def _beat(self) -> None:
        """Send a ping if nothing was sent for a while. One timer serves many messages."""
        left = self._sent_at + _HEARTBEAT - self._clock.monotonic()
        if left <= 0:
            self._out.append(sockets.PING)
            self._watching.moved.set()
        self._beating = asyncio.get_running_loop().call_later(left if left > 0 else _HEARTBEAT, self._beat)

    async def _answer_resent(self) -> int:
        """Run what a client that is back sends again; the tick that shows it all.

        A client without a lasting session takes the first transition as the end of each mutation whose response it has.
        It takes a later response as an error.
        """
        await self._clock.wait(self._watching.moved, _RETURN)
        await self._clock.sleep(_SETTLE)
        while self._calls.is_mutating or max(map(self._tick_of, self._held), default=0) == math.inf:
            self._watching.moved.clear()
            await self._watching.moved.wait()
        return int(max(map(self._tick_of, self._held), default=0))

    def _due(self, not_before: int) -> Iterator[str]:
        """The messages due to the client now. All are made before any is sent, so that they are of one tick."""
        messages, self._out = self._out, []
        if self._watched.is_changing or self._committing in self._backend.live_queries.shown:
            self._watching.moved.clear()  # the end of that sets it
        elif step := self._watching.step(not_before):
            self._reach(step)
        while self._held and self._tick_of(self._held[0]) <= self._tick:
            one = self._held.pop(0)
            if one.key is not None:
                self._backend.live_queries.let_go(one.key)
            messages.append(sockets.response("Mutation", one.request, one.result, one.lines, ts=self._reached.ts))
            self._responded = True
        texts = [one.decode() for one in messages]
        versions = self._reached[:2] != self._sent[:2] or (self._reached.ts > 0 and not self._sent.ts)
        if (
            self._watching.is_answered
            and not self._watched.is_changing
            and (self._watched.changes or self._responded or versions)
        ):
            texts += self._transition()
        return iter(texts)

    def _tick_of(self, one: _Held) -> float:
        """The number of the first tick that shows a mutation, if it has come."""
        shown = self._backend.live_queries.shown
        if one.key is not None and one.key not in shown:
            self._watching.expect()
        return 0 if one.key is None else shown.get(one.key, math.inf)

    def _reach(self, step: Step) -> None:
        self._tick = step.tick.number
        ts = step.tick.clock
        if not self._client.is_npm:
            ts = ts >> _LEFT_OUT << _TAG_BITS | self._reached.ts & _TAG
        if ts + self._offset < self._reached.ts:
            self._offset = (self._reached.ts - ts + _TAG) & ~_TAG
            event("socket.clock_went_back", logging.WARNING, by=self._offset)
        query_set, identity, _ = self._reached
        self._reached = sockets.Version(query_set, identity, ts + self._offset)
        for number, answer in step.answers.items():
            entry = self._watching.queries[number]
            exchange, alone = self._exchange(entry.function.name, self._credentials), len(entry.watchers) == 1
            written = self._written.write(answer, exchange, entry.function, alone=alone)
            failed = not written.startswith(_SUCCESS)
            outcome = written[len(_ERROR if failed else _SUCCESS) : -1]
            try:
                self._check_size(outcome)
            except LimitExceeded as error:
                outcome, failed = self._query_failure(error, entry.function.name), True
            lines = answer.lines if exchange.dev else ()  # others may share the run
            self._watched.changes[number] = sockets.query_modification(
                number, outcome, answer.journal, lines, failed=failed
            )

    def _transition(self) -> list[str]:
        is_dated = self._skew is not None or self._client.takes_chunks
        now = int(self._clock.now().timestamp() * 1e9) if is_dated else 0
        times = b"" if self._skew is None else sockets.times(self._skew, now)
        texts: list[str] = []
        part: list[bytes] = []
        size = 0
        for change in self._watched.changes.values():
            size += len(change)
            if size > self._client.most_bytes and part and not self._client.is_npm:  # it would never get it as one
                texts.append(sockets.transition(self._sent, self._sent, part, times).decode())
                part, size = [], len(change)
            part.append(change)
        texts.append(sockets.transition(self._sent, self._reached, part, times).decode())
        self._watched.changes.clear()
        self._sent, self._responded = self._reached, False
        if (meters := self._backend.engine.journal.meters) is not None:
            meters.add("penstock_live_transitions")
        return sockets.chunks(texts[0], now) if self._client.takes_chunks else texts


def _hash_of(path: str, args: bytes, caller: Caller) -> int:
    """Hash a call and its user: a call sent again has the same hash, and nobody gets the answer of somebody else."""
    user = b"" if caller.identity is None else caller.identity.token_identifier.encode()
    return int.from_bytes(blake2b(b"\0".join((path.encode(), args, user)), digest_size=8).digest(), signed=True)


def _time_of(text: str | None) -> int:
    try:
        return 0 if text is None else read_u64(text)
    except InputError as error:
        raise _bad(f"maxObservedTimestamp: {error}") from error


def _refusal(error: Unauthenticated, base_version: int, *, attempted: bool) -> HangUp:
    return HangUp(LEFT, "AuthError", sockets.auth_error(str(error), base_version, attempted=attempted), str(error))


def _bad(text: str) -> HangUp:
    """The end for a message that names nothing that could fail. Clients of Convex come back after any end."""
    return HangUp(BAD_REQUEST, "BadRequest", error=text)
