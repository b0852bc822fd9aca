"""Stopping ends within the grace time and a moment, whatever handlers do: in a program of somebody else, too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from stage import stubborn

from penstock.app import SERVICES

BOUND = 30.0  # seconds, on a machine that does other things as well; what fails never ends
ENDS_LOOP = {"block", "keep_interpreter"}  # nothing of the program runs meanwhile, so a process ends it


@pytest.fixture(autouse=True)
def _new_events() -> Iterator[None]:
    stubborn.begun.clear()
    stubborn.end.clear()
    yield
    stubborn.end.set()


async def end_stubborn() -> None:
    """Let the functions end, as the loop of the test waits for them."""
    stubborn.end.set()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


@pytest.mark.parametrize("kind", [kind for kind in stubborn.KINDS if kind not in ENDS_LOOP])
async def test_a_backend_closes_though_work_does_not_end(database_url: str, kind: str) -> None:
    try:
        async with asyncio.timeout(None) as bound:
            async with stubborn.app.open(database_url, services=SERVICES) as backend:
                await backend.run_mutation(stubborn.begin_work, kind)
                assert await asyncio.to_thread(stubborn.begun.wait, BOUND)
                bound.reschedule(asyncio.get_running_loop().time() + BOUND)
    finally:
        await end_stubborn()


@pytest.mark.parametrize(
    "function", [stubborn.act, stubborn.enter, stubborn.look, stubborn.act_in_thread, stubborn.enter_in_thread]
)
async def test_a_backend_closes_though_a_call_does_not_end(database_url: str, function: Any) -> None:
    try:
        async with asyncio.timeout(None) as bound:
            async with stubborn.app.open(database_url) as backend:
                run: Any = getattr(backend, f"run_{function.kind.value}")
                call = asyncio.ensure_future(run(function))
                assert await asyncio.to_thread(stubborn.begun.wait, BOUND)
                bound.reschedule(asyncio.get_running_loop().time() + BOUND)
    finally:
        await end_stubborn()
        await asyncio.wait([call], timeout=BOUND)
