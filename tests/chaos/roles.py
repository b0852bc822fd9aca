"""The roles of processes under faults: `python -m chaos.roles work|write|watch`.

With `--dies=moment:n` a process kills itself when it comes to a moment for the n-th time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import AsyncExitStack, suppress
from datetime import datetime, timedelta

from chaos import flows
from chaos.flows import note
from chaos.program import JUMP, JUMP_OF_ALL, SERVICES, app, put, totals

from penstock.app import Backend
from penstock.clock import SystemClock
from penstock.errors import DatabaseBusy, DatabaseUnavailable, PenstockError
from penstock.observe import points


class JumpingClock(SystemClock):
    """The clock of a machine that is wrong from the beginning, and jumps when the process is told to."""

    def __init__(self, skew: timedelta, jump: timedelta) -> None:
        super().__init__()
        self._skew = skew
        self._jump = jump

    def machine_time(self) -> datetime:
        return super().machine_time() + self._skew

    def jump(self) -> None:
        self._skew += self._jump if self._skew <= timedelta(0) else -self._jump


async def work(backend: Backend) -> None:
    await told_to_stop()


async def told_to_stop() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    say("ready")
    await stop.wait()


async def write(backend: Backend, first: str, writers: str, rows: str, jobs: str) -> None:
    """Write parcels as several writers, each one after the other, until each is acknowledged."""

    async def write_all(writer: int) -> None:
        for number in range(int(rows)):
            while True:
                try:
                    await backend.run_mutation(put, writer=writer, number=number, jobs=int(jobs))
                except PenstockError as error:
                    note("refused", writer, number, error.code)
                    await SystemClock().sleep(0.05)
                else:
                    note("wrote", writer, number)
                    break

    say("ready")
    await asyncio.to_thread(sys.stdin.readline)
    await asyncio.gather(*(write_all(int(first) + number) for number in range(int(writers))))
    say("done")


async def watch(backend: Backend) -> None:
    async def note_all() -> None:
        async for answer in backend.live(totals):
            note("seen", *answer)

    noting = asyncio.create_task(note_all())
    await told_to_stop()
    noting.cancel()
    await asyncio.wait([noting])


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def arm_death(moment: str, count: int) -> None:
    left = count

    async def come(**_facts: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if moment in points.POINTS:
        points.arm(moment, come)
    else:
        flows.around_effects[moment] = come


async def main(role: str, database: str, *arguments: str, skew: str = "0", dies: str = "", **settings: str) -> None:
    logging.disable()  # of hundreds of faults
    if dies:
        moment, _, count = dies.partition(":")
        arm_death(moment, int(count))
    clock = JumpingClock(timedelta(seconds=float(skew)), JUMP_OF_ALL if database.startswith("sqlite") else JUMP)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, clock.jump)
    services = SERVICES if role == "work" else ()
    config = app.config(database=database, **settings)
    async with AsyncExitStack() as stack:
        backend = None
        while backend is None:
            opened = app.open(services=services, config=config, clock=clock, push_schema=False)
            with suppress(DatabaseUnavailable, DatabaseBusy):  # a fault strikes; a supervisor starts it again
                backend = await stack.enter_async_context(opened)
        await {"work": work, "write": write, "watch": watch}[role](backend, *arguments)  # type: ignore[operator]


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    options = dict(argument[2:].split("=", 1) for argument in sys.argv[1:] if argument.startswith("--"))
    asyncio.run(main(*given, **options))
