"""The audit log: who has done what by hand, and how it ended."""

from __future__ import annotations

import builtins
import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from penstock.dataclass import dataclass
from penstock.store.nouns.jobs import ABOVE_ALL
from penstock.store.nouns.noun import Noun

_KEPT = timedelta(days=400)  # more than a year, as auditors ask for


@dataclass(frozen=True, slots=True)
class AuditRow:
    """Something that somebody has done."""

    id: UUID  # its id; those of later acts are greater
    at: datetime  # when it began
    who: str  # who did it: the name of an API key or of a user, and the issuer
    role: str  # the role in which they did it
    act: str  # what it was
    about: Mapping[str, Any]  # the words that say of what
    outcome: str | None  # what they were told; None if its process ended before it did


class Audit(Noun, queries=("audit",)):
    """The audit log. Each verb is a transaction of its own."""

    async def begin(self, act_id: UUID, now: datetime, who: str, role: str, act: str, about: Mapping[str, Any]) -> None:
        """Record that somebody is about to do something."""
        said = self._access.encryption.encrypt(json.dumps(dict(about), default=str))
        values = {"now": now, "who": who, "role": role, "act": act, "about": said, "kept_until": now + _KEPT}
        await self._run("begin", id=act_id, **values)

    async def end(self, act_id: UUID, outcome: str) -> None:
        """Record how it ended."""
        await self._run("end", id=act_id, outcome=outcome)

    async def list(
        self, limit: int, below: UUID = ABOVE_ALL, who: str | None = None, act: str | None = None
    ) -> builtins.list[AuditRow]:
        """Acts, newest first, those below one id; only those whose `who` and `act` contain these texts."""
        rows = await self._look("list", limit=limit, below=below, who=who, act=act)
        reveal = self._access.encryption.reveal
        return self._read(AuditRow, rows, about=lambda row: json.loads(reveal(row["about"])))
