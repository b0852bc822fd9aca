"""The token of a link that sends one event to one run: it names both and the time until which it is good.

Owns its spelling and its seal, which the secret of the run makes. Nothing is stored for a token.
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime
from uuid import UUID

from penstock.dataclass import dataclass
from penstock.errors import IdInvalid, TokenInvalid
from penstock.jobs.job import job_id, job_uuid

_LONGEST = 300
_PARTS = 5


@dataclass(frozen=True, slots=True)
class EventToken:
    """A token.

    Attributes:
        run: The run.
        event: The name of the event.
        number: Its number among the tokens of the run.
        until: Seconds since 1970 at which it expires.
        seal: The seal that it bears.
    """

    run: UUID
    event: str
    number: int
    until: int
    seal: str = ""

    def seal_with(self, secret: str) -> str:
        """The text of the token."""
        return f"{self._text}~{self._make_seal(secret)}"

    def is_sealed_with(self, secret: str) -> bool:
        """Whether its seal was made with a secret, in constant time."""
        return bool(secret) and hmac.compare_digest(self.seal, self._make_seal(secret))

    @property
    def expires_at(self) -> datetime:
        """The time at which it expires."""
        return datetime.fromtimestamp(self.until, UTC)

    @property
    def _text(self) -> str:
        return f"{job_id(self.run)}~{self.event}~{self.number}~{self.until}"

    def _make_seal(self, secret: str) -> str:
        return hmac.new(secret.encode(), self._text.encode(), hashlib.sha256).hexdigest()


def read_token(text: object) -> EventToken:
    """Read a token that came from outside.

    Raises:
        TokenInvalid: It is none.
    """
    parts = text.split("~") if isinstance(text, str) and len(text) <= _LONGEST and text.isascii() else []
    if len(parts) != _PARTS or not parts[2].isdecimal() or not parts[3].isdecimal():
        raise make_unknown_token()
    try:
        return EventToken(job_uuid(parts[0]), parts[1], int(parts[2]), int(parts[3]), parts[4])
    except IdInvalid:
        raise make_unknown_token() from None


def make_unknown_token() -> TokenInvalid:
    """One answer for malformed, forged and unknown tokens, so that nobody can tell them apart."""
    return TokenInvalid("There is no such token.", fix="Send the one that ctx.event_token() gave, unchanged.")
