"""A short form of `make chaos`: what is promised holds while one fault after the other strikes."""

from __future__ import annotations

import pytest
from chaos.faults import FAULTS
from chaos.load import Size
from chaos.run import run

BY_NAME = {fault.name: fault for fault in FAULTS}


@pytest.mark.long
@pytest.mark.parametrize(
    ("store", "name"),
    [
        ("sqlite", "one after the other"),
        ("postgres", "one after the other"),
        ("postgres", "fail-over"),
        ("sqlite", "moments of a step"),
        ("postgres", "moments of a step"),
    ],
)
async def test_nothing_is_lost_or_done_twice_under_faults(store: str, name: str) -> None:
    found = await run(store, BY_NAME[name], Size(rows=8, jobs=3), pause=1)
    assert found.is_clean, "\n".join([*found.examples, str(found)])
