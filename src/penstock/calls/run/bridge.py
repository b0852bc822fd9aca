"""Between threads and event loops: calls from a thread that are run on a loop, and a thread that runs its own loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from operator import attrgetter
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from penstock.errors import ContextError

P = ParamSpec("P")
R = TypeVar("R")
Of = TypeVar("Of")
G = TypeVar("G", covariant=True)


class Wait(Protocol):
    """Waits in a thread for a call."""

    def __call__(self, call: Coroutine[Any, Any, R], /) -> R:
        """Its result."""


class Bridge:
    """Waits in a thread for a call that runs on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __call__(self, call: Coroutine[Any, Any, R]) -> R:
        if asyncio._get_running_loop() is not None:  # noqa: SLF001 - the only way to ask without an exception
            call.close()
            raise ContextError(
                "A synchronous ctx was used on an event loop, which it would block.",
                fix="Use an async def function there.",
            )
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


class Face(Generic[Of]):
    """Stands for an asynchronous object, its twin, in code that does not await."""

    def __init__(self, twin: Of, wait: Wait) -> None:
        self._twin, self._wait = twin, wait

    def _reach(self) -> tuple[Of, Wait]:
        """The twin, and what waits for its calls."""
        return self._twin, self._wait


class Given(Generic[G]):
    """An attribute of a face: the value that its twin has, by a property or under a name, or a face of that."""

    def __init__(self, twins: Any, face: Callable[[Any, Wait], G] = lambda value, _wait: value) -> None:
        self._read: Callable[[Any], Any] = attrgetter(twins) if isinstance(twins, str) else twins.fget
        self._face, self.__doc__ = face, None if isinstance(twins, str) else twins.__doc__

    def __get__(self, face: Any, kind: type[Any]) -> G:
        if face is None:
            return self  # type: ignore[return-value]  # of the class, as with a property
        twin, wait = face._reach()  # noqa: SLF001 - a part of the face
        return self._face(self._read(twin), wait)


def waits(word: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Any, P], R]:
    """The word of a face for an awaited word of its twin: it waits for the result."""

    @functools.wraps(word)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        twin, wait = self._reach()
        result: R = wait(getattr(twin, word.__name__)(*args, **kwargs))
        return result

    return call


def passes(word: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """The word of a face for a word of its twin that nobody awaits."""

    @functools.wraps(word)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = getattr(self._reach()[0], word.__name__)(*args, **kwargs)
        return result

    return call


def in_thread(rows: AsyncIterator[R], wait: Wait) -> Iterator[R]:
    """The items of an async iterator; each is waited for."""
    ended: Any = object()

    async def following() -> R:
        return await anext(rows, ended)

    while (row := wait(following())) is not ended:
        yield row


def run_loop(loop: asyncio.AbstractEventLoop, main: Awaitable[Any]) -> None:
    """Run on a new event loop, like `asyncio.run`, but start no thread to end it: Python 3.12 refuses one at exit."""
    try:
        loop.run_until_complete(main)
    finally:
        loop.run_until_complete(_cancel_others())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _cancel_others() -> None:
    """Cancel all other tasks, and the tasks that these start as they end, such as to close a connection."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
