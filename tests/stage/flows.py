"""Crashes of workflows: the worker is killed at the n-th named moment that it comes to, and its lease runs out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from penstock.observe import points
from penstock.testing import TestApp

MOMENTS = ("commit.before", "commit.after", "workflow.step_ran", "workflow.recorded", "workflow.sleeps")
EXPIRED = timedelta(seconds=31)


class Crash:
    """Holds the execution that comes to the n-th moment, until its worker is killed."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.came = asyncio.Event()
        self.moment = ""

    async def pass_by(self, moment: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.moment = moment
            self.came.set()
            await asyncio.Event().wait()
        elif self.left < 0 and not self.came.is_set():
            return
        elif self.left < 0:
            await asyncio.Event().wait()  # a dead process does nothing more


@contextmanager
def crash(at: int) -> Iterator[Crash]:
    """Crash at the n-th moment in a block."""
    made = Crash(at)

    def hold(moment: str) -> Any:
        async def come(**_facts: Any) -> None:
            await made.pass_by(moment)

        return come

    for moment in MOMENTS:
        points.arm(moment, hold(moment))
    try:
        yield made
    finally:
        for moment in MOMENTS:
            points.disarm(moment)


async def run_with_crashes(backend: TestApp, crashes: list[int], *, advance: bool = True) -> list[str]:
    """Run until idle, with a crash at each of these numbers of moments, one after another; where they came."""
    found = []
    for at in crashes:
        with crash(at) as made:
            work = asyncio.ensure_future(backend.run_until_idle(advance=advance, raise_errors=False))
            came = asyncio.ensure_future(made.came.wait())
            await asyncio.wait([work, came], return_when=asyncio.FIRST_COMPLETED)
            came.cancel()
            if not made.came.is_set():
                await work
                break
            found.append(made.moment)
            work.cancel()  # or it would have the worker go on
            await asyncio.wait([work])
            await backend.worker.kill()
        backend.clock.advance(EXPIRED)
    await backend.run_until_idle(advance=advance, raise_errors=False)
    return found
