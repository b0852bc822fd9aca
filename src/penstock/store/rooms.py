"""How the places of a worker are shared by the pools from which it claims, and by their gates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from penstock.jobs.job import Job
from penstock.store.contract import Room


def left_rooms(rooms: Sequence[Room], taken: Sequence[Job]) -> list[Room]:
    """The rooms that are left beside these jobs. Those that only wait for their on_complete need none."""
    used = Counter(job.pool for job in taken if job.ending is None)
    return [replace(room, room=room.room - used[room.pool]) for room in rooms]


def shared_rooms(rooms: Sequence[Room], places: int) -> list[Room]:
    """The rooms that there are when pools share so many places evenly; those that have none are left out."""
    found: list[Room] = []
    line = sorted((room for room in rooms if room.room > 0), key=lambda room: room.room)
    for number, room in enumerate(line):
        part = min(room.room, -(-places // (len(line) - number)))
        places -= part
        found += [replace(room, room=part)] if part else []
    return found


def gates_in_line(rooms: Sequence[Room], waiting: Collection[str], opened: Collection[str]) -> list[list[Room]]:
    """The rooms of pools at whose gates jobs wait: first those that were not opened yet at this claim."""
    gated = [room for room in rooms if room.pool in waiting]
    return [[room for room in gated if (room.pool in opened) == again] for again in (False, True)]


class GatesLeftOut:
    """Pools whose gates were not opened at a claim, since jobs that need none had taken all places.

    They come before those jobs at every other claim, and the one that has waited the longest is the first: so neither
    keeps the other from starting, however many of either there are.
    """

    def __init__(self) -> None:
        self._pools: list[str] = []
        self._turn = False

    def first(self, rooms: Sequence[Room], places: int) -> list[Room]:
        """The rooms that come first at this claim: at most half of the places are for them."""
        self._turn = bool(self._pools) and not self._turn
        if not self._turn:
            return []
        half = -(-places // 2)
        known = {room.pool: room for room in rooms if room.room > 0}
        return shared_rooms([known[pool] for pool in self._pools if pool in known][:half], half)

    def remember(self, waiting: Collection[str], opened: Collection[str]) -> None:
        """Jobs wait at the gates of some pools, of which some were opened."""
        left_out = [pool for pool in waiting if pool not in opened]
        self._pools = [pool for pool in self._pools if pool in left_out] + [
            pool for pool in left_out if pool not in self._pools
        ]
