"""What a store promises of sessions of the dashboard: they are found until they expire, and taken once."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from conformance.bench import NOW, Bench, Suite, story


class DashboardSessions(Suite):
    """`store.nouns.DashboardSessions`."""

    @story
    async def test_a_session_is_found_until_it_expires_and_taken_once(self, bench: Bench) -> None:
        sessions, until = bench.store.dashboard_sessions, NOW + timedelta(hours=1)
        for name in ("a", "b", "c"):
            await sessions.create(name, f"content {name}", until)
        assert (await sessions.find("a", NOW), await sessions.find("x", NOW)) == ("content a", None)
        assert (await sessions.find("a", until), await sessions.find("a", until, last=True)) == (None, None)
        taken = await asyncio.gather(*(sessions.find("b", NOW, last=True) for _ in range(5)))
        assert sorted(map(str, taken)) == ["None"] * 4 + ["content b"]
        assert await sessions.find("b", NOW) is None
        assert (await sessions.prune(NOW, 10), await sessions.prune(until, 10), await sessions.prune(until, 10)) == (
            0,
            1,
            0,
        )
