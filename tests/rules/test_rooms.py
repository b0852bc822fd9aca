"""How the places of a worker are shared by pools, and how those with a gate get theirs."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.store.contract import Room
from penstock.store.rooms import GatesLeftOut, shared_rooms


@given(st.lists(st.integers(0, 20), max_size=6), st.integers(0, 40))
def test_places_are_shared_evenly_and_none_is_wasted(numbers: list[int], places: int) -> None:
    rooms = [Room(f"p{number}", room, 1) for number, room in enumerate(numbers)]
    shared = {room.pool: room.room for room in shared_rooms(rooms, places)}
    assert sum(shared.values()) == min(places, sum(numbers))
    for room in rooms:
        part = shared.get(room.pool, 0)
        assert part <= room.room
        if part < room.room:
            assert all(other <= part + 1 for other in shared.values())


@given(st.integers(1, 4), st.integers(1, 3))
def test_neither_gates_nor_other_jobs_starve_however_many_there_are(pools: int, places: int) -> None:
    """Jobs that need no gate would fill all places at each claim, and at each gate jobs wait."""
    left_out, started = GatesLeftOut(), Counter[str]()
    rooms = [Room(f"p{number}", 5, 1) for number in range(pools)]
    names = [room.pool for room in rooms]
    for _ in range(20 * pools):
        first = left_out.first(rooms, places)
        for room in first:
            started[room.pool] += room.room
        taken = sum(room.room for room in first)
        assert taken <= -(-places // 2)
        started["others"] += places - taken
        left_out.remember(names, [room.pool for room in first])
    assert min(started[name] for name in names) >= 5
    assert started["others"] >= 10 * pools
