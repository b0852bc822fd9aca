"""The protocol of the programs that are measured: a command line in, one line of JSON out.

``python -m benchmarks.peers.programs.<peer> URL MEASURE NUMBER…``, on an empty database, with one of these measures:

* ``drain COUNT``: store jobs without effect, then let one worker run them all.
* ``batches COUNT``: the same through a handler that is given many jobs at once.
* ``transactions COUNT``: the same, where each job adds one to a row of the table ``counter``, in a transaction.
* ``flows COUNT``: the same with workflows of three steps, each of which adds one to the row in a transaction.
* ``action_flows COUNT``: the same, where the steps have no effect.
* ``enqueue COUNT``: store jobs one by one, each in a commit of its own.
* ``batch COUNT``: store jobs all at once.
* ``latency COUNT RATE``: let a worker wait, while another process (``feed COUNT RATE``) stores jobs, so many a second.
* ``flow_latency COUNT RATE``: the same with workflows, until their first step begins (``flow_feed COUNT RATE``).
* ``start COUNT``: start workflows in the worker's own process, each once the first step of the one before has begun.

Jobs carry a number from 0 on, by which it is seen that each ran once. Programs run in environments of their own: this
file imports nothing but the standard library. `protocol.mjs` is the same for programs that run on Node.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import random
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any, ClassVar, Literal, cast, get_args
from urllib.parse import parse_qsl, urlsplit

Outcome = dict[str, Any]
Work = Literal["drain", "batches", "transactions", "flows", "action_flows"]
WORKS = get_args(Work)

_OF_FLOWS = {"flow_latency", "flow_feed", "start"}

COUNTERS = 1000
STEPS = 3  # of a workflow
POLL = 0.05
"""Seconds between two looks of those peers that look for work because nobody tells them of it."""
_LOOK_EVERY = 0.01
_LONGEST = 240.0
_IDLE_AFTER = 1.0


class Ran:
    """What the handlers of a worker have run: which job, and when. Handlers may call it from any thread."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.times: list[float] = []

    def one(self, number: int) -> None:
        """A job has run."""
        self.times.append(time.monotonic())
        self.numbers.append(number)


class Peer(ABC):
    """A queue, as its program presents it. Its methods may block: nothing else runs meanwhile in their event loop.

    Args:
        url: The database, or the server, that the jobs are in.
        work: What its jobs are to do.

    Attributes:
        works: What its jobs can do at all.
    """

    works: ClassVar[tuple[Work, ...]] = ("drain",)

    def __init__(self, url: str, work: Work) -> None:
        self.url = url
        self.work = work

    @abstractmethod
    def opened(self, *, install: bool) -> AbstractAsyncContextManager[None]:
        """Connect, for the time of a block, and make the queue's tables if `install` is true."""

    @abstractmethod
    async def enqueue_one(self, number: int) -> None:
        """Store a job in a commit of its own."""

    async def start_one(self, number: int) -> None:
        """Start a workflow from the process of the worker."""
        await self.enqueue_one(number)

    @abstractmethod
    async def enqueue_many(self, count: int) -> None:
        """Store jobs numbered from 0 on, by the fastest way there is."""

    @abstractmethod
    async def left(self) -> int:
        """How many jobs are stored and not settled yet."""

    @abstractmethod
    def worker(self, ran: Ran) -> AbstractAsyncContextManager[None]:
        """Run jobs, for the time of a block, and tell `ran` of each."""


def serve(peer: type[Peer]) -> None:
    """Run the measure of the command line and print its outcome; on uvloop, where that is installed."""
    url, measure, *numbers = sys.argv[1:]
    work = cast("Work", measure if measure in WORKS else "action_flows" if measure in _OF_FLOWS else "drain")
    if work not in peer.works:
        print(json.dumps({"cannot": f"it has no {work}"}))
        return
    outcome = _run(_measured(peer(url, work), measure, int(numbers[0]), *map(float, numbers[1:])))
    print(json.dumps(outcome), flush=True)


