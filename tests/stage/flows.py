"""Crashes of workflows: the worker is killed at the n-th named moment that it comes to, and its lease runs out.

Or it is suspended there, and goes on once its lease has run out and another worker has done all that was left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

from penstock.observe import points
from penstock.testing import TestApp

MOMENTS = ("commit.before", "commit.after", "workflow.step_ran", "workflow.recorded", "workflow.sleeps")
EXPIRED = timedelta(seconds=31)


_frozen: ContextVar[bool] = ContextVar("frozen", default=False)  # whether this task is of a worker that is suspended


class Crash:
    """Holds the execution that comes to the n-th moment, until its worker is killed, or goes on."""

    def __init__(self, at: int, *, thaws: bool) -> None:
        self.left = at
        self.thaws = thaws
        self.came, self.goes_on = asyncio.Event(), asyncio.Event()
        self.moment = ""

    async def pass_by(self, moment: str) -> None:
        if self.thaws and (moment == "commit.before" or not _frozen.get()):
            return  # it would hold locks that others wait for
        self.left -= 1
        if self.left == 0:
            self.moment = moment
            self.came.set()
        if self.came.is_set():  # a process that is dead or suspended does nothing more
            await self.goes_on.wait()


@contextmanager
def crash(at: int, *, thaws: bool = False) -> Iterator[Crash]:
    """Crash at the n-th moment in a block."""
    made = Crash(at, thaws=thaws)

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


async def run_with_thaw(backend: TestApp, other: TestApp, at: int) -> str:
    """Run until idle, with the worker suspended at the n-th moment until another one has done the rest; the moment."""
    with crash(at, thaws=True) as made:
        work = asyncio.create_task(_work(backend))
        came = asyncio.create_task(made.came.wait())
        await asyncio.wait([work, came], return_when=asyncio.FIRST_COMPLETED)
        came.cancel()
        if made.came.is_set():
            backend.clock.advance(EXPIRED)
            await other.run_until_idle(raise_errors=False)
            made.goes_on.set()
        await work
    return made.moment


async def _work(backend: TestApp) -> None:
    _frozen.set(True)
    worker, clock = backend.worker, backend.clock
    while True:
        pause = await worker.tick()
        if worker.running or worker.open_outcomes or not pause:
            await worker.wait_for_jobs()
        elif worker.next_run_at is None or worker.next_run_at > clock.now() + timedelta(days=366):
            return
        else:
            clock.advance(max(worker.next_run_at - clock.now(), timedelta(0)))


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
    if (await backend.job_counts())["running"]:  # the dead worker has claimed one in its last moment
        backend.clock.advance(EXPIRED)
        await backend.run_until_idle(advance=advance, raise_errors=False)
    return found
