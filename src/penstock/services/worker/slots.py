"""The slots that a worker holds of pools with a limit: when it takes some, and when it gives them back.

Owns what is known of each pool between two looks. Leaves the limit itself to the store, and how many to take to
`pools/shares`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.clock import Clock
from penstock.pools.shares import Need, change
from penstock.store.contract.jobs import Room
from penstock.store.contract.pools import PoolView
from penstock.store.contract.store import Store

_NEVER = -1e9
_LOOK_EVERY = 0.05
_TURN = 0.25
_IDLE_FOR = 10.0
_YIELDS_FOR = 0.2  # seconds in which those for whom a slot was given back may take it first


@dataclass(slots=True)
class _Held:
    """What a worker knows of one pool: how many slots it holds, and of which limit."""

    number: int = 0
    epoch: int = 0
    wanted: bool = False
    beyond: bool = False  # all workers hold more than the limit, so none of its slots gives room
    since: float = 0.0
    used_at: float = 0.0
    filled_at: float = 0.0
    yielded_at: float = -math.inf
    changes_at: float = math.inf  # when it gives up slots or its wish, if all stays as it is


class Slots:
    """The slots of one worker.

    Args:
        store: Where they are handed out.
        clock: The worker's clock.
        pools: Names of the pools that this program declares.
    """

    def __init__(self, store: Store, clock: Clock, pools: Sequence[str]) -> None:
        self._store = store
        self._clock = clock
        self._held = {pool: _Held() for pool in pools}
        self._looked_at = _NEVER
        self._calm = False
        self._was_full = False
        self._full_since = math.inf

    def forget(self) -> None:
        """The lease is gone, and its slots with it."""
        self._held = {pool: _Held() for pool in self._held}
        self._looked_at = _NEVER

    def held(self) -> dict[str, float]:
        """How many slots of each pool it holds."""
        return {pool: held.number for pool, held in self._held.items()}

    def recount(self) -> None:
        """Slots have gone to jobs that no worker runs: before the next claim they are counted anew."""
        self._looked_at = _NEVER

    @property
    def may_wait(self) -> bool:
        """Whether a claim may come before the next look: at the last one nobody else asked for slots."""
        return not self._held or (self._calm and self._looked_at > _NEVER)

    def rooms(self, places: int, running: Counter[str]) -> list[Room]:
        """For how many more jobs of each pool there is room now.

        Args:
            places: How many more jobs the worker may run.
            running: How many it runs of each pool.
        """
        open_ = ((pool, held) for pool, held in self._held.items() if not held.beyond)
        free = {pool: min(places, held.number - running[pool]) for pool, held in open_}
        return [
            Room(pool, number, self._held[pool].epoch, running[pool]) for pool, number in free.items() if number > 0
        ]

    async def balance(self, lease: int, places: int, running: Counter[str]) -> float:
        """Take slots where jobs wait, and give back those that others want.

        Returns:
            Seconds until it is to be called again, if it has looked or yielded a moment ago; else more than anybody
            waits.
        """
        now = self._clock.monotonic()
        due = self._looked_at + _LOOK_EVERY - now
        if not self._held:
            return math.inf
        if due > 0 and running.total() > 0 and not (places and self._was_full):  # many short jobs end within that time
            return due
        self._looked_at, self._calm, self._was_full = now, True, places == 0  # when it takes no slots
        self._full_since = min(self._full_since, now) if self._was_full else math.inf
        ran = running.total()
        for view in await self._store.pools.look(lease, list(self._held), max(1, places)):
            left = places + ran - running.total()  # what has ended meanwhile leaves a place with its slot
            self._full_since = math.inf if left else self._full_since
            await self._follow(view, lease, left, running[view.pool], now)
        yielded = max(held.yielded_at for held in self._held.values())
        return _YIELDS_FOR if now - yielded < _YIELDS_FOR else self._changes_in(now)

    def _changes_in(self, now: float) -> float:
        """Seconds until slots that are of no use are given to others, or a wish that is of none is given up."""
        return max(_LOOK_EVERY, min(held.changes_at for held in self._held.values()) - now)

    async def _follow(self, view: PoolView, lease: int, places: int, running: int, now: float) -> None:
        held = self._held[view.pool]
        held.number, held.epoch = view.held, view.epoch
        if running or view.waiting:
            held.used_at = now
        need = self._need(view, places, running, now)
        if not need.unused:
            held.filled_at = now
        self._calm &= not (view.wanted or view.lacking) and view.held > 0
        count = change(need)
        held.beyond = view.granted + min(count, 0) > view.max_parallelism
        if count > 0:
            held.number = await self._store.pools.acquire(lease, view.pool, count)
            held.wanted = held.number < view.held + count
            held.since = now
            if held.wanted and not view.wanted:
                self._store.signals.notify()  # those who hold them look, and see that they are wanted
        elif count < 0 or (held.wanted and (need.full or not view.waiting)):
            held.number = await self._store.pools.release(lease, view.pool, -count)
            held.wanted = False
            if count < 0 and (view.wanted or view.lacking):
                held.yielded_at = now
                self._store.signals.notify()
        lends = held.filled_at + _TURN if need.unused and need.lacking else math.inf
        yields = held.wanted or (need.unused and need.wanted)
        held.changes_at = min(lends, self._full_since + _TURN if yields and not need.full else math.inf)

    def _need(self, view: PoolView, places: int, running: int, now: float) -> Need:
        """What it knows of one pool."""
        held = self._held[view.pool]
        return Need(
            limit=view.max_parallelism,
            granted=view.granted,
            held=view.held,
            running=running,
            holders=view.holders,
            wanted=view.wanted,
            waiting=view.waiting,
            places=places,
            rested=now - held.since >= _TURN,
            idle=now - held.used_at >= _IDLE_FOR,
            vacant=view.free,
            wished=held.wanted,
            yielded=now - held.yielded_at < _YIELDS_FOR,
            lacking=view.lacking,
            spare=now - held.filled_at >= _TURN,
            full=now - self._full_since >= _TURN,
        )
