"""How many slots a worker takes or gives back: as many as it has use for, and its share where others want some."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pools.shares import Need, change

ALONE = Need(
    limit=10, granted=0, held=0, running=0, holders=1, wanted=0, waiting=0, places=100, rested=False, idle=False
)

TOLD: list[tuple[str, dict[str, int | bool], int]] = [
    ("nothing waits", {}, 0),
    ("as many as wait", {"waiting": 3}, 3),
    ("no more than it has places for", {"waiting": 50, "places": 7}, 7),
    ("only what its free slots are not enough for", {"waiting": 5, "held": 4, "granted": 4, "running": 2}, 3),
    ("its free slots are enough", {"waiting": 2, "held": 4, "granted": 4}, 0),
    ("it keeps free slots for a while", {"held": 4, "granted": 4}, 0),
    ("and then gives them back", {"held": 4, "granted": 4, "running": 1, "idle": True}, -3),
    ("a paused pool", {"limit": 0, "waiting": 9}, 0),
    ("paused with free slots", {"limit": 0, "held": 4, "granted": 4, "running": 1}, -3),
    ("a lowered limit", {"limit": 3, "held": 5, "granted": 8, "running": 2, "waiting": 9}, -3),
    ("lowered by less", {"limit": 7, "held": 5, "granted": 8, "running": 2, "waiting": 9}, -1),
    ("lowered, and all its slots in use", {"limit": 3, "held": 5, "granted": 8, "running": 5, "waiting": 9}, 0),
    ("others want some", {"held": 10, "granted": 10, "running": 7, "holders": 2, "wanted": 9, "waiting": 9}, -3),
    ("no more than they want", {"held": 10, "granted": 10, "holders": 2, "wanted": 2, "waiting": 9}, -2),
    ("it has its share already", {"held": 5, "granted": 10, "holders": 2, "wanted": 9, "waiting": 9}, 0),
    ("it takes no more than its share", {"held": 2, "granted": 2, "holders": 2, "wanted": 9, "waiting": 99}, 3),
    ("one slot, just taken", {"limit": 1, "held": 1, "granted": 1, "holders": 2, "wanted": 1, "waiting": 9}, 0),
    (
        "one slot, held for a while",
        {"limit": 1, "held": 1, "granted": 1, "holders": 2, "wanted": 1, "waiting": 9, "rested": True},
        -1,
    ),
    ("one slot that is free", {"limit": 1, "holders": 3, "wanted": 2, "waiting": 9}, 1),
]


@pytest.mark.parametrize(("facts", "expected"), [facts[1:] for facts in TOLD], ids=[facts[0] for facts in TOLD])
def test_what_a_worker_does(facts: dict[str, int | bool], expected: int) -> None:
    assert change(replace(ALONE, **facts)) == expected  # type: ignore[arg-type]


COUNT = st.integers(0, 30)


@given(
    st.builds(
        Need,
        limit=COUNT, granted=COUNT, held=COUNT, running=COUNT, holders=COUNT, wanted=COUNT, waiting=COUNT, places=COUNT,
        rested=st.booleans(), idle=st.booleans(),
    )
)  # fmt: skip
def test_it_never_gives_back_what_is_in_use_nor_takes_what_it_has_no_use_for(need: Need) -> None:
    count = change(need)
    free = max(0, need.held - need.running)
    assert -free <= count <= min(need.waiting, need.places)
    if need.granted > need.limit or not need.limit:
        assert count <= 0, "beyond the limit nothing is taken"
