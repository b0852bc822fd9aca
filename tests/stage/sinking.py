"""A relay of an example of sinks, `python -m stage.sinking`. It may die between sending and writing that down."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import os
import signal
import sys
from datetime import timedelta
from typing import Any

from stage.programs import EXAMPLES

from penstock import Retry
from penstock.observe import points
from penstock.store.nouns.outboxes import Step

SOON = Retry.fixed(0.1, max_attempts=3)
AT_MOST = timedelta(seconds=2)


async def main(role: str, database: str, sink: str, *, dies: str = "", **settings: str) -> None:
    """Hand over until the process is stopped, or has sent something and is to die of it."""
    assert role == "relay"
    sys.path.insert(0, str(EXAMPLES / "outbox"))
    app = importlib.import_module(sink).app
    for name, declared in app.outboxes._declared.items():  # tests have less patience than programs
        outbox = dataclasses.replace(declared.outbox, retry=SOON, timeout=AT_MOST)
        app.outboxes._declared[name] = dataclasses.replace(declared, outbox=outbox)
    if dies:
        points.arm("outbox.write", die)
    async with app.open(services=("relay",), config=app.config(database=database, **settings)):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        await stopped.wait()


async def die(step: Step, **_facts: Any) -> None:
    """End the process at once, where messages were sent and it is not written."""
    if step.delivered:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    options = dict(argument[2:].split("=", 1) for argument in sys.argv[1:] if argument.startswith("--"))
    asyncio.run(main(*given, **options))
