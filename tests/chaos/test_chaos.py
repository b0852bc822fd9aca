"""A short form of `make chaos`: what is promised holds while one fault after the other strikes."""

from __future__ import annotations

import pytest
from chaos.faults import FAULTS
from chaos.load import Size
from chaos.outcome import Outcome, _beyond, _count_messages, without_effect
from chaos.run import run

BY_NAME = {fault.name: fault for fault in FAULTS}


@pytest.mark.long
@pytest.mark.parametrize(
    ("store", "name"),
    [("sqlite", "one after the other"), ("postgres", "one after the other"), ("postgres", "fail-over")],
)
async def test_nothing_is_lost_or_done_twice_under_faults(store: str, name: str) -> None:
    found = await run(store, BY_NAME[name], Size(rows=8, jobs=3), pause=1)
    assert found.is_clean, "\n".join([*found.examples, str(found)])


def test_the_count_finds_what_is_wrong() -> None:
    found = Outcome()
    _count_messages(found, "sent", {(0, 0), (0, 1), (0, 2)}, [(0, 1), (0, 0), (0, 1)])
    assert (found.lost, found.out_of_order, found.duplicates) == (1, 1, 1)
    _count_messages(found, "sorted", set(), [(1, 0), (1, 0)], exactly=True)
    assert (found.twice, found.is_clean) == (1, False)
    assert _beyond([(1, 1), (2, -1), (3, 1), (4, 1)], limit=1) == [4]
    assert without_effect("chaos.program:enter", {"what": "delayed", "number": 7}) == {("delayed", 7)}
    assert without_effect("chaos.program:enter_and_pass_on", {"number": 7}) == {("chain", 7), ("chained", 7)}
    assert not without_effect("chaos.program:act", {"what": "action", "number": 7})
