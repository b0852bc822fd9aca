"""What verbs about tokens take and give (`store.nouns.tokens`).

A job that an outside system is to complete is under the lease `OUTSIDE`, which never ends, and so is its slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from penstock.jobs.token import Told

OUTSIDE = 0
TOKEN_KEPT = timedelta(days=1)  # the time for which the outcome of a token is kept


@dataclass(frozen=True, slots=True)
class Redeemed:
    """The outcome of redeeming a token.

    Attributes:
        accepted: Whether the job has been settled by it.
        told: The outcome that counts: the first one, or that its time or its attempt is over.
    """

    accepted: bool
    told: Told
