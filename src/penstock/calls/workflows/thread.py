"""Runs a body that is written with def: in a thread of its own, which takes turns with the event loop of the body.

While one of the two runs, the other waits. So it does the same in each replay, as a body written with async def does. A
call of its ctx is awaited on the loop. When the run lets go of the body, the call raises that in the thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any

from penstock.calls.run.bridge import Wait
from penstock.calls.workflows.loop import WorkflowSuspended

_MOST_REFUSALS = 100
_LETS_GO = (WorkflowSuspended, GeneratorExit)


class BodyThread:
    """The thread of one body."""

    def __init__(self) -> None:
        self._asks: SimpleQueue[tuple[Coroutine[Any, Any, Any] | None, Any, BaseException | None]] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._ident = 0

    @property
    def is_current(self) -> bool:
        """Whether the caller is in this thread."""
        return threading.get_ident() == self._ident

    async def run(self, work: Callable[[Wait], Any], name: str) -> Any:
        """Run a function in the thread, with what waits there for calls; its result."""
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._work, work), name=name, daemon=True).start()
        call, result, error = self._asks.get()
        refused: BaseException | None = None
        for _ in range(_MOST_REFUSALS):
            while call is not None and refused is None:
                try:
                    self._answers.put((await call, None))
                except BaseException as raised:  # noqa: BLE001 - the thread raises it
                    refused = raised if isinstance(raised, _LETS_GO) else None
                    self._answers.put((None, raised))
                call, result, error = self._asks.get()
            if call is None:
                break
            call.close()  # its clean-up asks for more, though the run has let go of it
            self._answers.put((None, refused))
            call, result, error = self._asks.get()
        if error is not None:
            raise error
        return result

    def wait(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Wait in the thread for a call."""
        self._asks.put((call, None, None))
        result, error = self._answers.get()
        if error is not None:
            raise error
        return result

    def _work(self, work: Callable[[Wait], Any]) -> None:
        self._ident = threading.get_ident()
        try:
            self._asks.put((None, work(self.wait), None))
        except BaseException as error:  # noqa: BLE001 - the loop raises it
            self._asks.put((None, None, error))


def is_inside(loop: asyncio.AbstractEventLoop, thread: BodyThread | None) -> bool:
    """Whether the caller is the body that runs on a loop, or in a thread."""
    running = asyncio._get_running_loop()  # noqa: SLF001 - the one that raises nothing
    return running is loop or (thread is not None and thread.is_current)
