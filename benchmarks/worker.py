"""One worker in a process of its own, for `jobs`: says ``ready``, starts at the first line of input, ends at the next.

Its last line of output is the processor time in seconds that it used in between.
"""

from __future__ import annotations

import asyncio
import sys
import time

from benchmarks.program import app
from penstock import Config
from penstock.services.service import Group


async def main(url: str, *settings: str) -> None:
    """Run a worker on a database."""
    config = Config(database=url)
    if settings:
        config = Config(database=url, lease=float(settings[0]), worker_jobs=int(settings[1]))
    async with app.open(config=config, push_schema=False) as backend:
        group = Group([backend.make_service("worker")], backend.engine.store.signals)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        begun = time.process_time()
        group.start()
        await asyncio.to_thread(sys.stdin.readline)
        used = time.process_time() - begun
        await group.stop()
    print(used, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
