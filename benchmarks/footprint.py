"""What penstock costs before it does anything: the time of an import, and the memory of an idle program.

Imports are timed in fresh interpreters, each beside one that imports nothing; the difference is the import's. The
memory is that of all processes of ``penstock dev`` on an example of one table and three functions, some seconds after
it was started.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from benchmarks.harness import Bar, Bench, Benchmark, CannotMeasureError, alternate, spread

_PATIENCE = 15.0
_ADDRESS = re.compile(r"http://(?P<host>[\w.]+):(?P<port>\d+)")
_MB = 1024 / 1_000_000  # of a KiB
_PROGRAM = """
from datetime import timedelta

from penstock import ActionCtx, App, Id, MutationCtx, QueryCtx, Table

app = App()


class Note(Table):
    text: str


@app.mutation
async def write(ctx: MutationCtx, text: str) -> Id[Note]:
    note = await ctx.db.insert(Note(text=text))
    await ctx.scheduler.run_after(timedelta(seconds=1), publish, note=note)
    return note


@app.query
async def read(ctx: QueryCtx) -> list[Note]:
    return await ctx.db.query(Note).take(10)


@app.internal_action
async def publish(ctx: ActionCtx, note: Id[Note]) -> None:
    pass
"""
_FASTAPI = """
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()


class Note(BaseModel):
    text: str


@app.post("/write")
async def write(note: Note) -> Note:
    return note


@app.get("/read")
async def read() -> list[Note]:
    return []
"""


# ----- the time of an import


async def import_time(bench: Bench, statement: str) -> float:
    """Milliseconds that an import takes in a fresh interpreter."""
    await _start(statement)  # compiled, and in the file cache
    nothing, whole = await alternate(bench.sizes.starts, partial(_start, "pass"), partial(_start, statement))
    found = [after - before for before, after in zip(nothing, whole, strict=True)]
    bench.row(spread("import", found, " ms"), f"bare interpreter {statistics.median(nothing):.0f} ms")
    return max(0.0, statistics.median(found))


async def app_import(bench: Bench) -> float:
    """The start of an interpreter that imports a program with an app, by that of one with an app of FastAPI."""
    for program in (_PROGRAM, _FASTAPI):
        await _start(program)
    ours, theirs = await alternate(bench.sizes.starts, partial(_start, _PROGRAM), partial(_start, _FASTAPI))
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    bench.row(spread("penstock", ours, " ms"), spread("fastapi", theirs, " ms"), spread("ratio", ratios))
    return statistics.median(ratios)


async def _start(statement: str) -> float:
    begun = time.perf_counter()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", statement, env=_compiling())
    if await process.wait():
        raise CannotMeasureError(f"{statement!r} fails.")
    return (time.perf_counter() - begun) * 1000


def _compiling() -> dict[str, str]:
    """The environment in which an interpreter keeps what it compiles, as pip has done for installed packages."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


# ----- the memory of a program


async def dev_memory(bench: Bench) -> float:
    """Resident megabytes of an idle ``penstock dev`` with all its processes."""
    async with dev_program(bench, _PROGRAM) as (process, _, _):
        await asyncio.sleep(bench.sizes.settle)
        resident, proportional, count = memory_of(process.pid)
    shared = "" if proportional is None else f"{proportional:.0f} MB with shared pages divided"
    bench.row(f"{count} processes", f"{resident:.0f} MB resident", shared)
    if proportional is not None:
        bench.report("proportional", proportional)
    return resident


@asynccontextmanager
async def dev_program(
    bench: Bench, program: str, command: str = "dev", database: str = "sqlite:///idle.db", port: int = 0
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str, int]]:
    """``penstock dev`` on a program for the time of a block; its process, and the address at which it serves."""
    folder = bench.databases.folder / f"dev-{bench.name}"
    folder.mkdir(exist_ok=True)
    (folder / "main.py").write_text(program, "utf-8")
    output = folder / "output.txt"
    plain_environment = {name: value for name, value in _compiling().items() if not name.startswith("PENSTOCK_")}
    with output.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "penstock.cli.main", "--app", "main.py", "--database", database,
            command, "--port", str(port),
            cwd=folder, env=plain_environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
        )  # fmt: skip
        try:
            host, port = await _serving(process, output)
            yield process, host, port
        finally:
            await _stop(process)


async def _serving(process: asyncio.subprocess.Process, output: Path) -> tuple[str, int]:
    """Wait until the program answers at the address that it has printed."""
    deadline = time.perf_counter() + _PATIENCE
    while time.perf_counter() < deadline:
        await asyncio.sleep(0.1)
        if process.returncode is not None:
            raise CannotMeasureError(f"penstock dev has ended: {_last_line(output)}")
        address = _ADDRESS.search(await asyncio.to_thread(output.read_text, "utf-8", "replace"))
        if address is not None:
            _, writer = await asyncio.open_connection(address["host"], int(address["port"]))
            writer.close()
            return address["host"], int(address["port"])
    raise CannotMeasureError(f"penstock dev does not serve: {_last_line(output)}")


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(_PATIENCE):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def _last_line(output: Path) -> str:
    lines = output.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def family(root: int) -> dict[int, int]:
    """A process and all below it, with the resident kilobytes of each."""
    listed = subprocess.run(["ps", "-Ao", "pid=,ppid=,rss="], check=True, capture_output=True, text=True).stdout
    parents, resident = {}, {}
    for line in listed.splitlines():
        pid, parent, kilobytes = map(int, line.split())
        parents[pid], resident[pid] = parent, kilobytes
    tree = {root}
    while below := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= below
    return {pid: resident[pid] for pid in tree}


def memory_of(root: int) -> tuple[float, float | None, int]:
    """Megabytes of a process and all below it: resident; with shared pages divided, if known; and their number."""
    resident = family(root)
    tree = resident.keys()
    shares = [_proportional_kilobytes(pid) for pid in tree]
    known = [share for share in shares if share is not None]
    proportional = sum(known) * _MB if len(known) == len(tree) else None
    return sum(resident[pid] for pid in tree) * _MB, proportional, len(tree)


def _proportional_kilobytes(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), None)


BENCHMARKS = (
    Benchmark("import_penstock_ms", partial(import_time, statement="import penstock"), Bar(at_most=100)),
    Benchmark("import_client_ms", partial(import_time, statement="import penstock.client"), Bar(at_most=50)),
    Benchmark("import_app_to_fastapi", app_import, Bar(at_most=1.3)),
    Benchmark("dev_memory_mb", dev_memory, Bar(at_most=80)),
)
