"""``python -m benchmarks``: measure, print, and end with status 1 if a bar is not met.

Those named ``peer_…`` install other job queues, those named ``hostile_…`` make the machine busy and the network slow,
those named ``large_…`` have many rows or clients, and those named ``price_…`` hold nothing to a bar: they run only if
asked for, such as with ``--only peer``.

Each benchmark prints a line for people, then ``BAR name measured need ok|short`` if it has a bar to meet, and
``REPORT name value`` for numbers that have none; ``SKIP peer reason`` stands for a peer that cannot be measured, whose
bars then are short. A benchmark that fails ends the run with status 1 in any case.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.util
import sys
import time
import traceback

from benchmarks import (
    changes,
    check,
    claims,
    dashboard,
    doors,
    footprint,
    hostile,
    jobs,
    live,
    mutations,
    mutationtasks,
    outbox,
    pools,
    prices,
    queries,
    rules,
    scheduling,
    searches,
    sockets,
    tasks,
    tokens,
    vectors,
    web,
    workflows,
)
from benchmarks.databases import Databases
from benchmarks.harness import QUICK, Bar, Bench, Benchmark, CannotMeasureError, Sizes, machine_facts
from benchmarks.peers import bars

BENCHMARKS = (
    *mutations.BENCHMARKS,
    *queries.BENCHMARKS,
    *rules.BENCHMARKS,
    *scheduling.BENCHMARKS,
    *claims.BENCHMARKS,
    *jobs.BENCHMARKS,
    *pools.BENCHMARKS,
    *prices.BENCHMARKS,
    *changes.BENCHMARKS,
    *tasks.BENCHMARKS,
    *workflows.BENCHMARKS,
    *live.BENCHMARKS,
    *mutationtasks.BENCHMARKS,
    *outbox.BENCHMARKS,
    *footprint.BENCHMARKS,
    *doors.BENCHMARKS,
    *sockets.BENCHMARKS,
    *web.BENCHMARKS,
    *dashboard.BENCHMARKS,
    *tokens.BENCHMARKS,
    *check.BENCHMARKS,
    *searches.BENCHMARKS,
    *vectors.BENCHMARKS,
    *bars.BENCHMARKS,
    *hostile.BENCHMARKS,
)
_ON_DEMAND = ("peer_", "hostile_", "price_", "large_")
_WHOLE = Bar(at_most=480)  # seconds of all that are not on demand


def main() -> int:
    """Run the chosen benchmarks; the exit status."""
    options = _options()
    chosen = [benchmark for benchmark in BENCHMARKS if _is_chosen(benchmark.name, options.only)]
    if not chosen:
        print(f"No benchmark is named {options.only}…; there are {', '.join(one.name for one in BENCHMARKS)}.")
        return 2
    gc.freeze()  # of all that was imported; to search it before each turn would take longer than the turn
    databases = Databases()
    sizes = QUICK if options.quick else Sizes()
    print(*machine_facts(), sep="\n", flush=True)
    begun = time.perf_counter()
    try:
        met = [_run(one, Bench(one.name, sizes, databases), strict=not options.quick) for one in chosen]
    finally:
        databases.close()
    if not options.only and not options.quick:
        whole = Bench("bench_seconds", sizes, databases)
        whole.hold("", time.perf_counter() - begun, _WHOLE)
        met.append(whole.met)
    return 0 if all(met) else 1


def _is_chosen(name: str, only: str) -> bool:
    return name.startswith(only) and (bool(only) or not name.startswith(_ON_DEMAND))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", default="", metavar="NAME", help="benchmarks whose name begins so")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that all runs; no bar is held to")
    return parser.parse_args()


def _run(benchmark: Benchmark, bench: Bench, *, strict: bool) -> bool:
    """Run one benchmark and print its outcome; whether the run may still end well."""
    if benchmark.uvloop and importlib.util.find_spec("uvloop") is None:
        return True
    begun = time.perf_counter()
    try:
        measured = _measure(benchmark, bench)
    except CannotMeasureError as reason:
        bench.row(f"cannot be measured: {reason}")
        _tell(benchmark, bench, None, "none")
    except Exception:  # noqa: BLE001 - the others are still to be measured
        traceback.print_exc()
        _tell(benchmark, bench, None, "error")
        return False
    else:
        _tell(benchmark, bench, measured, "none")
    bench.row(f"took {time.perf_counter() - begun:.0f} s")
    return bench.met or not strict


def _tell(benchmark: Benchmark, bench: Bench, measured: float | None, otherwise: str) -> None:
    """Print the line of the outcome."""
    if benchmark.bar is not None:
        bench.hold("", measured, benchmark.bar, otherwise)
    elif measured is not None:
        bench.report("", measured)


def _measure(benchmark: Benchmark, bench: Bench) -> float | None:
    if not benchmark.uvloop:
        return asyncio.run(_awaited(benchmark, bench))
    import uvloop  # noqa: PLC0415 - only where it is installed

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_awaited(benchmark, bench))


async def _awaited(benchmark: Benchmark, bench: Bench) -> float | None:
    return await benchmark.run(bench)


if __name__ == "__main__":
    sys.exit(main())
