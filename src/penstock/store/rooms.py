"""How the places of a worker are shared by the pools from which it claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
