"""The entries of watched queries by their keys, and unwatched entries for clients that come back."""

from __future__ import annotations

import math
from collections.abc import Iterator

from penstock.errors import LimitExceeded
from penstock.live.entry import Answer, Entry, Key

_KEEP = 30.0  # seconds for which an answer that nobody watches is kept
_MOST_KEPT, _MOST_KEPT_BYTES = 1000, 16 * 2**20


class EntryCache:
    """The entries of one process. All times are by the monotonic clock.

    Args:
        most: The number of entries that can be watched.
        most_bytes: The bytes of their answers together.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self.bytes = 0  # those of all answers
        self._most, self._most_bytes = most, most_bytes
        self._entries: dict[Key, Entry] = {}
        self._kept: dict[Entry, float] = {}  # unwatched entries, and until when they are kept
        self._kept_bytes = 0

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_watched(self) -> bool:
        """Whether somebody watches an entry."""
        return len(self._kept) < len(self._entries)

    @property
    def has_room(self) -> bool:
        """Whether another query can be watched; entries that are kept make room for it."""
        watched, size = len(self._entries) - len(self._kept), self.bytes - self._kept_bytes
        return watched < self._most and size < self._most_bytes

    def find(self, key: Key) -> Entry | None:
        """The entry of a key, which is watched from now on."""
        found, fresh = self._entries.get(key), self._entries.get((*key[:3], None))
        if found is None and fresh is not None and fresh.journal == key[3]:
            found = fresh  # it has run once, without one
        if found is not None:
            self._keep_no_more(found)
        return found

    def add(self, entry: Entry, *, beyond: bool = False) -> None:
        """Add an entry, whose key has none yet; `beyond` the limits, if its client watches the query already.

        Raises:
            LimitExceeded: As many are watched as can be.
        """
        if not beyond and not self.has_room:
            raise LimitExceeded(
                f"This process can watch {self._most} different queries, with answers of {self._most_bytes} bytes.",
                fix="Raise max_watched or max_watched_bytes, start more processes, or watch fewer or smaller queries.",
                limit=self._most,
                limit_bytes=self._most_bytes,
            )
        self._entries[entry.key] = entry

    def keep(self, entry: Entry, now: float) -> None:
        """Keep the valid answer of an entry that nobody watches any more."""
        self._kept[entry] = now + _KEEP
        self._kept_bytes += entry.size

    def next_to_drop(self, now: float) -> Entry | None:
        """An entry that was kept for long, or is one too many."""
        full = len(self._kept) > _MOST_KEPT or self._kept_bytes > _MOST_KEPT_BYTES
        full = full or len(self._entries) > self._most or self.bytes > self._most_bytes
        for entry, until in self._kept.items():
            if until <= now or full:
                return entry
            break
        return None

    def next_drop_at(self) -> float:
        """The time at which the next entry is to be dropped."""
        return next(iter(self._kept.values()), math.inf)

    def drop(self, entry: Entry) -> None:
        """Forget an entry, if that was not done before."""
        if self._entries.get(entry.key) is not entry:
            return
        del self._entries[entry.key]
        self.bytes -= entry.size
        self._keep_no_more(entry)

    def take(self, entry: Entry, answer: Answer) -> None:
        """Take the answer of a run. The next run gets its journal."""
        self.bytes += answer.size - entry.size
        entry.answer, entry.journal = answer, answer.journal

    def rename(self, entry: Entry, key: Key) -> None:
        """Have an entry found by another key, and no more by its own."""
        if key != entry.key:
            del self._entries[entry.key]
            entry.key = key if key not in self._entries else (*key[:3], str(id(entry)))
            self._entries[entry.key] = entry

    def _keep_no_more(self, entry: Entry) -> None:
        if self._kept.pop(entry, None) is not None:
            self._kept_bytes -= entry.size
