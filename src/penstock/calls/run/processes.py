"""Processes for CPU-bound actions. Names and JSON go in, JSON comes out, of results and errors alike; nothing else.

Owns the processes: each runs one action at a time, and is ended at once if nobody waits for its action any more. In the
process the action's module is imported and its handler called with a ctx that can tell time and chance but has no
database: it computes and returns, and its caller stores the result.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import json
import multiprocessing
import signal
import sys
from contextlib import suppress
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

from penstock.calls.run.remote import failure_of, failure_text
from penstock.calls.run.running import no_work
from penstock.calls.run.threads import Threads
from penstock.clock import SystemClock, random_of
from penstock.config import Config
from penstock.errors import WorkerLost
from penstock.functions.function import AnyFunction
from penstock.jobs.job import JobId
from penstock.jobs.work import Work
from penstock.transaction.words import NotInThisCtx

_RETURNED = b"+"
_RAISED = b"-"
_ENDS_WITHIN = 1.0


class ProcessCtx:
    """The ctx of an action that runs in a process of its own."""

    def __init__(self, work: Work | None) -> None:
        clock = SystemClock()
        self._clock = clock
        self._work = work
        self.random = random_of(clock.seed())

    def now(self) -> Any:
        """The time, aware, in UTC."""
        return self._clock.now()

    @property
    def is_job(self) -> bool:
        """Whether this runs in an attempt at a job."""
        return self._work is not None

    @property
    def work(self) -> ProcessWork:
        """The attempt at a job that this runs in."""
        if self._work is None:
            raise no_work()
        return ProcessWork(self._work)

    def __getattr__(self, name: str) -> Any:
        raise NotInThisCtx(
            f'ctx.{name} does not exist in an action with runtime="process".',
            fix="Compute and return there; read and write in the function that calls it.",
        )


class ProcessWork:
    """``ctx.work`` of an action that runs in a process of its own: what is known beforehand."""

    def __init__(self, work: Work) -> None:
        self.id, self.attempt, self.deadline = work.id, work.attempt, work.deadline

    def __getattr__(self, name: str) -> Any:
        raise NotInThisCtx(
            f'ctx.work.{name} does not exist in an action with runtime="process".',
            fix="Use it in an action that runs this one with ctx.run_action.",
        )


class Processes:
    """A number of processes, started when first needed; one that dies or is ended is replaced."""

    def __init__(self, config: Config) -> None:
        # A thread for each process waits for its answers.
        self._threads = Threads("penstock-process", config.processes, patient=True)
        self._all: set[_Process] = set()
        self._free: list[_Process] = []

    async def run(self, function: AnyFunction, args: bytes, work: Work | None = None) -> bytes:
        """Run an action's handler on JSON arguments; its result as JSON. The process is ended if this is cancelled.

        Raises:
            WorkerLost: The process died.
            ApplicationError: The action raised it; errors of penstock and of Python are raised as they are, too.
            RuntimeError: The action raised something else, which it names.
        """
        module, file = _home(function)
        request = json.dumps([module, file, function.handler.__name__, _told(work)]).encode()
        async with self._threads.place(function.name) as place:
            if work is not None and work.begin is not None:
                await work.begin(None)
            process = self._free.pop() if self._free else self._make()
            answered = False
            try:
                answer = await place.run(lambda: process.ask(request, args))
                answered = True
            except (EOFError, OSError) as error:
                raise WorkerLost(f"The process that ran {function.name} died.") from error
            finally:
                if answered:
                    self._free.append(process)
                else:
                    self._remove(process)
        if answer.startswith(_RAISED):
            raise failure_of(answer[1:])
        return answer[1:]

    async def close(self, seconds: float) -> list[str]:
        """Let actions end within this time, then end the processes; the actions that were cut off."""
        running = await self._threads.idle(seconds)
        for process in self._all.difference(self._free):
            process.end()
        await asyncio.gather(*(self._release() for _ in self._free))
        await self._threads.idle(_ENDS_WITHIN)
        self._threads.close()
        return running

    # ----- steps

    def _make(self) -> _Process:
        if not self._all:
            atexit.register(self._end_all)  # or the interpreter would wait for them
        process = _Process()
        self._all.add(process)
        return process

    def _remove(self, process: _Process) -> None:
        self._all.discard(process)
        process.end()
        if not self._all:
            atexit.unregister(self._end_all)

    async def _release(self) -> None:
        async with self._threads.place("release") as place:
            process = self._free.pop()
            await place.run(process.release)
            self._remove(process)

    def _end_all(self) -> None:
        for process in self._all:
            process.end()


class _Process:
    """One process, and the line to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._line, self._far_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(self._far_end,), name="penstock-action")
        self._ended = False

    def ask(self, request: bytes, args: bytes) -> bytes:
        """Have it run an action; the answer. Blocks.

        Raises:
            EOFError: It died.
            OSError: The same.
        """
        if self._process.pid is None:
            self._process.start()
            self._far_end.close()
            if self._ended:  # meanwhile
                self._process.kill()
        try:
            self._line.send_bytes(request)
            self._line.send_bytes(args)
            return self._line.recv_bytes()
        except (EOFError, OSError):
            self._process.join(_ENDS_WITHIN)
            raise

    def release(self) -> None:
        """Let it end by itself, as it does when nothing can be asked of it any more. Blocks."""
        self._line.close()
        self._process.join(_ENDS_WITHIN)

    def end(self) -> None:
        """End it at once, whatever it does. Its blocked `ask` raises."""
        self._ended = True
        if self._process.pid is not None:
            self._process.kill()


def _home(function: AnyFunction) -> tuple[str, str]:
    """Where a process finds the function: its module's name and, for a program's main module, its file."""
    module = sys.modules[function.handler.__module__]
    file = getattr(module, "__file__", None) or ""
    return function.name.partition(":")[0], file


def _told(work: Work | None) -> list[Any] | None:
    if work is None:
        return None
    return [work.id, work.attempt, None if work.deadline is None else work.deadline.isoformat()]


# ----- in the process


def _heard(told: list[Any] | None) -> Work | None:
    if told is None:
        return None
    return Work(JobId(told[0]), told[1], None if told[2] is None else datetime.fromisoformat(told[2]))


def _serve(line: Connection) -> None:
    """Run the actions that are asked for, until there is nobody who could ask."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to all at once; it is the caller who gives a grace time
        signal.signal(number, _go_on)
    with suppress(EOFError, OSError):
        while True:
            where, args = line.recv_bytes(), line.recv_bytes()
            line.send_bytes(_answer(where, args))


def _go_on(_number: int, _frame: FrameType | None) -> None:
    """Take notice of a signal and go on. What the action starts does not inherit this, as it would if ignored."""


def _answer(where: bytes, args: bytes) -> bytes:
    try:
        module, file, name, work = json.loads(where)
        return _RETURNED + _run(module, file, name, args, _heard(work))
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's
        return _RAISED + failure_text(error)


def _run(module: str, file: str, name: str, args: bytes, work: Work | None) -> bytes:
    function: AnyFunction = getattr(_import(module, file), name)
    result = function.handler(ProcessCtx(work), **function.signature.check_json(args))
    return function.signature.result_json(function.signature.check_result(result))


def _import(module: str, file: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        if not file:
            raise
        sys.path.insert(0, str(Path(file).parent))
        return importlib.import_module(module)
