"""What a handler raises ends its call only; what ends its loop is left alone."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from penstock.calls.run.containment import containing
from penstock.errors import UsageError


async def stuck() -> None:
    with containing("handler"):
        await asyncio.Event().wait()


def test_a_call_that_its_loop_has_left_is_closed_without_an_error() -> None:
    loop = asyncio.new_event_loop()
    running = stuck()
    task = loop.create_task(running)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    running.close()
    assert inspect.getcoroutinestate(running) == inspect.CORO_CLOSED
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_outside_of_a_loop_nobody_closes_a_call() -> None:
    with pytest.raises(UsageError, match="handler raised GeneratorExit"), containing("handler"):
        raise GeneratorExit
