"""Shares the places of a worker among the pools from which it claims, and their gates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heapreplace

from penstock.jobs.job import Job
from penstock.store.nouns.jobs import Room


def remaining_rooms(rooms: Sequence[Room], taken: Sequence[Job]) -> list[Room]:
    """The rooms that these jobs leave. Jobs that only wait for their on_complete need none."""
    used = Counter(job.pool for job in taken if job.ending is None)
    return [replace(room, room=room.room - used[room.pool], running=room.running + used[room.pool]) for room in rooms]


class Line:
    """Pools that share places: a free place goes to the pool that runs the fewest jobs, ties to the first named.

    Iterating gives the rooms in turn, each with the places it may take now. The caller reports the number that it
    took; unused places go to the others.
    """

    def __init__(self, rooms: Sequence[Room], places: int) -> None:
        self._rooms = [room for room in rooms if room.room > 0]
        self._places = places
        self._taken = 0

    def __iter__(self) -> Iterator[Room]:
        line = self._rooms
        while line and self._places > 0:
            left = []
            for room, part in zip(line, _parts(line, self._places), strict=True):
                if not part:
                    left.append(room)
                    continue
                self._taken = 0
                yield replace(room, room=part)
                if self._taken == part < room.room:
                    left.append(replace(room, room=room.room - part, running=room.running + part))
            line = left

    def took(self, places: int) -> None:
        """The room that was given last has taken so many of its places."""
        self._taken = places
        self._places -= places


def _parts(rooms: Sequence[Room], places: int) -> list[int]:
    """The places that each gets if all have use for them."""
    if len(rooms) == 1 or sum(room.room for room in rooms) <= places:
        return [min(room.room, places) for room in rooms]
    parts, line = [0] * len(rooms), [(room.running, number) for number, room in enumerate(rooms)]
    heapify(line)
    for _ in range(places):
        running, number = line[0]
        parts[number] += 1
        if parts[number] < rooms[number].room:
            heapreplace(line, (running + 1, number))
        else:
            heappop(line)
    return parts


def gates_in_line(rooms: Sequence[Room], waiting: Collection[str], opened: Collection[str]) -> list[list[Room]]:
    """The rooms of pools at whose gates jobs wait: first the ones that were not opened yet at this claim."""
    gated = [room for room in rooms if room.pool in waiting]
    return [[room for room in gated if (room.pool in opened) == again] for again in (False, True)]


class GatesLeftOut:
    """Pools whose gates were not opened at a claim, since jobs that need none had taken all places.

    They come before those jobs at every other claim, and the one that has waited the longest is the first. So neither
    keeps the other from starting, however many of either there are. A gate that lets nothing pass takes no place.
    """

    def __init__(self) -> None:
        self._pools: list[str] = []
        self._closed: set[str] = set()
        self._turn = False

    def first(self, rooms: Sequence[Room], places: int) -> Line:
        """The rooms that come first at this claim: at most half of the places are for them.

        Gates that let nothing pass the last time are tried only up to the number of places.
        """
        self._turn = bool(self._pools) and not self._turn
        half = -(-places // 2) if self._turn else 0
        known = {room.pool: room for room in rooms if half and room.room > 0}
        line = [pool for pool in self._pools if pool in known]
        passed_by = [pool for pool in line if pool in self._closed][half:]
        return Line([known[pool] for pool in line if pool not in passed_by], half)

    def remember(self, waiting: Collection[str], opened: Collection[str], started: Sequence[Job]) -> None:
        """Note the pools with jobs at their gates, the gates that were opened, and the jobs that have started."""
        left_out, pools = [pool for pool in waiting if pool not in opened], {job.pool for job in started}
        self._pools = [pool for pool in self._pools if pool in left_out] + [
            pool for pool in left_out if pool not in self._pools
        ]
        self._closed = {pool for pool in waiting if (pool not in pools if pool in opened else pool in self._closed)}
