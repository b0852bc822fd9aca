"""What every call needs: the store, the functions, the settings, the clock, and threads for functions written with def.

Owns threads and processes. Built and closed by `app`; the rest of `calls` only uses it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from penstock.calls.processes import Processes
from penstock.clock import Clock, SystemClock
from penstock.config import Config
from penstock.functions.function import FunctionKind
from penstock.functions.registry import Registry
from penstock.store.contract import Store
from penstock.store.statements import Statements

R = TypeVar("R")

_LARGE = 256 * 1024


class Engine:
    """The parts of a running app that calls use.

    Attributes:
        clock: The app's time; a test may move it.
        machine: The machine's own time, for waits inside one call.
    """

    def __init__(self, store: Store, registry: Registry, config: Config, clock: Clock) -> None:
        self.store = store
        self.registry = registry
        self.config = config
        self.clock = clock
        self.machine = SystemClock()
        self.statements = Statements(store.dialect)
        self.processes = Processes(config)
        self._threads: dict[str, ThreadPoolExecutor] = {}

    async def in_thread(self, kind: FunctionKind, depth: int, work: Callable[[], R]) -> R:
        """Run the blocking work of a function in a thread.

        Each depth of nested calls has threads of its own, so that a function that waits for another one never holds
        the thread which that one needs. Nor do actions hold those of queries and mutations: an action may wait for a
        transaction to begin, while one that has begun waits for a thread.
        """
        name = f"penstock-{'action' if kind is FunctionKind.ACTION else 'transaction'}-{depth}"
        threads = self._threads.get(name)
        if threads is None:
            threads = self._threads[name] = ThreadPoolExecutor(self.config.threads, name)
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(threads, lambda: context.run(work))

    async def close(self) -> None:
        """End the threads and processes; waits for what still runs in them."""
        while self._threads:
            _, threads = self._threads.popitem()
            await asyncio.to_thread(threads.shutdown)
        await self.processes.close()


async def apart(size: int, work: Callable[[], R]) -> R:
    """Do work that takes longer the more bytes there are, such as checking them; in a thread if there are many."""
    return work() if size <= _LARGE else await asyncio.to_thread(work)
