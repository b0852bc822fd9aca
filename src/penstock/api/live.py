"""The answers of a watched query, for programs: with await, and without."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Generic, Self, TypeVar

from penstock.calls.run.bridge import Wait
from penstock.live.entry import Entry

R = TypeVar("R")


class Watch(Generic[R]):
    """The answers of a watched query: an async iterator that gives the newest one, and waits for another one.

    Between two requests only the newest answer is kept. If the query raises, so does the iterator; the next request
    waits for the next answer.
    """

    def __init__(self, entry: Entry, leave: Callable[[Watch[R]], None]) -> None:
        self.entry = entry
        self._leave = leave
        self._seen = 0
        self._moved = asyncio.Event()
        self._closed = False
        entry.watchers.add(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> R:
        while not self._closed and self.entry.changed_at <= self._seen:
            self._moved.clear()
            await self._moved.wait()
        if self._closed or self.entry.answer is None:
            raise StopAsyncIteration
        self._seen = self.entry.changed_at
        if self.entry.answer.error is not None:
            raise self.entry.answer.error
        return copy.deepcopy(self.entry.answer.result)  # type: ignore[no-any-return]  # others have it too

    def tell(self) -> None:
        """There is another answer."""
        self._moved.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Watch no more."""
        if not self._closed:
            self._closed = True
            self._leave(self)
            self._moved.set()


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
