"""How many slots a worker takes or gives back, its share where others want some, and the rates of a pool."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import App, DeclarationError
from penstock.pools.report import Tally
from penstock.pools.shares import Member, Need, change, lend

ALONE = Need(
    limit=10, granted=0, held=0, running=0, holders=1, wanted=0, waiting=0, places=100, rested=False, idle=False,
    vacant=10, wished=False, yielded=False,
)  # fmt: skip

FULL: dict[str, int | bool] = {
    "held": 5, "granted": 9, "running": 2, "holders": 2, "wanted": 0, "waiting": 9, "places": 0, "full": True,
    "rested": True,
}  # fmt: skip
TOLD: list[tuple[str, dict[str, int | bool], int]] = [
    ("nothing waits", {}, 0),
    ("no more than it has places for", {"waiting": 50, "places": 7}, 7),
    ("only what its free slots are not enough for", {"waiting": 5, "held": 4, "granted": 4, "running": 2}, 3),
    ("it keeps free slots for a while", {"held": 4, "granted": 4}, 0),
    ("and then gives them back", {"held": 4, "granted": 4, "running": 1, "idle": True}, -3),
    ("a paused pool", {"limit": 0, "waiting": 9}, 0),
    ("a lowered limit", {"limit": 3, "held": 5, "granted": 8, "running": 2, "waiting": 9}, -3),
    ("lowered, and all its slots in use", {"limit": 3, "held": 5, "granted": 8, "running": 5, "waiting": 9}, 0),
    ("others want some", {"held": 10, "granted": 10, "running": 7, "holders": 2, "wanted": 9, "waiting": 9}, -3),
    ("it has its share already", {"held": 5, "granted": 10, "holders": 2, "wanted": 9, "waiting": 9}, 0),
    ("it takes no more than its share", {"held": 2, "granted": 2, "holders": 2, "wanted": 9, "waiting": 99}, 3),
    ("one slot, just taken", {"limit": 1, "held": 1, "granted": 1, "holders": 2, "wanted": 1, "waiting": 9}, 0),
    (
        "one slot, held for a while",
        {"limit": 1, "held": 1, "granted": 1, "holders": 2, "wanted": 1, "waiting": 9, "rested": True},
        -1,
    ),
    ("all in use, and its wish is known", {"granted": 10, "waiting": 9, "vacant": 0, "wished": True}, 0),
    ("all in use by others of its group", {"waiting": 9, "vacant": 0}, 9),
    ("one that it gave back for others", {"limit": 1, "holders": 2, "wanted": 1, "waiting": 9, "yielded": True}, 0),
    ("other pools lack some", {"held": 9, "granted": 9, "running": 2, "waiting": 3, "lacking": 3, "spare": True}, -3),
    ("spare for a moment only", {"held": 9, "granted": 9, "running": 2, "lacking": 9}, 0),
    ("spare, and nobody lacks any", {"held": 9, "granted": 9, "running": 2, "spare": True}, 0),
    ("no place for a while, and others want some", {**FULL, "wanted": 9}, -3),
    ("no place for a moment", {**FULL, "wanted": 9, "full": False, "rested": False}, 0),
    (
        "no place, and other pools lack some",
        {**FULL, "granted": 5, "holders": 1, "lacking": 2, "spare": True, "rested": False},
        -2,
    ),
]


@pytest.mark.parametrize(("facts", "expected"), [facts[1:] for facts in TOLD], ids=[facts[0] for facts in TOLD])
def test_what_a_worker_does(facts: dict[str, int | bool], expected: int) -> None:
    assert change(replace(ALONE, **facts)) == expected  # type: ignore[arg-type]


COUNT = st.integers(0, 30)


@given(
    st.builds(
        Need,
        limit=COUNT, granted=COUNT, held=COUNT, running=COUNT, holders=COUNT, wanted=COUNT, waiting=COUNT, places=COUNT,
        rested=st.booleans(), idle=st.booleans(), vacant=COUNT, wished=st.booleans(), yielded=st.booleans(),
        lacking=COUNT, spare=st.booleans(), full=st.booleans(),
    )
)  # fmt: skip
def test_it_never_gives_back_what_is_in_use_nor_takes_what_it_has_no_use_for(need: Need) -> None:
    count = change(need)
    free = max(0, need.held - need.running)
    assert -free <= count <= min(need.waiting, need.places)
    if need.granted > need.limit or not need.limit:
        assert count <= 0, "beyond the limit nothing is taken"


# ----- pools that lend

GROUP = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=4).map(
    lambda rows: [Member(f"p{number}", *row) for number, row in enumerate(rows)]
)


@given(GROUP, st.data())
def test_a_group_never_has_more_than_its_pools_together(members: list[Member], data: st.DataObject) -> None:
    """Whoever takes as much as is lend, in whatever order, and whatever was taken before."""
    most = max(sum(member.limit for member in members), sum(member.granted for member in members))
    for _ in range(6):
        place = data.draw(st.integers(0, len(members) - 1))
        one = members[place]
        limit = lend(members, one.name)
        asked = data.draw(st.integers(0, 12))
        given_slots = max(0, min(asked, limit - one.granted))
        members[place] = replace(one, granted=one.granted + given_slots, wanted=asked - given_slots)
        assert sum(member.granted for member in members) <= most


@given(GROUP)
def test_what_is_owed_comes_back(members: list[Member]) -> None:
    """Borrowers give back, one slot after another as their jobs end, until each pool that wants its own has them."""
    kept = [replace(member, granted=min(member.granted, member.limit)) for member in members]
    free = sum(member.limit - member.granted for member in kept)
    borrower = replace(kept[0], granted=kept[0].granted + (free if kept[0].limit else 0), wanted=0)
    group = [borrower, *kept[1:]]
    for _ in range(100):
        for place, member in enumerate(group):
            limit = max(member.limit, lend(group, member.name)) if member.limit else 0
            if member.granted > limit:
                group[place] = replace(member, granted=member.granted - 1)
            elif member.wanted and lend(group, member.name) > member.granted:
                group[place] = replace(member, granted=member.granted + 1, wanted=member.wanted - 1)
    for member in group[1:]:
        assert not member.wanted or member.granted >= member.limit, group


def test_what_a_group_lends() -> None:
    idle, busy = Member("idle", 4, 0, 0), Member("busy", 4, 4, 0)
    assert lend([idle, busy], "busy") == 8
    assert lend([replace(idle, wanted=3), busy], "busy") == 5, "not what the other wants itself"
    assert lend([idle, replace(busy, granted=8)], "idle") == 0, "all is lent"
    assert lend([replace(idle, wanted=2), replace(busy, granted=8)], "busy") == 6, "two are owed"
    assert lend([replace(idle, limit=0), busy], "idle") == 0, "a paused pool does not start with the slots of others"
    assert lend([replace(idle, limit=0), busy], "busy") == 4, "and lends none"


def test_rates_count_attempts_and_jobs() -> None:
    tally = Tally()
    for status in ("success", "success", "success", "failed", "retrying", "retrying", "canceled"):
        tally.add(status)
    assert (tally.completed, tally.succeeded, tally.failed, tally.retries, tally.canceled) == (7, 3, 1, 2, 1)
    assert tally.failure_rate() == 0.4286, "3 of 7 attempts"
    assert tally.permanent_failure_rate() == 0.2, "1 of 5 jobs that have ended for good"


def test_where_nothing_has_ended_there_is_no_rate() -> None:
    assert (Tally().failure_rate(), Tally().permanent_failure_rate()) == (None, None)
    assert (Tally(retries=2).failure_rate(), Tally(retries=2).permanent_failure_rate()) == (1.0, None)


def test_a_level_that_does_not_exist_is_refused() -> None:
    with pytest.raises(DeclarationError, match=r"log_level must be one of debug, info, report, warning, error, not 'I"):
        App().workpool("p", log_level="INFO")  # type: ignore[arg-type]  # wrong on purpose
