"""The answers of a watched query, for programs: with await, and without."""

from __future__ import annotations

import copy
from typing import Any, Generic, Self, TypeVar

from penstock.calls.run.bridge import Wait
from penstock.errors import LimitExceeded
from penstock.functions.function import AnyFunction
from penstock.live.view import View

R = TypeVar("R")


class Watch(Generic[R]):
    """The answers of a watched query: an async iterator that gives the newest one, and waits for another one.

    Between two requests only the newest answer is kept. If the query raises, so does the iterator; the next request
    waits for the next answer.
    """

    def __init__(self, view: View, function: AnyFunction, arguments: dict[str, Any]) -> None:
        self._view = view
        try:
            view.add(0, function, arguments)
        except LimitExceeded:
            view.close()
            raise

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> R:
        while not self._view.closed:
            step = self._view.step()
            if step is None or not step.answers:
                await self._view.moved.wait()
                continue
            answer = step.answers[0]
            if answer.error is not None:
                raise answer.error
            return copy.deepcopy(answer.result)  # type: ignore[no-any-return]  # others have it too
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Watch no more."""
        self._view.close()


class SyncWatch(Generic[R]):
    """`Watch` for code that does not await."""

    def __init__(self, watch: Watch[R], wait: Wait) -> None:
        self._watch, self._wait = watch, wait

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> R:
        try:
            return self._wait(self._watch.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Watch no more."""
        self._wait(self._watch.aclose())
