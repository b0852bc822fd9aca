"""What verbs about tokens take and give (`store.nouns.tokens`).

A job that an outside system is to complete is under the lease `OUTSIDE`, which never ends, and so is its slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from penstock.jobs.token import Told

OUTSIDE = 0
TOKEN_KEPT = timedelta(days=1)  # for how long it is known what came of a token


@dataclass(frozen=True, slots=True)
class Redeemed:
    """What came of bringing a token.

    Attributes:
        accepted: Whether the job has been settled by it.
        told: What counts: what was told first, or that its time or its attempt is over.
    """

    accepted: bool
    told: Told