def _run(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.run(work)
    import uvloop  # noqa: PLC0415 - only where it is installed

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


async def _measured(peer: Peer, measure: str, count: int, rate: float = 0.0) -> Outcome:
    async with peer.opened(install=not measure.endswith("feed")):
        match measure:
            case "drain" | "batches" | "transactions" | "flows" | "action_flows":
                return await _drain(peer, count)
            case "start":
                return await _start(peer, count)
            case "enqueue":
                begun = time.monotonic()
                for number in range(count):
                    await peer.enqueue_one(number)
                return await _stored(peer, begun)
            case "batch":
                begun = time.monotonic()
                await peer.enqueue_many(count)
                return await _stored(peer, begun)
            case "latency" | "flow_latency":
                return await _latency(peer, count, rate, measure.replace("latency", "feed"))
            case "feed" | "flow_feed":
                return await _feed(peer, count, rate)
    raise ValueError(f"There is no measure {measure}.")


async def _stored(peer: Peer, begun: float) -> Outcome:
    seconds = time.monotonic() - begun
    return {"seconds": seconds, "stored": await peer.left()}


async def _drain(peer: Peer, count: int) -> Outcome:
    """``seconds`` count from the first job to the end of the last one, ``settled_seconds`` until none is left.

    ``cpu_seconds`` are those of the worker's process meanwhile, ``server_cpu_seconds`` those of PostgreSQL.
    """
    ran = Ran()
    await peer.enqueue_many(count)
    worked, served = time.process_time(), server_cpu(peer.url)
    async with peer.worker(ran):
        await _until_all_ran(ran, count)
        longest = time.monotonic() + _LONGEST
        while await peer.left():
            if time.monotonic() > longest:
                raise TimeoutError("All jobs have run, but the queue does not settle them.")
            await asyncio.sleep(_LOOK_EVERY)
        settled, worked, served = time.monotonic(), time.process_time() - worked, server_cpu(peer.url) - served
    seconds = {"seconds": ran.times[-1] - ran.times[0], "settled_seconds": settled - ran.times[0]}
    return {**_counts(ran), **seconds, "cpu_seconds": worked, "server_cpu_seconds": served}


def _processes() -> Iterator[list[str]]:
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            yield file.read_text("utf-8").rpartition(")")[2].split()


def server_cpu(url: str) -> float:
    """Processor seconds of a PostgreSQL server of this run, with all its processes; 0 if it is elsewhere."""
    folder = dict(parse_qsl(urlsplit(url).query)).get("host", "")
    try:
        postmaster = int((Path(folder) / "postmaster.pid").read_text("utf-8").split()[0])
        processes = list(_processes())
        itself = Path(f"/proc/{postmaster}/stat").read_text("utf-8").rpartition(")")[2].split()
    except (OSError, ValueError):
        return 0.0
    ticks = sum(map(int, itself[11:15])) + sum(
        sum(map(int, one[11:13])) for one in processes if one[1] == str(postmaster)
    )
    return ticks / os.sysconf("SC_CLK_TCK")


async def _start(peer: Peer, count: int) -> Outcome:
    """``pickup_ms`` count from the call until the first step of the workflow begins; the first ones are left out."""
    ran, taken = Ran(), []
    async with peer.worker(ran):
        for number in range(count):
            begun = time.monotonic()
            await peer.start_one(number)
            longest = begun + _LONGEST
            while len(ran.times) <= number:
                if time.monotonic() > longest:
                    raise TimeoutError(f"Workflow {number} has not started.")
                await asyncio.sleep(0)
            taken.append((ran.times[-1] - begun) * 1000)
    return {**_counts(ran), "pickup_ms": taken[count // 5 :]}


async def _latency(peer: Peer, count: int, rate: float, feed: str) -> Outcome:
    """``pickup_ms`` count from the end of an enqueue to its handler's start, ``whole_ms`` from the enqueue's beginning.

    Those of the first second are left out: connections are opened then.
    """
    ran = Ran()
    async with peer.worker(ran):
        await asyncio.sleep(_IDLE_AFTER)
        command = (sys.executable, "-m", _main_module(), peer.url, feed, str(count), str(rate))
        feeder = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        output, _ = await feeder.communicate()
        if feeder.returncode:
            raise RuntimeError("The process that enqueues has failed.")
        await _until_all_ran(ran, count)
    fed = json.loads(output.splitlines()[-1])["fed"]
    begun = dict(zip(ran.numbers, ran.times, strict=True))
    counted = range(min(int(rate), count // 2), count)
    return {
        **_counts(ran),
        "pickup_ms": [(begun[number] - fed[number][1]) * 1000 for number in counted],
        "whole_ms": [(begun[number] - fed[number][0]) * 1000 for number in counted],
    }


async def _feed(peer: Peer, count: int, rate: float) -> Outcome:
    """Enqueue at a rate with uneven pauses; when each enqueue began and ended."""
    chance, fed, due = random.Random(1), [], time.monotonic()
    for number in range(count):
        due += chance.uniform(0.5, 1.5) / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        begun = time.monotonic()
        await peer.enqueue_one(number)
        fed.append((begun, time.monotonic()))
    return {"fed": fed}


async def _until_all_ran(ran: Ran, count: int) -> None:
    longest = time.monotonic() + _LONGEST
    while len(ran.numbers) < count:
        if time.monotonic() > longest:
            raise TimeoutError(f"{count - len(ran.numbers)} of {count} jobs have not run.")
        await asyncio.sleep(_LOOK_EVERY)


def _counts(ran: Ran) -> Outcome:
    return {"ran": len(ran.numbers), "distinct": len(set(ran.numbers))}


def _main_module() -> str:
    spec = sys.modules["__main__"].__spec__
    if spec is None:
        raise RuntimeError("These programs are run with python -m.")
    return spec.name
