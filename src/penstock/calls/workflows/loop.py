"""The event loop of one workflow body: it has no clock, no sockets and no threads, and repeats itself exactly.

Owns the order in which the callbacks of a body run. Its time moves only when the run says so, and its tasks and futures
have numbers as hashes, so that sets of them have the same order in each replay. Leaves what happens next to the run.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import math
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn
from weakref import WeakSet

from penstock.errors import ContextError

_MOST_STEPS = 1_000_000  # callbacks that run without waiting for anything
_MOST_THROWS = 100
_OF_TASKS = vars(asyncio.tasks)
_OF_COMPLETED = {"as_completed", "<setcomp>", "__init__"}  # where it makes tasks, in one Python or another


class WorkflowSuspended(BaseException):
    """The run lets go of its body, which begins from its start when the run goes on. No code of a body sees this end.

    It is no Exception, so that ``except Exception`` does not catch it.
    """


class _Numbered:
    """Give tasks and futures a number as their hash: their addresses differ from run to run."""

    _number = 0

    def __hash__(self) -> int:
        return self._number


class BodyFuture(_Numbered, asyncio.Future[Any]):
    """A future of a body."""

    cancel_asked = False

    def __init__(self, loop: BodyLoop) -> None:
        self._number = loop.count()
        super().__init__(loop=loop)


class HeldFuture(BodyFuture):
    """A future of a mutation. Nobody cancels it before the run knows that the mutation does not commit.

    Args:
        loop: The loop of the body.
        number: The number of the call.
        asked: Gets the number, once somebody asks for a cancel.
    """

    def __init__(self, loop: BodyLoop, number: int, asked: list[int]) -> None:
        super().__init__(loop)
        self._call, self._asked = number, asked

    def cancel(self, msg: Any = None) -> bool:  # noqa: ARG002 - asyncio's
        if self.done():
            return False
        if not self.cancel_asked:
            self.cancel_asked = True
            self._asked.append(self._call)
        return True

    def let_go(self) -> None:
        """Cancel it: the mutation does not commit."""
        super().cancel()

    def cancel_later(self, task: asyncio.Task[Any] | None) -> None:
        """Have the task that has got its outcome cancelled at its next await, if that is still asked for."""

        def cancel_again(_: object) -> None:
            if task is not None and not task.done() and task.cancelling():
                task.uncancel()  # or it would count twice
                task.cancel()

        self.add_done_callback(cancel_again)  # behind the one that wakes the task


class BodyTask(_Numbered, asyncio.Task[Any]):
    """A task of a body."""

    def __init__(self, coroutine: Any, loop: BodyLoop, name: str | None, context: Any) -> None:
        self._number = loop.count()
        self.context = context or contextvars.copy_context()
        super().__init__(coroutine, loop=loop, name=name or f"branch-{self._number}", context=self.context)


class BodyLoop(asyncio.AbstractEventLoop):
    """Run callbacks until none is left; `time` is that of the last delivery, in seconds since 1970.

    A timer that was due by then is yet to come if something else was delivered before it.
    """

    def __init__(self, time: float, function: str) -> None:
        self._time = self._fired = time  # what timers count from; and up to when they have fired
        self._function = function
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = 0
        self._tasks: list[BodyTask] = []
        self._generators: WeakSet[Any] = WeakSet()

    # ----- for the run

    def count(self) -> int:
        self._numbers += 1
        return self._numbers

    def run_dry(self) -> None:
        """Run all callbacks that are ready, and more that they make ready.

        Raises:
            ContextError: There is no end of them.
        """
        with self._enter():
            for _ in range(_MOST_STEPS):
                self._take_due()
                if not self._ready:
                    return
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()  # noqa: SLF001 - as each event loop does
        raise ContextError(
            f"{self._function} goes on without waiting for anything.", fix="Wait with ctx.sleep, not in a busy loop."
        )

    @property
    def next_timer(self) -> float:
        """The time of the earliest timer; infinite if there is none."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else math.inf

    def move(self, time: float) -> None:
        """Move the time on, before timers that are due by then; it never goes back."""
        self._time = max(self._time, time)
        if time < self.next_timer:
            self._fired = max(self._fired, time)

    def fire(self) -> None:
        """Have the earliest timer fire."""
        self._fired = max(self._fired, self.next_timer)
        self._time = max(self._time, self._fired)

    def list_tasks(self) -> list[BodyTask]:
        """The tasks that have not ended, the oldest first."""
        self._tasks = [task for task in self._tasks if not task.done()]
        return list(self._tasks)

    def drop(self) -> None:
        """Drop all tasks as they are: their code may clean up, but waits for nothing any more."""
        self._ready.clear()
        with self._enter():
            for task in self.list_tasks():
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - as asyncio's gather does
                task.context.run(_drop, task.get_coro())
        self._ready.clear()
        self._timers.clear()

    @contextmanager
    def _enter(self) -> Iterator[None]:
        """Be the running loop in a block, in place of the worker's, whose task is on hold."""
        outer = asyncio._get_running_loop()  # noqa: SLF001 - the one that raises nothing
        task, hooks = None if outer is None else asyncio.current_task(), sys.get_asyncgen_hooks()
        if task is not None and outer is not None:
            asyncio._leave_task(outer, task)  # noqa: SLF001 - documented for loops of others
        asyncio._set_running_loop(self)  # noqa: SLF001 - see above
        sys.set_asyncgen_hooks(firstiter=self._generators.add, finalizer=_forget)
        try:
            yield
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(outer)  # noqa: SLF001 - see above
            if task is not None and outer is not None:
                asyncio._enter_task(outer, task)  # noqa: SLF001 - see above

    def _take_due(self) -> None:
        while self.next_timer <= self._fired:
            self._ready.append(heapq.heappop(self._timers)[2])

    # ----- for asyncio

    def time(self) -> float:
        return self._time

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._time + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, self.count(), handle))
        return handle

    def create_future(self) -> BodyFuture:
        return BodyFuture(self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> BodyTask:
        if _is_unordered(sys._getframe(1)):  # noqa: SLF001 - as `inspect` does, at a tenth of its cost
            coro.close()
            raise ContextError(
                f"{self._function} gave coroutines to asyncio.as_completed, which begins them in no fixed order.",
                fix="Give it tasks: [asyncio.create_task(one) for one in …].",
            )
        task = BodyTask(coro, self, name, context)
        self._tasks.append(task)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Ignore what nobody waits for: the run looks at its tasks by itself."""

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave it to `next_timer`, which passes over cancelled ones."""

    async def shutdown_asyncgens(self) -> None:
        """Leave generators to `drop`."""


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refuse(self: BodyLoop, *_: Any, **__: Any) -> NoReturn:
        raise ContextError(
            f"{self._function} is a workflow, and its body used {name} of the event loop, which no replay repeats.",
            fix="Do it in an action, and call that with ctx.run_action.",
        )

    return refuse


# Sockets, threads, processes and signals: by them libraries reach the outside world.
_REFUSED = {
    name: _refuse(name)
    for name in sorted(asyncio.AbstractEventLoop.__dict__.keys() - BodyLoop.__dict__.keys())
    if not name.startswith("_")
}
_Loop: Any = type("BodyLoop", (BodyLoop,), _REFUSED)


def make_loop(time: float, function: str) -> BodyLoop:
    """Make the loop of a body at a time."""
    loop: BodyLoop = _Loop(time, function)
    return loop


def _is_unordered(frame: FrameType | None) -> bool:
    """Whether a task is made by `asyncio.as_completed`, from a coroutine of a set."""
    while frame is not None and frame.f_code.co_name in {"ensure_future", "_ensure_future"}:
        frame = frame.f_back
    return frame is not None and frame.f_globals is _OF_TASKS and frame.f_code.co_name in _OF_COMPLETED


def _drop(coroutine: Coroutine[Any, Any, Any] | Any) -> None:
    for _ in range(_MOST_THROWS):
        try:
            coroutine.throw(WorkflowSuspended())
        except BaseException:  # noqa: BLE001 - it has ended, in whichever way
            return
    with_close = getattr(coroutine, "close", None)
    if with_close is not None:
        try:
            with_close()
        except BaseException:  # noqa: BLE001 - it waits again and again, and is left to the garbage collector
            return


def _forget(_generator: Any) -> None:
    """Leave a generator that nobody iterates any more: its clean-up must not run on another loop."""
