"""What verbs about keys of jobs and rate limits take and give (`store.nouns`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from penstock.pools.rates import RateLimit, RateState


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """The job that has a key."""

    job_id: UUID
    until_start: bool  # whether it has the key only until it starts
    # the time it was enqueued, if it may be replaced, since it is pending and was never tried
    enqueued_at: datetime | None
    canceled: bool = False  # whether it is to be canceled and has not started, so that its key is about to be free


@dataclass(frozen=True, slots=True)
class RateRow:
    """The token count of a rate limit."""

    name: str
    key: str
    policy: RateLimit
    state: RateState
