"""Processes for CPU-bound actions. Only names and JSON cross between processes, so that a message runs no code.

Each process runs one action at a time, and is killed once nobody waits for that action. The process imports the
action's module and calls its handler with a ctx that knows time and chance but no database. penstock's errors keep
their facts, an ApplicationError its data, Python's own errors their text. Any other becomes a RuntimeError with its
name. The traceback arrives as a note.
"""

from __future__ import annotations

import asyncio
import atexit
import builtins
import importlib
import json
import signal
import sys
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from penstock import errors
from penstock.calls.run import djangodb
from penstock.calls.run.jobrun import no_work
from penstock.calls.run.threads import Threads
from penstock.clock import SystemClock, random_of
from penstock.config import Config
from penstock.errors import ApplicationError, PenstockError, Snooze, WorkerLost
from penstock.functions.function import AnyFunction, module_name
from penstock.jobs.job import JobId, Work
from penstock.observe.errortext import message_of, trace_text
from penstock.transaction.words import NotInThisCtx

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_RETURNED = b"+"
_RAISED = b"-"
_ENDS_WITHIN = 1.0
_LONGEST = 10_000


class ProcessCtx:
    """The ctx of an action that runs in a process of its own."""

    def __init__(self, work: Work | None) -> None:
        self._clock = SystemClock()
        self._work = work
        self.random = random_of(self._clock.seed())

    def now(self) -> Any:
        return self._clock.now()

    @property
    def is_job(self) -> bool:
        return self._work is not None

    @property
    def work(self) -> ProcessWork:
        if self._work is None:
            raise no_work()
        return ProcessWork(self._work)

    def __getattr__(self, name: str) -> Any:
        raise NotInThisCtx(
            f'ctx.{name} does not exist in an action with runtime="process".',
            fix="Compute and return there; read and write in the function that calls it.",
        )


class ProcessWork:
    """``ctx.work`` of an action that runs in a process of its own: the facts known beforehand."""

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

    async def run(
        self, function: AnyFunction, args: bytes, work: Work | None = None, lingering: list[Future[Any]] | None = None
    ) -> bytes:
        """Run an action's handler on JSON arguments; its result as JSON. Cancelling this kills the process.

        A thread that still waits for that is added to `lingering`.

        Raises:
            WorkerLost: The process died. Errors of the action are raised as they are, as far as JSON can say them.
        """
        module, file = _home(function)
        told = [djangodb.is_used(), module, file, function.handler.__name__, _work_json(work)]
        request = json.dumps(told).encode()
        async with self._threads.place(function.name, lingering) as place:
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
            raise _failure_of(answer[1:])
        return answer[1:]

    async def close(self, seconds: float) -> list[str]:
        """Let actions end within this time, then kill the processes; the actions that were cut off."""
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
    """One process, and the pipe to it."""

    def __init__(self) -> None:
        import multiprocessing  # noqa: PLC0415 - few apps have actions that run in processes

        context = multiprocessing.get_context("spawn")
        self._line, self._far_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(self._far_end,), name="penstock-action")
        self._ended = False

    def ask(self, request: bytes, args: bytes) -> bytes:
        """Run an action there; the answer, or EOFError or OSError if the process died. Blocks."""
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
        """Close the pipe, at which the process ends. Blocks."""
        self._line.close()
        self._process.join(_ENDS_WITHIN)

    def end(self) -> None:
        """Kill it. Its blocked `ask` raises."""
        self._ended = True
        if self._process.pid is not None:
            self._process.kill()


def _home(function: AnyFunction) -> tuple[str, str]:
    module = sys.modules[function.handler.__module__]
    file = getattr(module, "__file__", None) or ""
    return module_name(function.handler.__module__), file


def _work_json(work: Work | None) -> list[Any] | None:
    if work is None:
        return None
    return [work.id, work.attempt, None if work.deadline is None else work.deadline.isoformat()]


# ----- in the process


def _work(told: list[Any] | None) -> Work | None:
    if told is None:
        return None
    return Work(JobId(told[0]), told[1], None if told[2] is None else datetime.fromisoformat(told[2]))


def _serve(line: Connection) -> None:
    """Run the requested actions until the pipe is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # all processes get them, but the caller keeps the grace time
        signal.signal(number, _go_on)
    with suppress(EOFError, OSError):
        while True:
            where, args = line.recv_bytes(), line.recv_bytes()
            line.send_bytes(_answer(where, args))


def _go_on(_number: int, _frame: FrameType | None) -> None:
    """Ignore a signal. Unlike SIG_IGN, processes that the action starts do not inherit this."""


def _answer(where: bytes, args: bytes) -> bytes:
    try:
        with_django, module, file, name, work = json.loads(where)
        if with_django:
            djangodb.load()
        function: AnyFunction = getattr(_import(module, file), name)
        given = function.signature.check_json(args)
        result = djangodb.in_thread(lambda: function.handler(ProcessCtx(_work(work)), **given))
        return _RETURNED + function.signature.result_json(function.signature.check_result(result))
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's
        told = {**_describe(error), "traceback": trace_text(error)[-_LONGEST:]}
        return _RAISED + json.dumps(told).encode()


def _import(module: str, file: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        if not file:
            raise
        sys.path.insert(0, str(Path(file).parent))
        return importlib.import_module(module)


# ----- errors from one process to the other


def _failure_of(text: bytes) -> Exception:
    told: dict[str, Any] = json.loads(text)
    error = _rebuild(told)
    error.add_note(f"In the other process:\n{told['traceback']}")
    return error


def _describe(error: BaseException) -> dict[str, Any]:
    if isinstance(error, ApplicationError):
        try:
            return {"kind": "ApplicationError", "data": to_jsonable_python(error.data), "status": error.status}
        except ValueError as refused:
            what = f"The data of an ApplicationError cannot be said in JSON: {refused}."
            return {"kind": "ResultInvalid", "what": what, "fix": "", "facts": {}}
    if isinstance(error, PenstockError):
        # Of a class that a program has derived, the nearest of penstock's own.
        kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        facts = to_jsonable_python(error.facts, fallback=repr)
        return {"kind": kind, "what": error.what, "fix": error.fix, "facts": facts}
    return {
        "builtin": type(error).__module__ == "builtins",
        "name": type(error).__name__,
        "message": message_of(error)[:_LONGEST],
    }


def _rebuild(told: dict[str, Any]) -> Exception:
    if "message" in told:
        return _foreign(told["name"], told["message"], builtin=told["builtin"])
    if told["kind"] == "ApplicationError":
        return ApplicationError(told["data"], status=told["status"])
    facts = told["facts"]
    if told["kind"] == "Snooze":
        delay = None if facts["delay"] is None else timedelta(seconds=facts["delay"])
        until = None if facts["until"] is None else datetime.fromisoformat(facts["until"])
        return Snooze(delay, until=until, reason=told["what"])
    kind: type[PenstockError] = getattr(errors, told["kind"])
    return kind(told["what"], fix=told["fix"], **facts)


def _foreign(name: str, message: str, *, builtin: bool) -> Exception:
    kind = getattr(builtins, name, None) if builtin else None
    if isinstance(kind, type) and issubclass(kind, Exception):
        with suppress(TypeError):  # not all are made of a text
            error = kind(message)
            if str(error) == message:
                return error
    return RuntimeError(f"{name}: {message}")
