"""Decides how many slots of a pool a worker takes or gives back. Decides only: the store sees to the limit."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Need:
    """The facts about one pool that a worker knows."""

    limit: int  # how many slots there are
    granted: int  # how many of them all workers hold together
    held: int  # how many this worker holds
    running: int  # how many of those jobs occupy
    holders: int  # how many workers hold slots or want some, this one included
    wanted: int  # how many slots others want and do not have
    waiting: int  # how many jobs may start
    places: int  # how many more jobs this worker could run, whatever their pool
    rested: bool  # whether it has held its slots for a while: who shares a single slot with others has it for some time
    idle: bool  # whether nothing was waiting for a while
    vacant: int  # how many slots can be taken now
    wished: bool  # whether its wish for more is known
    yielded: bool  # whether it gave some back a moment ago, for others to take first
    lacking: int = 0  # how many slots the other pools of its group want and do not have
    spare: bool = False  # whether it has had more slots than it could use for a while
    full: bool = False  # whether it has had no place free for a while, whatever the pool

    @property
    def slots_without_job(self) -> int:
        """How many of its slots it has no job for."""
        return max(0, max(0, self.held - self.running) - min(self.waiting, self.places))


@dataclass(frozen=True, slots=True)
class Member:
    name: str  # its name
    limit: int  # how many slots it has of its own
    granted: int  # how many slots of it workers hold; more than its own while it borrows
    wanted: int  # how many more they want


def lend(members: Sequence[Member], name: str) -> int:
    """The limit of a pool of a group, with slots lent by the others.

    Its own slots are its own whenever they are free. It borrows slots that nobody else wants; a paused pool gets none.
    """
    (pool,) = (member for member in members if member.name == name)
    if not pool.limit:
        return 0  # it is paused, and starts nothing with the slots of others either
    free = sum(member.limit - member.granted for member in members)
    owed = sum(
        min(member.wanted, max(0, member.limit - member.granted)) for member in members if member.name != pool.name
    )
    own = min(pool.limit, pool.granted + max(0, free))
    return max(own, pool.granted + free - owed)


def change(need: Need) -> int:
    """How many slots to take, or, below zero, to give back."""
    free = max(0, need.held - need.running)
    if need.granted > need.limit:
        return -min(free, need.granted - need.limit)
    if not need.limit:
        return 0
    share = _share(need)
    if need.wanted and free > 0 and need.held > share and (share or need.rested):
        return -min(free, need.held - share, need.wanted)
    useful = min(need.waiting, need.places) - free
    if need.wanted:
        useful = min(useful, max(share, 1) - need.held)
    if useful > 0:
        patient = (need.wished and not need.vacant) or (need.yielded and need.wanted)
        return 0 if patient else useful
    if need.idle:
        return -free
    return -min(need.slots_without_job, need.lacking) if need.spare else 0


def _share(need: Need) -> int:
    """This worker's part, while others want some too."""
    if need.full and need.wanted:
        return 0  # it could not use a slot that is free
    return need.limit // max(1, need.holders) if need.wanted else need.limit
