"""The token with which an outside system completes a job: it names the attempt, and holds a secret.

Owns its spelling. Only its hash is stored, so a reader of the database can end no job.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Literal
from uuid import UUID

from penstock.dataclass import dataclass
from penstock.errors import IdInvalid, TokenInvalid
from penstock.jobs.job import job_id, job_uuid

Told = Literal["success", "failed", "canceled", "expired"]

_LONGEST = 200
_TOKEN = re.compile(r"([a-z0-9_]+)\.([1-9][0-9]{0,8})\.([A-Za-z0-9_-]+)")


@dataclass(frozen=True, slots=True)
class Token:
    """A token as it is stored; the hash is of the whole text."""

    job_id: UUID  # the job that it ends
    attempt: int  # the attempt that it was made for
    hash: str  # of the whole text

    def fits(self, stored: str) -> bool:
        """Compare with a stored hash, in constant time."""
        return hmac.compare_digest(self.hash, stored)


def token_text(job: UUID, attempt: int, secret: str) -> str:
    return f"{job_id(job)}.{attempt}.{secret}"


def token_of(text: object) -> Token:
    """A token that came from outside."""
    found = _TOKEN.fullmatch(text) if isinstance(text, str) and len(text) <= _LONGEST else None
    if found is None:
        raise not_known()
    try:
        job = job_uuid(found[1])
    except IdInvalid:
        raise not_known() from None
    return Token(job, int(found[2]), hashlib.sha256(found[0].encode()).hexdigest())


def not_known() -> TokenInvalid:
    """One answer for malformed and unknown tokens, so that nobody can tell them apart."""
    return TokenInvalid("There is no such token.", fix="Send the one that ctx.work.complete_later() gave, unchanged.")
