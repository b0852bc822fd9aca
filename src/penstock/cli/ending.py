"""How a process that serves ends: for certain, even if functions written with def do not.

Owns the threads in which blocking work is done, and what happens to those that still run when all else has ended. The
interpreter would wait for them, for ever if need be.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from penstock.clock import SystemClock
from penstock.observe.logs import event

T = TypeVar("T")

_PREFIX = "penstock-"
_ENDS_WITHIN = 0.5  # seconds, for threads that have nothing to do any more


def run_to_end(runner: asyncio.Runner, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; its result. Threads that do not end with it are left to `end_process`."""
    threads = ThreadPoolExecutor(thread_name_prefix=f"{_PREFIX}blocking")
    try:
        runner.get_loop().set_default_executor(threads)
        return runner.run(work)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        if not _threads_left():
            runner.close()


def end_process() -> None:
    """End the process now if threads are left; otherwise it ends by itself."""
    left = _threads_left()
    if not left:
        return
    event("process.ended", logging.WARNING, threads=",".join(sorted(thread.name for thread in left)))
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    logging.shutdown()
    os._exit(0)


def _threads_left() -> list[threading.Thread]:
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(_PREFIX)]
    clock = SystemClock()
    until = clock.monotonic() + _ENDS_WITHIN
    for thread in threads:
        thread.join(max(0.0, until - clock.monotonic()))
    return [thread for thread in threads if thread.is_alive()]
