"""The slots of pools that a worker holds: takes some when jobs wait, and gives them back when others want them.

Leaves the limit to the store, and the number of slots to `pools/shares`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from penstock.clock import Clock
from penstock.dataclass import dataclass
from penstock.pools.shares import Need, change
from penstock.store.nouns.jobs import Room
from penstock.store.nouns.pools import PoolView
from penstock.store.store import Store

_NEVER = -1e9
_LOOK_EVERY = 0.05
_TURN = 0.25
_IDLE_FOR = 10.0
_YIELDS_FOR = 0.2  # seconds in which other workers may first take a slot that was given back for them


@dataclass(slots=True)
class _Held:
    """The slots of one pool, and the worker's facts about it between two looks."""

    number: int = 0
    epoch: int = 0
    wanted: bool = False
    beyond: bool = False  # all workers together hold more than the limit, so this one claims nothing
    since: float = 0.0
    used_at: float = 0.0
    filled_at: float = 0.0
    yielded_at: float = -math.inf
    changes_at: float = math.inf  # when it gives up slots or its wish, if nothing else changes


class Slots:
    """The slots of one worker."""

    def __init__(self, store: Store, clock: Clock, pools: Sequence[str]) -> None:
        self._store = store
        self._clock = clock
        self._held = {pool: _Held() for pool in pools}
        self._looked_at = _NEVER
        self._calm = False
        self._was_full = False
        self._full_since = math.inf

    def forget(self) -> None:
        """Forget all slots: they went with the lease."""
        self._held = {pool: _Held() for pool in self._held}
        self._looked_at = _NEVER

    def numbers(self) -> dict[str, float]:
        return {pool: held.number for pool, held in self._held.items()}

    def recount(self) -> None:
        """Count the slots again before the next claim, as some have gone with jobs that no worker runs."""
        self._looked_at = _NEVER

    @property
    def may_wait(self) -> bool:
        """Whether a claim may come before the next look, since nobody else asked for slots at the last one."""
        return not self._held or (self._calm and self._looked_at > _NEVER)

    def rooms(self, places: int, running: Counter[str]) -> list[Room]:
        return [
            Room(pool, number, held.epoch, running[pool])
            for pool, held in self._held.items()
            if not held.beyond and (number := min(places, held.number - running[pool])) > 0
        ]

    async def balance(self, lease: int, places: int, running: Counter[str], *, draining: bool = False) -> float:
        """Take slots where jobs wait, and give back slots that others want; seconds until the next call.

        A worker that is `draining`, as its last claim found all that it asked for, is as busy as one that runs jobs:
        short ones have ended before it looks.
        """
        now = self._clock.monotonic()
        due = self._looked_at + _LOOK_EVERY - now
        if not self._held:
            return math.inf
        is_busy = draining or running.total() > 0
        if due > 0 and is_busy and not (places and self._was_full):  # many short jobs end within that time
            return due
        self._looked_at, self._calm, self._was_full = now, True, places == 0
        self._full_since = min(self._full_since, now) if self._was_full else math.inf
        ran = running.total()
        for view in await self._store.pools.look(lease, list(self._held), max(1, places)):
            left = places + ran - running.total()  # a job that ended meanwhile left its place and slot
            self._full_since = math.inf if left else self._full_since
            await self._follow(view, lease, left, running[view.pool], now)
        if now - max(held.yielded_at for held in self._held.values()) < _YIELDS_FOR:
            return _YIELDS_FOR
        return max(_LOOK_EVERY, min(held.changes_at for held in self._held.values()) - now)

    async def _follow(self, view: PoolView, lease: int, places: int, running: int, now: float) -> None:
        held = self._held[view.pool]
        held.number, held.epoch = view.held, view.epoch
        if running or view.waiting:
            held.used_at = now
        need = self._need(view, places, running, now)
        if not need.slots_without_job:
            held.filled_at = now
        self._calm &= not (view.wanted or view.lacking) and view.held > 0
        count = change(need)
        held.beyond = view.granted + min(count, 0) > view.max_parallelism
        if count > 0:
            held.number = await self._store.pools.acquire(lease, view.pool, count)
            held.wanted = held.number < view.held + count
            held.since = now
            if held.wanted and not view.wanted:
                self._store.signals.notify()  # so that other workers give some back
        elif count < 0 or (held.wanted and (need.full or not view.waiting)):
            held.number = await self._store.pools.release(lease, view.pool, -count)
            held.wanted = False
            if count < 0 and (view.wanted or view.lacking):
                held.yielded_at = now
                self._store.signals.notify()
        lends = held.filled_at + _TURN if need.slots_without_job and need.lacking else math.inf
        yields = held.wanted or (need.slots_without_job and need.wanted)
        held.changes_at = min(lends, self._full_since + _TURN if yields and not need.full else math.inf)

    def _need(self, view: PoolView, places: int, running: int, now: float) -> Need:
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
