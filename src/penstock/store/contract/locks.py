"""What verbs about locks take and give (`store.nouns.locks`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

LOCK_KEPT = timedelta(hours=1)  # the time for which an expired one can be seen, if nobody takes it over


@dataclass(frozen=True, slots=True)
class LockRow:
    """A lock that is held, or has run out and was not given back."""

    key: str
    fence: int  # the number of its holder; it rises from one to the next, also over all keys, and none is given twice
    attempt: UUID  # the caller's own number of the request
    holder: str  # the name of its holder, for people
    taken_at: datetime  # the time at which it was taken
    expires_at: datetime  # the time at which it expires, unless it is renewed
    wanted: bool  # whether somebody waits for it
