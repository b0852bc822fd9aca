"""How the places of a worker are shared by pools, and how those with a gate get theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from penstock.store.contract import Room
from penstock.store.rooms import GatesLeftOut, Line

POOLS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5), st.integers(0, 20)), max_size=6)


@given(POOLS, st.integers(0, 40))
def test_each_place_goes_to_the_pool_that_runs_the_least_of_those_that_have_jobs(
    pools: list[tuple[int, int, int]], places: int
) -> None:
    rooms = [Room(f"p{number}", room, 1, running) for number, (room, running, _) in enumerate(pools)]
    ready = {room.pool: min(room.room, jobs) for room, (_, _, jobs) in zip(rooms, pools, strict=True)}
    line, taken, given = Line(rooms, places), Counter[str](), Counter[str]()
    for room in line:
        count = min(room.room, ready[room.pool] - taken[room.pool])
        taken[room.pool] += count
        given[room.pool] += room.room
        line.took(count)
    assert taken == Counter(one_by_one(rooms, ready, places))
    assert all(given[room.pool] <= room.room for room in rooms)


def one_by_one(rooms: list[Room], ready: dict[str, int], places: int) -> Iterator[str]:
    """The pools to which the places go, as the rule says it."""
    taken = Counter[str]()
    for _ in range(places):
        left = [room for room in rooms if taken[room.pool] < ready[room.pool]]
        if left:
            pool = min(left, key=lambda room: room.running + taken[room.pool]).pool
            taken[pool] += 1
            yield pool


@given(st.integers(1, 4), st.integers(1, 3))
def test_neither_gates_nor_other_jobs_starve_however_many_there_are(pools: int, places: int) -> None:
    """Jobs that need no gate would fill all places at each claim, and at each gate jobs wait."""
    left_out, started = GatesLeftOut(), Counter[str]()
    rooms = [Room(f"p{number}", 5, 1) for number in range(pools)]
    names = [room.pool for room in rooms]
    for _ in range(20 * pools):
        line, first = left_out.first(rooms, places), Counter[str]()
        for room in line:
            first[room.pool] += room.room
            line.took(room.room)
        started += first
        taken = first.total()
        assert taken <= -(-places // 2)
        started["others"] += places - taken
        left_out.remember(names, first)
    assert min(started[name] for name in names) >= 5
    assert started["others"] >= 10 * pools
