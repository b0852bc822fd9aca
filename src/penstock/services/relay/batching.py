"""The size of an outbox's batches, and the time for which a batch lingers to be filled."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.clock import Clock
from penstock.outbox.outbox import Outbox
from penstock.services.relay.cursor import Item
from penstock.store.nouns.outboxes import Identity

_GROUP = 100  # messages that share a transaction
_CALLS = 500  # likewise, where one call takes many
_NEVER = -1e9


class Batching:
    """The number of messages of one outbox that are delivered together: `whole`, or fewer for a while."""

    def __init__(self, outbox: Outbox, clock: Clock, *, in_transaction: bool) -> None:
        size = outbox.batch
        self._batch = size or 1
        self._linger = outbox.linger.total_seconds()
        self._clock = clock
        self._limit: int | None = None
        self._since = _NEVER
        self._tried: frozenset[Identity] = frozenset()
        self.careful = 0  # so many more are delivered alone, as a process has died, maybe of one of them
        if in_transaction:
            self.whole = _GROUP if size is None else max(size, _CALLS // size * size)
        else:
            self.whole = size or _GROUP * outbox.parallelism

    def now(self) -> int:
        return 1 if self.careful else min(self._limit or self.whole, self.whole)

    def reset(self) -> None:
        self._limit, self._tried = None, frozenset()

    def fewer(self, most: int, items: Sequence[Item] = ()) -> None:
        """Deliver at most this many at once; these were tried, and do not linger again."""
        self._limit = most
        if items and items[0].identity not in self._tried:
            self._tried = frozenset()
        self._tried |= {item.identity for item in items}

    def more(self) -> None:
        if self._limit is not None:
            self._limit = None if self._limit >= _GROUP else self._limit * 2

    # ----- waiting for more

    def linger(self, items: Sequence[Item], most: int) -> float:
        """The time for which messages wait for others, if there are none now and `most` may be delivered together."""
        if items[0].identity not in self._tried:
            self._tried = frozenset()
        if not self._linger or len(items) >= min(self._batch, most) or self._tried:
            self._since = _NEVER
            return 0.0
        now = self._clock.monotonic()
        if self._since < 0:
            self._since = now
        if (left := self._since + self._linger - now) <= 0:
            self._since = _NEVER
        return max(0.0, left)

    def lingers(self) -> float | None:
        """The time for which the present batch still lingers; None if none does."""
        return None if self._since < 0 else max(0.0, self._since + self._linger - self._clock.monotonic())
