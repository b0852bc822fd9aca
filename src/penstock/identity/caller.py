"""The caller that a function runs for: the system, a user, or somebody unknown."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.identity.identity import Identity

_UNMASKED = 4  # characters, of a subject that has twice as many


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a function runs for.

    Attributes:
        identity: The user; None for the system, and for a caller from outside without a token.
        is_system: Whether it is the program itself: its jobs, crons, commands and Python. No guard applies to it.
        address: The address in the network that the call came from, or empty.
    """

    identity: Identity | None = None
    is_system: bool = False
    address: str = ""

    @property
    def key(self) -> str:
        """A text that is equal for callers who get the same answers."""
        if self.identity is not None:
            return self.identity.key
        return "system" if self.is_system else "anonymous"

    @property
    def masked(self) -> str:
        """Who it is, for administrators: a token identifier with only the end of its subject, which may be a name."""
        if self.identity is None:
            return self.key
        subject = self.identity.subject
        return f"{self.identity.issuer}|…{subject[max(len(subject) - _UNMASKED, (len(subject) + 1) // 2) :]}"


SYSTEM = Caller(is_system=True)
ANONYMOUS = Caller()
