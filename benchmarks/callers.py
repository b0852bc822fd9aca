"""Callers of one row in a process of their own, for `mutations`: says ``ready``, then calls as each line asks.

After each line of input, a number of seconds, it prints the calls made, the conflicts raised and the longest latency.
"""

from __future__ import annotations

import asyncio
import sys
import time

from benchmarks.program import add_one, app
from penstock import Backend, Config, Conflict, Id


async def main(url: str, row: str, callers: str) -> None:
    """Call from a database's row until there is no more input."""
    async with app.open(config=Config(database=url), push_schema=False) as backend:
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            end = time.perf_counter() + float(line)
            found = await asyncio.gather(*(_call(backend, row, end) for _ in range(int(callers))))
            done, conflicts, longest = zip(*found, strict=True)
            print(sum(done), sum(conflicts), max(longest), flush=True)


async def _call(backend: Backend, row: str, end: float) -> tuple[int, int, float]:
    done = conflicts = 0
    longest, now = 0.0, time.perf_counter()
    while now < end:
        begun = now
        try:
            await backend.run_mutation(add_one, counter=Id(row))
            done += 1
        except Conflict:
            conflicts += 1
        now = time.perf_counter()
        longest = max(longest, now - begun)
    return done, conflicts, longest


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
