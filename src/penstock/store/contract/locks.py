"""What verbs about locks take and give (`store.nouns.locks`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

LOCK_KEPT = timedelta(hours=1)  # for how long one that has run out can be seen, if nobody takes it over


@dataclass(frozen=True, slots=True)
class LockRow:
    """A lock that is held, or has run out and was not given back.

    Attributes:
        key: What is locked.
        fence: The number of its holder; it rises from one to the next, also over all keys, and none is given twice.
        attempt: Who asked for it: a number of the caller's own.
        holder: What its holder calls itself, for people.
        taken_at: Since when it is held.
        expires_at: When it runs out, unless it is renewed.
        wanted: Whether somebody waits for it.
    """

    key: str
    fence: int
    attempt: UUID
    holder: str
    taken_at: datetime
    expires_at: datetime
    wanted: bool
