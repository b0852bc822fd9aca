"""How the places of a worker are shared by pools, and how those with a gate get theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from penstock.jobs.job import NO_OPTIONS, Ending, Job
from penstock.jobs.states import JobState
from penstock.store.nouns.jobs import Room
from penstock.store.placement import GatesLeftOut, Line, remaining_rooms

NOW = datetime(2026, 1, 1, tzinfo=UTC)
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


def test_rooms_are_smaller_by_what_was_taken_and_run_so_much_more() -> None:
    taken = [job_of("a"), job_of("a"), job_of("b"), replace(job_of("b"), ending=Ending(JobState.SUCCESS, NOW))]
    rooms = [Room("a", 5, 1, running=1), Room("b", 2, 1), Room("c", 3, None, running=4)]
    assert remaining_rooms(rooms, taken) == [Room("a", 3, 1, running=3), Room("b", 1, 1, running=1), rooms[2]]


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 12))
def test_neither_gates_nor_other_jobs_starve_however_many_there_are(pools: int, places: int, closed: int) -> None:
    """Jobs that need no gate would fill all places at each claim, and at each gate jobs wait; some let none pass."""
    left_out, started = GatesLeftOut(), Counter[str]()
    names, half = [f"p{number}" for number in range(pools)], -(-places // 2)
    shut = [f"closed-{number}" for number in range(closed)]
    rooms = [Room(pool, 5, 1) for pool in [*shut, *names]]
    for number in range(20 * pools):
        line, first, tried = left_out.first(rooms, places), Counter[str](), Counter[str]()
        for room in line:
            tried[room.pool] += 1
            count = 0 if room.pool in shut else room.room
            first[room.pool] += count
            line.took(count)
        started += first
        taken = first.total()
        assert taken <= half
        assert number < 2 or sum(tried[pool] for pool in shut) <= half, "those that gave nothing are tried in turn"
        started["others"] += places - taken
        left_out.remember([*shut, *names], tried, [job_of(pool) for pool in first.elements()])
    assert min(started[name] for name in names) >= 5
    assert started["others"] >= 10 * pools
    assert sum(started[name] for name in names) == 10 * pools * half, "no closed gate has taken a place"


def test_a_gate_that_let_nothing_pass_is_tried_again_in_its_turn() -> None:
    left_out, rooms, tried = GatesLeftOut(), [Room(f"p{number}", 5, 1) for number in range(4)], Counter[str]()
    for _ in range(24):
        line, now = left_out.first(rooms, 1), list[str]()
        for room in line:
            now.append(room.pool)
            line.took(0)
        tried.update(now)
        left_out.remember([room.pool for room in rooms], now, [])
    assert set(tried) == {room.pool for room in rooms}
    assert max(tried.values()) - min(tried.values()) <= 1


def job_of(pool: str) -> Job:
    return Job(UUID(int=1), "f", "action", "{}", NOW, pool, 0, NO_OPTIONS, None, None, 1, NOW, NOW)
