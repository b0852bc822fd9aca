"""The entries of watched queries by their keys, and for clients that come back those that nobody watches."""

from __future__ import annotations

import math
from collections.abc import Iterator

from penstock.live.entry import Entry, Key

_KEEP = 30.0  # seconds for which an answer that nobody watches is kept
_MOST_KEPT, _MOST_KEPT_BYTES = 1000, 16 * 2**20


class EntryCache:
    """The entries of one process. All times are by the monotonic clock."""

    def __init__(self) -> None:
        self._entries: dict[Key, Entry] = {}
        self._kept: dict[Entry, float] = {}  # those that nobody watches, and until when they are kept
        self._kept_bytes = 0

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_watched(self) -> bool:
        """Whether somebody watches an entry."""
        return len(self._kept) < len(self._entries)

    def find(self, key: Key) -> Entry | None:
        """The entry of a key, which is watched from now on."""
        found, fresh = self._entries.get(key), self._entries.get((*key[:2], None))
        if found is None and fresh is not None and fresh.journal == key[2]:
            found = fresh  # it has run once, without one
        if found is not None:
            self._keep_no_more(found)
        return found

    def add(self, entry: Entry) -> None:
        """Add an entry, whose key has none yet."""
        self._entries[entry.key] = entry

    def keep(self, entry: Entry, now: float) -> None:
        """Keep the valid answer of an entry that nobody watches any more."""
        self._kept[entry] = now + _KEEP
        self._kept_bytes += entry.size

    def next_to_drop(self, now: float) -> Entry | None:
        """An entry that was kept for long, or is one too many."""
        for entry, until in self._kept.items():
            if until <= now or len(self._kept) > _MOST_KEPT or self._kept_bytes > _MOST_KEPT_BYTES:
                return entry
            break
        return None

    def next_drop_at(self) -> float:
        """The time at which the next entry is to be dropped."""
        return next(iter(self._kept.values()), math.inf)

    def drop(self, entry: Entry) -> None:
        """Forget an entry."""
        del self._entries[entry.key]
        self._keep_no_more(entry)

    def keep_pages(self, entry: Entry, journal: str | None) -> None:
        """Note the journal of a run for the next one. The entry's key has the one that it was given."""
        key: Key = (*entry.key[:2], entry.journal)
        if key != entry.key:
            del self._entries[entry.key]
            entry.key = key if key not in self._entries else (*key[:2], str(id(entry)))
            self._entries[entry.key] = entry
        entry.journal = journal

    def _keep_no_more(self, entry: Entry) -> None:
        if self._kept.pop(entry, None) is not None:
            self._kept_bytes -= entry.size
