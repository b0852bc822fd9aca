"""The one entry for calls from outside: a kind, a path and arguments as JSON in; a checked result out.

Owns the check that a caller may call a function. Leaves transports to the doors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from difflib import get_close_matches
from types import TracebackType
from typing import Any

from penstock.calls.call import Arguments, Call
from penstock.calls.run.containment import containing
from penstock.calls.run.runner import FunctionCalls
from penstock.calls.run.snapshots import Snapshots
from penstock.calls.run.threads import check_args, offload
from penstock.dataclass import dataclass
from penstock.errors import CallTimeout, Conflict, FunctionNotFound, InputError, LimitExceeded, Overloaded, at_the_door
from penstock.functions.function import AnyFunction, FunctionKind
from penstock.functions.httpaction import HttpAction
from penstock.identity.caller import ANONYMOUS, Caller
from penstock.store.nouns.requests import RequestKey, Requests
from penstock.store.session import Session

Encode = Callable[[Any], Any]
Respond = Callable[[Any], Awaitable[None]]


@dataclass(slots=True, kw_only=True)  # not frozen: see `Call`
class Request(Call):
    """A call from outside: its arguments are JSON, and its result leaves as `encode` gives it."""

    encode: Encode | None = None

    async def check(self, *, again: bool = False) -> Arguments:  # noqa: ARG002 - each attempt does the same
        with at_the_door():
            return self.function.signature.check_sent(await check_args(self.function, self.arguments))

    def finish(self, result: Any) -> Any:
        return result if self.encode is None else self.encode(self.function.signature.mark(result))


@dataclass(slots=True, kw_only=True)  # not frozen: see `Call`
class MutationRequest(Request):
    """A mutation from outside: its time is over at `deadline`, but a commit under way is never cut off."""

    timer: asyncio.Timeout
    deadline: float | None

    async def check(self, *, again: bool = False) -> Arguments:
        self.timer.reschedule(self.deadline)
        return await Request.check(self, again=again)

    def finish(self, result: Any) -> Any:
        answer = Request.finish(self, result)
        if self.timer.expired():
            raise TimeoutError
        self.timer.reschedule(None)
        return answer


@dataclass(slots=True, kw_only=True)  # not frozen: see `Call`
class SentOnce(MutationRequest):
    """A mutation that its client may send again: its answer is stored with its effect."""

    key: RequestKey
    store: Requests
    now: Callable[[], datetime]
    resent: bool  # whether it may have been sent before

    async def check(self, *, again: bool = False) -> Arguments:
        self.timer.reschedule(self.deadline)
        if (again or self.resent) and (known := await self.store.find(self.key)) is not None:
            raise _Known(known.encode())
        return await Request.check(self, again=again)

    async def seal(self, session: Session, answer: Any) -> None:
        if not await self.store.record(session, self.key, answer.decode(), self.now()):
            raise Conflict("Another run of the same request took effect at the same time.")


@dataclass(slots=True, kw_only=True)  # not frozen: see `Call`
class HttpCall(Call):
    """A call of an HTTP action. With async def it ends when its response is sent, which may stream from its ctx."""

    respond: Respond

    @property
    def handler(self) -> Callable[..., Any]:
        handler = self.function.handler

        async def handle_and_respond(ctx: Any, **arguments: Any) -> None:
            await self.respond(await handler(ctx, **arguments))

        return handle_and_respond if self.function.is_async else handler

    def check_result(self, result: Any) -> Any:
        return result  # `respond` checks it


class _Known(Exception):
    """A request took effect before, with this answer."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self.answer = answer


class Places:
    """The places of calls that may be under way at once, each for so many seconds."""

    def __init__(self, number: int, seconds: float, taken: str) -> None:
        self._number = number
        self._seconds = seconds
        self._taken = taken  # what the error says if all are
        self._under_way = 0

    def take(self, what: str, seconds: float | None = None, *, limited: bool = True) -> Place:
        """Take on a call, and give it up when its time is over: after `seconds`, if it has its own limit."""
        return Place(self, what, self._seconds if seconds is None else seconds, limited=limited)

    def enter(self) -> None:
        if self._under_way >= self._number:
            raise Overloaded(self._taken, fix="Try again in a moment.")
        self._under_way += 1

    def leave(self) -> None:
        self._under_way -= 1


