"""A relay on a machine that is cut off from the database in the middle of a message, and comes back."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from stage import severed
from stage.examples import LONG
from stage.needs import INSISTS
from stage.network import Machine, RefusedError, machine, refusal, run, tried
from stage.outboxes import outbox_row
from stage.processes import Process
from stage.server import server
from stage.severed import HELD
from stage.waits import until

from penstock.app import Backend

LEASE = 3.0
PARCELS = 12


@pytest.fixture
def other() -> Iterator[Machine]:
    """Another machine."""
    if reason := refusal():
        skip = pytest.fail if os.environ.get(INSISTS) else pytest.skip
        skip(reason)
    with machine() as made:
        yield made


async def delivered(backend: Backend, count: int) -> bool:
    """Whether both outboxes have come so far."""
    return all([(await outbox_row(backend, name)).delivered >= count for name in ("label", "dispatch")])


def told(folder: Path) -> list[list[str]]:
    """What the outside world was told, in order: which parcel, and the id of the message."""
    return [line.split() for line in (folder / "outside").read_text().splitlines()]


@pytest.mark.parametrize(
    ("holds", "moment"),
    [("label", "interrupted"), ("label", "cut off"), ("dispatch", "back"), *([("label", "back")] if LONG else [])],
)
async def test_a_relay_that_is_cut_off_in_the_middle_of_a_message_is_followed_and_does_nothing_more(
    other: Machine, holds: str, moment: str, tmp_path: Path
) -> None:
    """Its handler is interrupted; or will not be, and ends while it is cut off, or when it is back."""
    with server() as own, ExitStack() as stack:
        away = await own.listen(other.here, guests=other.there)
        settings: dict[str, Any] = {"lease": LEASE, "folder": tmp_path, "statement_timeout": 2.0}

        def relay(url: str, **more: Any) -> Process:
            made = Process("relay", url, program="stage.severed", **settings, **more)
            stack.callback(made.close)
            made.expect("ready")
            return made

        async with severed.app.open(own.url) as backend:
            cut = relay(away, within=other.command, holds=holds, stubborn="" if moment == "interrupted" else "yes")
            await backend.run_mutation(severed.put, 0, 1)
            await until(lambda: delivered(backend, 1))
            near = relay(own.url)
            await backend.run_mutation(severed.put, 1, PARCELS)
            cut.expect("held")
            other.unplug()
            await until(lambda: delivered(backend, PARCELS))  # though the other one had locked what it writes
            if moment != "back":
                if moment == "cut off":
                    (tmp_path / "go").touch()
                cut.expect("let go" if moment == "cut off" else "interrupted")
            other.plug()
            if moment == "back":
                (tmp_path / "go").touch()
                cut.expect("let go")
            await backend.run_mutation(severed.put, PARCELS, 2 * PARCELS)
            await until(lambda: delivered(backend, 2 * PARCELS))
            assert near.stop() == 0
            await backend.run_mutation(severed.put, 2 * PARCELS, 3 * PARCELS)
            await until(lambda: delivered(backend, 3 * PARCELS))
            assert cut.stop() == 0, "it has gone on"
            numbers = list(range(3 * PARCELS))
            assert await backend.run_query(severed.labels) == (numbers, len(numbers)), "each once, and in order"
            came = told(tmp_path)
            assert list(dict.fromkeys(number for number, _ in came)) == [str(number) for number in numbers]
            assert len({id_ for _, id_ in came}) == len(numbers), "with the same id each time"
            again = {number for number, count in Counter(number for number, _ in came).items() if count > 1}
            under_way = HELD + 1 if holds == "dispatch" else PARCELS  # by the time that it was cut off
            assert again <= {str(number) for number in range(under_way)}


def test_a_machine_that_cannot_be_made_whole_says_why_and_leaves_nothing_behind(other: Machine) -> None:
    number = os.getpid() + 2**22  # which no process has
    taken = Machine(number)
    run("link", "add", f"{taken.cable}a", "type", "veth", "peer", "name", f"{taken.cable}c")
    with pytest.raises(RefusedError, match="link add"), machine(number):
        pytest.fail("Its cable is there already, and is another one's.")
    assert tried("netns", "delete", taken.name), "it is gone"
    assert not tried("netns", "pids", other.name), "the other one is there"
