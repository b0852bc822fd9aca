"""A program whose reactive tasks kill their process; `python -m stage.mortal` runs it until then."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from penstock import App, Id, MutationCtx, MutationTaskCtx, Retry, Table, TaskCtx

app = App()
THRICE = Retry(max_attempts=3, initial_backoff=0.01, base=1)
LEASE = 1.0


class Victim(Table):
    kind: str
    folder: str


def die(folder: str) -> None:
    with (Path(folder) / "deaths").open("a") as trace:
        trace.write("x")
    os.kill(os.getpid(), signal.SIGKILL)


@app.reactive_task(Victim, filter=lambda v: v.kind == "action", retry=THRICE)
async def dies(ctx: TaskCtx[Victim]) -> None:
    die((await ctx.get_document()).folder)


@app.reactive_task(Victim, filter=lambda v: v.kind == "mutation", retry=THRICE)
async def dies_within(ctx: MutationTaskCtx[Victim]) -> None:
    die((await ctx.get_document()).folder)


@app.reactive_task(Victim, filter=lambda v: v.kind == "completed", retry=THRICE)
async def dies_completed(ctx: TaskCtx[Victim]) -> None:
    victim = await ctx.get_document()
    await ctx.mark_completed()
    die(victim.folder)


@app.mutation
async def add(ctx: MutationCtx, kind: str, folder: str) -> Id[Victim]:
    return await ctx.db.insert(Victim(kind=kind, folder=folder))


def run_once(url: str) -> subprocess.Popen[bytes]:
    """A process that plans and works until it dies."""
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen([sys.executable, "-m", "stage.mortal", url], env=os.environ | {"PYTHONPATH": path})


async def main(url: str) -> None:
    async with app.open(url, services=("worker", "planner"), lease=LEASE):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
