"""One run: a load, a fault that strikes it, and what came of it."""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

from chaos.faults import Fault
from chaos.load import LEASE, MACHINE, Load, Size, placed
from chaos.outcome import Outcome, outcome_of, remaining
from chaos.program import app
from stage.processes import Command, Process
from stage.servers import free_port

_PATIENCE = 180.0  # seconds after the last write in which nothing comes to an end, before the rest counts as lost


async def run(store: str, fault: Fault, size: Size, pause: float = LEASE) -> Outcome:
    """Let a fault strike a load until all is written, and count.

    Args:
        store: ``sqlite`` or ``postgres``.
        fault: What strikes.
        size: How much is written.
        pause: Seconds between two strikes.

    Raises:
        NotRunError: This machine cannot have such a fault.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-traces-") as folder, patch.dict(os.environ, CHAOS_FOLDER=folder):
        if size.only_flows:
            os.environ["CHAOS_FLOWS"] = "1"
        async with placed(store, fault.needs) as place:
            async with app.open(place.own_url):
                pass  # makes the tables
            load = Load(place, Path(folder), size)
            try:
                await _struck(load, fault, pause)
                return await _counted(load)
            finally:
                load.close()


async def _struck(load: Load, fault: Fault, pause: float) -> None:
    writing = await asyncio.to_thread(load.start)
    if fault.needs == "http":
        await _serve(load)
    for process in writing:
        process.go()
    written = asyncio.gather(*(asyncio.to_thread(process.expect, "done") for process in writing))
    done = -1
    for number in range(fault.strikes):
        await MACHINE.sleep(pause if number else 1.0)
        if written.done() and number and done == load.traces:
            break
        done = load.traces
        await fault.strike(load, number)
        load.ends.append(MACHINE.monotonic())
    await written
    load.calm()
    if load.place.cluster is not None:
        await load.place.cluster.whole()


async def _serve(load: Load) -> None:
    load.port = free_port()
    given = ("serve", "--services", "--port", str(load.port))
    server: Process = Command("chaos.program", load.place.url, *given, PENSTOCK_LOG_LEVEL="error")
    load.others.append(server)
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", load.port)
            writer.close()
            return
        await MACHINE.sleep(0.05)


async def _counted(load: Load) -> Outcome:
    async with app.open(load.place.own_url, push_schema=False) as backend:
        left, since = await remaining(load, backend), MACHINE.monotonic()
        while any(left) and MACHINE.monotonic() < since + _PATIENCE:
            await MACHINE.sleep(0.5)
            before, left = left, await remaining(load, backend)
            if left != before:
                since = MACHINE.monotonic()
        await asyncio.to_thread(load.stop)
        return await outcome_of(load, backend)
