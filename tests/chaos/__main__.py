"""``make chaos``: run the program under each fault on each store, and print what was lost."""

from __future__ import annotations

import argparse
import asyncio
import sys

from chaos.faults import FAULTS
from chaos.load import MACHINE, NotRunError, Size
from chaos.outcome import Outcome
from chaos.program import WRITERS
from chaos.run import run

_RUNS_EACH = 10  # that are started with each row
COLUMNS = (
    "lost",
    "twice",
    "over a limit",
    "out of order",
    "repeated, at least once",
    "not run, workers lost",
    "recovery",
)


def line(store: str, name: str, found: Outcome) -> str:
    counts = (found.lost, found.twice, found.over_limit, found.out_of_order, found.duplicates, found.unrun)
    return f"| {store} | {name} | {' | '.join(map(str, counts))} | {found.recovery:.1f} s |"


async def main() -> int:
    options = _options()
    size = Size(-(-options.rows // WRITERS), options.jobs)
    if options.runs:
        size = Size(-(-options.runs // WRITERS // _RUNS_EACH), _RUNS_EACH, only_flows=True)
    print(f"Each line is a run of {size.words} by {WRITERS} writers.\n")
    print(f"| store | fault | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 2)}", flush=True)
    begun, is_clean, stood = MACHINE.monotonic(), True, list[tuple[str, str, dict[str, float]]]()
    for store in options.stores.split(","):
        for fault in FAULTS:
            if store not in fault.stores or not fault.name.startswith(options.only):
                continue
            try:
                found = await run(store, fault, size)
            except NotRunError as reason:
                left = " |" * (len(COLUMNS) - 1)
                print(f"| {store} | {fault.name} | not run: {reason} |{left}", flush=True)
                continue
            is_clean &= found.is_clean
            print(line(store, fault.name, found), flush=True)
            for one in found.examples:
                print(one, file=sys.stderr)
            stood += [(fault.name, what, gaps) for what, gaps in found.still.items()]
    if stood:
        print("\n| fault | by | writes | jobs | messages | live answers |\n|---|---|---|---|---|---|")
    for name, what, gaps in stood:
        print(f"| {name} | {what} | {' | '.join(f'{gap:.1f} s' for gap in gaps.values())} |")
    print(f"\nIt took {MACHINE.monotonic() - begun:.0f} s.")
    return 0 if is_clean else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--only", default="", metavar="NAME", help="faults whose name begins so")
    parser.add_argument("--stores", default="sqlite,postgres", help="sqlite, postgres, or both")
    parser.add_argument("--rows", type=int, default=20_000, help="how many are written in each run, at least")
    parser.add_argument("--runs", type=int, default=0, help="have all jobs be runs of a workflow, at least so many")
    parser.add_argument("--jobs", type=int, default=5, help="that are enqueued with each row")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
