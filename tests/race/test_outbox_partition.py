"""A relay on a machine that is cut off from the database in the middle of a message, and comes back."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from programs import severed
from programs.severed import HELD
from stage.faults import serving
from stage.needs import INSISTS, LONG
from stage.outboxes import outbox_row
from stage.postgres import Machine, machine, refusal, server
from stage.processes import Process
from stage.waits import until

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


@pytest.mark.parametrize(
    "case", ["label, cut off", "dispatch, back", *(["label, interrupted", "label, back"] if LONG else [])]
)
async def test_a_relay_that_is_cut_off_in_the_middle_of_a_message_is_followed_and_does_nothing_more(
    other: Machine, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler is interrupted; or will not be, and ends while it is cut off, or when it is back."""
    holds, moment = case.split(", ")
    for name, value in {"FOLDER": str(tmp_path), "HOLDS": "", "STUBBORN": ""}.items():
        monkeypatch.setenv(f"SEVERED_{name}", value)
    with server() as own, ExitStack() as stack:
        away = await own.listen(other.here, guests=other.there)

        def relay(url: str, **more: Any) -> Process:
            return serving("programs.severed:app", "relay", url, stack, lease=LEASE, statement_timeout=2.0, **more)

        async with severed.app.open(own.url) as backend:

            async def put(last: int) -> None:
                """Write parcels up to a number, and wait until both outboxes have come so far."""
                await backend.run_mutation(severed.put, place, last)
                await until(lambda: are_delivered(last))

            async def are_delivered(count: int) -> bool:
                return all([(await outbox_row(backend, name)).delivered >= count for name in ("label", "dispatch")])

            place = 0
            with monkeypatch.context() as patch:
                patch.setenv("SEVERED_HOLDS", holds)
                patch.setenv("SEVERED_STUBBORN", "" if moment == "interrupted" else "yes")
                cut = relay(away, within=other.command)
            await put(1)
            near, place = relay(own.url), 1
            await backend.run_mutation(severed.put, 1, PARCELS)
            cut.expect("held")
            other.unplug()
            await until(lambda: are_delivered(PARCELS))  # though the other one had locked what it writes
            if moment != "back":
                if moment == "cut off":
                    (tmp_path / "go").touch()
                cut.expect("let go" if moment == "cut off" else "interrupted")
            other.plug()
            if moment == "back":
                (tmp_path / "go").touch()
                cut.expect("let go")
            place = PARCELS
            await put(2 * PARCELS)
            assert near.stop() == 0
            place = 2 * PARCELS
            await put(3 * PARCELS)
            assert cut.stop() == 0, "it has gone on"
            numbers = list(range(3 * PARCELS))
            assert await backend.run_query(severed.labels) == (numbers, len(numbers)), "each once, and in order"
    came = [line.split() for line in (tmp_path / "outside").read_text().splitlines()]
    assert list(dict.fromkeys(number for number, _ in came)) == [str(number) for number in numbers]
    assert len({id_ for _, id_ in came}) == len(numbers), "with the same id each time"
    again = {number for number, count in Counter(number for number, _ in came).items() if count > 1}
    under_way = HELD + 1 if holds == "dispatch" else PARCELS  # by the time that it was cut off
    assert again <= {str(number) for number in range(under_way)}
