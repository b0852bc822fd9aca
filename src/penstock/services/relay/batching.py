"""How many messages of an outbox are handed over together, and for how long a batch waits to be filled.

Only counts, and looks at the clock. Leaves handing them over to `services/relay/delivery`.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.clock import Clock
from penstock.outbox.outbox import Outbox
from penstock.services.relay.cursor import Item
from penstock.store.contract.outboxes import Identity

_GROUP = 100  # messages that share a transaction
_CALLS = 500  # likewise, where one call takes many
_NEVER = -1e9


class Portions:
    """How many messages of one outbox are handed over together.

    Args:
        outbox: The outbox.
        clock: The time.
        mutation: Whether its handler is one.

    Attributes:
        whole: How many are when all is well.
    """

    def __init__(self, outbox: Outbox, clock: Clock, *, mutation: bool) -> None:
        size = outbox.batch
        self._batch = size or 1
        self._longest = outbox.linger.total_seconds()
        self._clock = clock
        self._once: int | None = None
        self._since = _NEVER
        self._tried: frozenset[Identity] = frozenset()
        if mutation:
            self.whole = _GROUP if size is None else max(size, _CALLS // size * size)
        else:
            self.whole = size or _GROUP * outbox.parallelism

    def now(self) -> int:
        """How many are handed over together now."""
        return min(self._once or self.whole, self.whole)

    def reset(self) -> None:
        """All is well."""
        self._once, self._tried = None, frozenset()

    def fewer(self, most: int, items: Sequence[Item] = ()) -> None:
        """Hand over no more than so many at once; these were, and have waited for others already."""
        self._once = most
        if items and items[0].identity not in self._tried:
            self._tried = frozenset()
        self._tried |= {item.identity for item in items}

    def more(self) -> None:
        """Hand over more together, if fewer were."""
        if self._once is not None:
            self._once = None if self._once >= _GROUP else self._once * 2

    def slow(self, count: int) -> None:
        """So many took long."""
        self._once = max(self._batch, count // 2)

    # ----- waiting for more

    def wait(self, items: Sequence[Item], most: int) -> float:
        """For how long messages still wait for others, if there are none now and `most` may be handed over together."""
        if items[0].identity not in self._tried:
            self._tried = frozenset()
        if not self._longest or len(items) >= min(self._batch, most) or self._tried:
            self._since = _NEVER
            return 0.0
        now = self._clock.monotonic()
        if self._since < 0:
            self._since = now
        if (left := self._since + self._longest - now) <= 0:
            self._since = _NEVER
        return max(0.0, left)

    def waits(self) -> float | None:
        """For how long the batch that waits does so still; None if none does."""
        return None if self._since < 0 else max(0.0, self._since + self._longest - self._clock.monotonic())
