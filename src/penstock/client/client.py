"""The client: calls the functions of an app over HTTP, from another program.

Owns the requests and their retries. `Client` waits for answers, `AsyncClient` is awaited. Stands alone: it
loads neither the server nor pydantic, and httpx only when a client is made.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar

from penstock.client.answers import AnswerStream, ServerUnreachable, read_answer
from penstock.client.encoding import encode
from penstock.errors import ConfigError, TryAgain, of_extra

if TYPE_CHECKING:
    import httpx  # noqa: F401 - the quoted types below

_Kind = Literal["query", "mutation", "action"]
_HEADERS = {"content-type": "application/json", "convex-client": "penstock-0"}  # which knows large integers
_LONGEST_PAUSE = 30.0
_LONGEST_SILENCE = 45.0  # seconds; the server sends something every 15
_ENDED = "The server has ended the stream."

T = TypeVar("T")
F = TypeVar("F", bound=Callable[[], Any])


class _Caller(Generic[T, F]):
    _made: str  # the class of httpx that sends its calls

    def __init__(
        self,
        url: str,
        *,
        token: str | F = "",
        timeout: float = 65.0,
        headers: Mapping[str, str] | None = None,
        retries: int = 2,
        mutation_retries: int = 0,
        transport: T | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{url!r} is not the URL of a server.", fix="Use http://host:port, or https://….")
        with of_extra("client", "The client", {"httpx"}):
            self._httpx = importlib.import_module("httpx")
        self._clock = importlib.import_module("penstock.clock").SystemClock()
        self._fetch_token = None if isinstance(token, str) else token
        held = _bearer(token) if isinstance(token, str) and token else {}
        self._retries: dict[str, int] = {"query": retries, "mutation": mutation_retries}
        self._http: Any = getattr(self._httpx, self._made)(
            base_url=url, timeout=timeout, headers={**_HEADERS, **held, **(headers or {})}, transport=transport
        )

    def _unreachable(self, error: Exception) -> ServerUnreachable:
        never_sent = isinstance(error, self._httpx.ConnectError | self._httpx.ConnectTimeout | self._httpx.PoolTimeout)
        return ServerUnreachable(
            f"The server cannot be reached: {str(error) or type(error).__name__}.", uncertain=not never_sent
        )

    def _pause(self, kind: _Kind, attempt: int, error: TryAgain) -> float:
        """Seconds until a call is sent again; raises the error if it is not."""
        uncertain = kind != "query" and error.facts.get("uncertain")
        if attempt > self._retries.get(kind, 0) or uncertain:
            raise error
        return self._wait(attempt, error)

    def _wait(self, attempt: int, error: TryAgain) -> float:
        seconds: float = error.facts.get("retry_after", 1.0) * 2 ** min(attempt - 1, 9) * (0.5 + self._clock.random())
        return min(seconds, _LONGEST_PAUSE)

    def _stream(self, parameters: Mapping[str, str], headers: Mapping[str, str]) -> Any:
        timeout = self._httpx.Timeout(**{**self._http.timeout.as_dict(), "read": _LONGEST_SILENCE})
        return self._http.stream("GET", "/api/subscribe", params=parameters, headers=headers, timeout=timeout)


class Client(_Caller["httpx.BaseTransport", Callable[[], str]]):
    """Calls functions, and waits for their answers.

    Example::

        with Client("http://127.0.0.1:8000") as client:
            booking = client.mutation("bookings:book", customer="Ada", starts_at=datetime.now(UTC))

    Args:
        url: The address of the server; a path in it is kept.
        token: The token or the API key of the caller, or a function that gives the current token. The function is
            called before each request, so that a client may live longer than its tokens.
        timeout: Seconds to wait for an answer.
        headers: Sent with every call.
        retries: The number of times a query is sent again if the server says so, or cannot be reached.
        mutation_retries: The same for a mutation, if it is certain that it had no effect. Actions are never sent again.
        transport: The transport for httpx.

    Raises:
        ConfigError: The URL is none, or httpx is not installed.
    """

    _made = "Client"

    def query(self, path: str, args: Mapping[str, Any] | None = None, /, **named: Any) -> Any:
        """Call a query, ``module:function``, with arguments by name, or in a mapping if they are no names.

        Raises:
            ApplicationError: The function raised it for its callers, with data.
            FunctionError: The function was not found, refused its arguments, or failed.
            TryAgain: Nothing is wrong with the call; it may be sent again, unless ``facts["uncertain"]`` is true.
            Unauthenticated: The server refuses the token.
            InputError: The call cannot be sent, or the server could not read it.
        """
        return self._call("query", path, args, named)

    def mutation(self, path: str, args: Mapping[str, Any] | None = None, /, **named: Any) -> Any:
        """Call a mutation. Raises the errors of `query`."""
        return self._call("mutation", path, args, named)

    def action(self, path: str, args: Mapping[str, Any] | None = None, /, **named: Any) -> Any:
        """Call an action. Raises the errors of `query`."""
        return self._call("action", path, args, named)

    @contextmanager
    def live(self, path: str, args: Mapping[str, Any] | None = None, /, **named: Any) -> Iterator[Iterator[Any]]:
        """Watch a query: its answer, and each later one when it is another one.

        Example::

            with client.live("bookings:upcoming", customer="Ada") as answers:
                for bookings in answers:
                    ...

        After the first answer, a connection that is lost is made again for as long as it takes; before it, `retries`
        times. The newest answer counts: of several changes meanwhile, only the last answer comes.

        Raises:
            ApplicationError: The function raised it for its callers, with data. The errors of `query` end it.
        """
        with closing(self._answers(_parameters(path, args, named))) as answers:
            yield answers

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def _call(self, kind: _Kind, path: str, args: Mapping[str, Any] | None, named: Mapping[str, Any]) -> Any:
        body, attempt = _body(path, args, named), 1
        while True:
            try:
                return self._send(kind, body)
            except TryAgain as error:
                seconds = self._pause(kind, attempt, error)
            threading.Event().wait(seconds)
            attempt += 1

    def _send(self, kind: _Kind, body: bytes) -> Any:
        headers = self._credentials()
        try:
            response = self._http.post(f"/api/{kind}", content=body, headers=headers)
        except self._httpx.TransportError as error:
            raise self._unreachable(error) from error
        return read_answer(response.status_code, response.headers, response.content)

    def _credentials(self) -> Mapping[str, str]:
        return {} if self._fetch_token is None else _bearer(self._fetch_token())

    def _answers(self, parameters: Mapping[str, str]) -> Generator[Any]:
        stream, attempt = AnswerStream(), 1
        while True:
            headers = self._credentials()
            try:
                with self._stream(parameters, headers) as response:
                    if not _is_stream(response):
                        read_answer(response.status_code, response.headers, response.read())
                    stream.begin(response.headers)
                    for piece in response.iter_bytes():
                        for answer in stream.answers(piece):
                            attempt = 1
                            yield answer
                error: TryAgain = ServerUnreachable(_ENDED)
            except self._httpx.TransportError as lost:
                error = self._unreachable(lost)
            except TryAgain as refused:
                error = refused
            seconds = self._pause("query", attempt, error) if stream.last is None else self._wait(attempt, error)
            threading.Event().wait(seconds)
            attempt += 1


class AsyncClient(_Caller["httpx.AsyncBaseTransport", Callable[[], Awaitable[str]]]):
    """Calls functions, and is awaited, as is the function that gives the token; otherwise the same as `Client`."""

    _made = "AsyncClient"

    async def query(self, path: str, args: Mapping[str, Any] | None = None, /, **named: Any) -> Any:
        """Call a query. See `Client.query`."""
        return await self._call("query", path, args, named)

    async def mutation(self, path: str, args: Mapping[str, Any] | None = None, /, **named: Any) -> Any:
        """Call a mutation. See `Client.query`."""
        return await self._call("mutation", path, args, named)

    async def action(self, path: str, args: Mapping[str, Any] | None = None, /, **named: Any) -> Any:
        """Call an action. See `Client.query`."""
        return await self._call("action", path, args, named)

    @asynccontextmanager
    async def live(
        self, path: str, args: Mapping[str, Any] | None = None, /, **named: Any
    ) -> AsyncIterator[AsyncIterator[Any]]:
        """Watch a query. See `Client.live`."""
        async with aclosing(self._answers(_parameters(path, args, named))) as answers:
            yield answers

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.close()

    async def _call(self, kind: _Kind, path: str, args: Mapping[str, Any] | None, named: Mapping[str, Any]) -> Any:
        body, attempt = _body(path, args, named), 1
        while True:
            try:
                return await self._send(kind, body)
            except TryAgain as error:
                seconds = self._pause(kind, attempt, error)
            await self._clock.sleep(seconds)
            attempt += 1

    async def _send(self, kind: _Kind, body: bytes) -> Any:
        headers = await self._credentials()
        try:
            response = await self._http.post(f"/api/{kind}", content=body, headers=headers)
        except self._httpx.TransportError as error:
            raise self._unreachable(error) from error
        return read_answer(response.status_code, response.headers, response.content)

    async def _credentials(self) -> Mapping[str, str]:
        return {} if self._fetch_token is None else _bearer(await self._fetch_token())

    async def _answers(self, parameters: Mapping[str, str]) -> AsyncGenerator[Any]:
        stream, attempt = AnswerStream(), 1
        while True:
            headers = await self._credentials()
            try:
                async with self._stream(parameters, headers) as response:
                    if not _is_stream(response):
                        read_answer(response.status_code, response.headers, await response.aread())
                    stream.begin(response.headers)
                    async for piece in response.aiter_bytes():
                        for answer in stream.answers(piece):
                            attempt = 1
                            yield answer
                error: TryAgain = ServerUnreachable(_ENDED)
            except self._httpx.TransportError as lost:
                error = self._unreachable(lost)
            except TryAgain as refused:
                error = refused
            seconds = self._pause("query", attempt, error) if stream.last is None else self._wait(attempt, error)
            await self._clock.sleep(seconds)
            attempt += 1


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def _is_stream(response: Any) -> bool:
    return str(response.headers.get("content-type", "")).startswith("text/event-stream")


def _parameters(path: str, args: Mapping[str, Any] | None, named: Mapping[str, Any]) -> dict[str, str]:
    return {"path": path, "args": encode({**(args or {}), **named}).decode(), "format": "convex_encoded_json"}


def _body(path: str, args: Mapping[str, Any] | None, named: Mapping[str, Any]) -> bytes:
    return encode({"path": path, "args": {**(args or {}), **named}, "format": "convex_encoded_json"})
