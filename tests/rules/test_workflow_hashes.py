"""Bodies of workflows in processes whose hashes differ, as after a crash: which of their sets keep an order."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

HASHES = """
import asyncio, json, sys
sys.path[:0] = json.loads(sys.argv[2])
from test_workflow_bodies import ACT, World, open_calls, outcome_of
import test_workflow_bodies as bodies

async def tasks_in_a_set(ctx, program):
    pending = {asyncio.create_task(ctx.run_action(ACT, word)) for word in program}
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            await ctx.run_action(ACT, "then " + one.result())

async def words_in_a_set(ctx, program):
    for word in set(program):
        await ctx.run_action(ACT, word)

bodies.play = locals()[sys.argv[1]]
records, world = [bodies.Record(bodies.BEGINNING, bodies.RecordKind.BEGIN, 0, bodies.START)], World(7)
body = world.start(list("abcdefgh"), records)
world.go_on(body, records, 10_000)
print(json.dumps([(one.number, one.place, one.args) for one in records]))
"""


@pytest.mark.parametrize(("how", "alike"), [("tasks_in_a_set", True), ("words_in_a_set", False)])
def test_another_seed_of_hashes_changes_no_order_of_tasks(how: str, *, alike: bool) -> None:
    """The order of a set of texts it does change: `penstock check` refuses that, and a replay parks it. (WF42)"""
    paths = json.dumps([one for one in sys.path if one])
    found = {
        subprocess.run(
            [sys.executable, "-c", HASHES, how, paths],
            env={**os.environ, "PYTHONHASHSEED": f"{seed}"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2, 3)
    }
    assert all(found)
    assert (len(found) == 1) is alike