class Place(AbstractAsyncContextManager[asyncio.Timeout]):
    """The place of one call. A class, as a generator would take twice as long."""

    __slots__ = ("_places", "_seconds", "_timer", "_what")

    def __init__(self, places: Places, what: str, seconds: float, *, limited: bool) -> None:
        self._places, self._what, self._seconds = places, what, seconds
        self._timer = asyncio.timeout(seconds if limited else None)

    async def __aenter__(self) -> asyncio.Timeout:
        self._places.enter()
        return await self._timer.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._places.leave()
        try:
            await self._timer.__aexit__(kind, error, trace)
        except TimeoutError as late:
            raise CallTimeout.of(self._what, self._seconds) from late
        if isinstance(error, TimeoutError) and self._timer.expired():  # raised in place of a result that came too late
            raise CallTimeout.of(self._what, self._seconds) from error


class Dispatch:
    """Calls functions by name, under this process's limits."""

    def __init__(self, runner: FunctionCalls) -> None:
        self._runner = runner
        self._config = config = runner.engine.config
        self.snapshots = Snapshots(runner.engine)
        self._places = Places(config.max_calls, config.call_timeout, "This server has too many calls in progress.")

    def find(self, path: str, kind: FunctionKind | None, *, internal: bool = False) -> AnyFunction:
        """The function to call; `FunctionNotFound` if this caller has none of this name, or it is of another kind."""
        function = self._runner.engine.registry.find(path)
        if function is None or not (function.public or internal):
            what = f"Could not find public function for '{path}'."
            raise FunctionNotFound(what, fix=self._hint(path, function), path=path)
        if kind is not None and function.kind is not kind:
            raise FunctionNotFound(
                f"'{path}' is {function.kind.with_article}, and was called as {kind.with_article}.",
                fix=f"Call it as {function.kind.with_article}.",
                path=path,
            )
        return function

    def _hint(self, path: str, hidden: AnyFunction | None) -> str:
        """Say how to name a function. With `dev` also what the caller may have meant."""
        if path.endswith(":default"):
            return "Name it as module:function, with a colon."
        if not self._config.dev:
            return ""
        if hidden is not None:
            return "It is internal: only this program calls it."
        public = [function.name for function in self._runner.engine.registry if function.public]
        names = {name.rpartition(":")[2]: name for name in public}
        close = get_close_matches(path.rpartition(":")[2], names, 1, cutoff=0.75)
        return f"Did you mean '{names[close[0]]}'?" if close else ""

    async def call(
        self,
        path: str,
        kind: FunctionKind | None,
        args: bytes | str,
        *,
        internal: bool = False,
        caller: Caller = ANONYMOUS,
        finish: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Call a function with a JSON object of arguments; its result, or the result of `finish`.

        `finish` runs before a mutation commits: if it raises, nothing is committed. A commit under way is never cut
        off, so that a mutation that took too long has had no effect.

        Raises:
            FunctionNotFound: See `find`.
            ArgumentsInvalid: Its signature refuses the arguments.
            LimitExceeded: The arguments are too large.
            Overloaded: This process has as many calls under way as it takes on.
            CallTimeout: It took too long.
        """
        with at_the_door():
            function = self.find(path, kind, internal=internal)
            self._check_size(path, args)
        is_mutation, seconds = function.kind is FunctionKind.MUTATION, function.seconds(self._config.call_timeout)
        if internal:  # an administrator, whose patience is the setting's
            seconds = max(seconds, self._config.call_timeout)
        call = Request(function, args, caller, encode=finish)
        async with self._places.take(function.title, seconds) as timer:
            if is_mutation:
                call = MutationRequest(function, args, caller, encode=finish, timer=timer, deadline=timer.when())
            with containing(function.name):
                result = await self._runner.start(call)
        return result if is_mutation else call.finish(result)

    async def call_queries(
        self, calls: Sequence[tuple[str, bytes | str, Encode]], at: int | None = None, caller: Caller = ANONYMOUS
    ) -> list[bytes | Exception]:
        """Call public queries in one snapshot; for each its answer or its error.

        They take one place among the calls at once: they run one after another, and have one budget of bytes. Together
        they may take as long as the one with the most time.

        Args:
            calls: For each its path, its JSON arguments, and the function that turns its result into an answer.
            at: The number of an open snapshot; a new one by default.
            caller: The caller.

        Raises:
            OutOfRetention: The snapshot is not open any more.
            Overloaded: This process has as many calls under way as it takes on.
            CallTimeout: Together they took too long.
            DatabaseUnavailable: The database was lost.
        """
        size = sum(len(args) for _, args, _ in calls)
        found: list[Any] = await offload(size, lambda: [self._request_or_error(caller, *call) for call in calls])
        requests = {place: request for place, request in enumerate(found) if isinstance(request, Request)}
        by_default = self._config.call_timeout
        seconds = max((one.function.seconds(by_default) for one in requests.values()), default=by_default)
        async with self._places.take("The batch's", seconds):
            snapshot = None if at is None else self.snapshots.find(at)
            results = await self._runner.queries(list(requests.values()), snapshot)
        for place, result in zip(requests, results, strict=True):
            found[place] = result
        return found

    async def call_once(
        self, path: str, args: bytes, key: RequestKey, encode: Encode, *, resent: bool, caller: Caller = ANONYMOUS
    ) -> bytes:
        """Call a mutation that its client may send again: it takes effect once, and its answer is always that result.

        Args:
            path: Its path.
            args: Its arguments as JSON.
            key: The request.
            encode: Turns its result into the answer.
            resent: Whether it may have been sent before.
            caller: The caller.

        Raises:
            TryAgain: It had no effect, or nobody knows; the client may send it again.
        """
        with at_the_door():
            function = self.find(path, FunctionKind.MUTATION)
            self._check_size(path, args)
        store, now = self._runner.engine.store.requests, self._runner.now
        once: dict[str, Any] = {"key": key, "store": store, "now": now, "resent": resent}
        try:
            async with self._places.take(function.title, function.seconds(self._config.call_timeout)) as timer:
                call = SentOnce(function, args, caller, encode=encode, timer=timer, deadline=timer.when(), **once)
                with containing(function.name):
                    found: bytes = await self._runner.mutation(call)
        except _Known as known:
            return known.answer
        except Exception:
            # It may have failed because of what another run of the request has written meanwhile.
            if resent and (done := await store.find(key)) is not None:
                return done.encode()
            raise
        return found

    async def call_http(
        self, action: HttpAction[Any, ..., Any, Any], request: Any, caller: Caller, respond: Respond
    ) -> None:
        """Call an HTTP action with a request, and respond.

        Args:
            action: The action.
            request: The request.
            caller: The caller.
            respond: Sends what the handler returned; with async def while the handler's ctx lives.

        Raises:
            Overloaded: This process has as many calls under way as it takes on.
            CallTimeout: It took too long.
        """
        call = HttpCall(action, {action.argument: request}, caller, respond=respond)
        async with self._places.take(action.title, action.seconds(self._config.call_timeout)):
            with containing(action.name):
                result = await self._runner.start(call)
                if not action.is_async:
                    await respond(result)

    def prepare_query(
        self, path: str, args: bytes | str, own: AnyFunction | None = None
    ) -> tuple[AnyFunction, dict[str, Any]]:
        """A public query, or one of penstock's own, and its checked arguments.

        Raises:
            FunctionNotFound: See `find`.
            ArgumentsInvalid: Its signature refuses the arguments.
            LimitExceeded: The arguments are too large.
        """
        with at_the_door():
            function = own or self.find(path, FunctionKind.QUERY)
            self._check_size(path, args)
            return function, function.signature.check_sent(function.signature.check_json(args))

    # ----- steps

    def _request_or_error(self, caller: Caller, path: str, args: bytes | str, encode: Encode) -> Request | InputError:
        """A query with its checked arguments, or why it cannot be called."""
        try:
            return Request(*self.prepare_query(path, args), caller, encode=encode)
        except InputError as error:
            return error

    def _check_size(self, path: str, args: bytes | str) -> None:
        if len(args) > self._config.max_argument_bytes:
            raise LimitExceeded(
                f"The arguments of {path} have {len(args)} bytes; {self._config.max_argument_bytes} are allowed.",
                limit=self._config.max_argument_bytes,
            )
