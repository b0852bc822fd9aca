"""Processes for CPU-bound actions. Names and JSON go in, JSON or an error comes out; nothing else crosses.

Owns the process pool. In the process the action's module is imported and its handler called with a ctx that can tell
time and chance but has no database: it computes and returns, and its caller stores the result.
"""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from penstock.clock import SystemClock, random_of
from penstock.config import Config
from penstock.errors import ContextError, WorkerLost
from penstock.functions.function import AnyFunction


class ProcessCtx:
    """The ctx of an action that runs in a process of its own."""

    def __init__(self) -> None:
        clock = SystemClock()
        self._clock = clock
        self.random = random_of(clock.seed())

    def now(self) -> Any:
        """The time, aware, in UTC."""
        return self._clock.now()

    def __getattr__(self, name: str) -> Any:
        raise ContextError(
            f'ctx.{name} does not exist in an action with runtime="process".',
            fix="Compute and return there; read and write in the function that calls it.",
        )


class Processes:
    """A pool of processes, started when first needed and replaced when one of them dies."""

    def __init__(self, config: Config) -> None:
        self._count = config.processes
        self._pool: ProcessPoolExecutor | None = None

    async def run(self, function: AnyFunction, args: bytes) -> bytes:
        """Run an action's handler on JSON arguments; its result as JSON.

        Raises:
            WorkerLost: The process died.
        """
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self._count, mp_context=multiprocessing.get_context("spawn"))
        pool, loop = self._pool, asyncio.get_running_loop()
        module, file = _home(function)
        try:
            return await loop.run_in_executor(pool, _run, module, file, function.handler.__name__, args)
        except BrokenProcessPool as error:
            if self._pool is pool:
                self._pool = None
            raise WorkerLost(f"The process that ran {function.name} died.") from error

    async def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await asyncio.to_thread(pool.shutdown)


def _home(function: AnyFunction) -> tuple[str, str]:
    """Where a process finds the function: its module's name and, for a program's main module, its file."""
    module = sys.modules[function.handler.__module__]
    file = getattr(module, "__file__", None) or ""
    return function.name.partition(":")[0], file


def _run(module: str, file: str, name: str, args: bytes) -> bytes:
    function: AnyFunction = getattr(_import(module, file), name)
    try:
        result = function.handler(ProcessCtx(), **function.signature.check_json(args))
        return function.signature.result_json(function.signature.check_result(result))
    except Exception as error:
        raise _able_to_travel(error) from error


def _able_to_travel(error: Exception) -> Exception:
    """An error that the other process can make again; one that it cannot would end the whole pool."""
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:  # noqa: BLE001 - it has code of its own
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _import(module: str, file: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        if not file:
            raise
        sys.path.insert(0, str(Path(file).parent))
        return importlib.import_module(module)
