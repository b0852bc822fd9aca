"""Sessions of the dashboard at rest. What they say is encrypted, and read by the dashboard only."""

from __future__ import annotations

from datetime import datetime

from penstock.store.nouns.noun import Noun


class DashboardSessions(Noun, queries=("dashboard_sessions",)):
    """Sessions of the dashboard at rest. Each verb is a transaction of its own."""

    async def create(self, session_id: str, content: str, expires_at: datetime) -> None:
        """Keep a session."""
        await self._run("create", id=session_id, content=content, expires_at=expires_at)

    async def find(self, session_id: str, now: datetime, *, last: bool = False) -> str | None:
        """The content of a session, if it has not expired. The `last` time it is forgotten, and one caller gets it."""
        rows = await (self._run if last else self._look)("take" if last else "find", id=session_id, now=now)
        return None if not rows or rows[0]["content"] is None else str(rows[0]["content"])
