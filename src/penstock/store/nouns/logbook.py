"""The logbook at rest: numbers of what functions, pools, tasks and outboxes did, by the minute; and log events."""

from __future__ import annotations

import builtins
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from penstock.observe.logbook import LEAST_LEVEL, Key, LogEvent
from penstock.store.contract.jobs import ABOVE_ALL
from penstock.store.nouns.noun import Noun

Sums = Mapping[tuple[str, str], Mapping[str, float]]  # by kind and name, then by how it went
KEPT = timedelta(days=7)
_MOST_NUMBERS, _MOST_EVENTS, _OF_ONE, _RUNS = (
    100_000,
    50_000,
    5_000,
    20,
)  # that are kept; of one function, and its last runs


class StoredLogbook(Noun, queries=("logbook",)):
    """The logbook at rest."""

    async def write(self, now: datetime, numbers: Mapping[Key, float], events: Sequence[LogEvent]) -> None:
        """Add numbers to those of this minute, and events."""
        minute = now.replace(second=0, microsecond=0)
        rows = [
            {"kind": kind, "name": name, "part": part, "number": number}
            for (kind, name, part), number in sorted(numbers.items())  # in one order, so that none wait in a circle
        ]
        logged = [
            {
                "id": one.id,
                "at": one.at,
                "level": one.level,
                "name": one.name,
                "function": one.function,
                "words": one.words,
                "facts": json.dumps(one.facts, default=str),
            }
            for one in events
        ]
        async with self._writing() as session:
            await self._fetch_each(session, "add", rows, at=minute)
            await self._fetch_each(session, "log", logged)

    async def sums(self, since: datetime) -> Sums:
        """The numbers of all minutes that began at a time or later, added up."""
        found = defaultdict[tuple[str, str], dict[str, float]](dict)
        for kind, name, part, number in await self._look("sums", since=since):
            found[kind, name][part] = number
        return found

    async def list(
        self,
        limit: int,
        *,
        level: int = LEAST_LEVEL,
        event: str = "",
        function: str = "",
        words: Sequence[str] = ("",),
        below: UUID = ABOVE_ALL,
    ) -> builtins.list[LogEvent]:
        """Events, newest first, those below one id.

        Args:
            limit: How many.
            level: The least level.
            event: What their names begin with.
            function: What the name of their function contains.
            words: Of which theirs contain at least one.
            below: Only older ones than the one with this id.
        """
        given = {
            "limit": limit,
            "level": level,
            "event": event,
            "function": function,
            "words": [*words],
            "below": below,
        }
        uuid, time = self._access.uuid, self._access.time
        return [
            LogEvent(uuid(event_id), time(at), found, name, of, said, json.loads(facts))
            for event_id, at, found, name, of, said, facts in await self._look("list", **given)
        ]

    async def prune(self, now: datetime, limit: int) -> int:
        """Forget what is too old or too much, of events in one bounded step; how many of these."""
        ((until,),) = await self._look("last_minute", before=now - KEPT, most=_MOST_NUMBERS)
        await self._run("forget_numbers", until=until)
        stale = await self._look("stale", before=now - KEPT, most=_MOST_EVENTS, of_one=_OF_ONE, runs=_RUNS, limit=limit)
        if stale:
            await self._run("forget", id=[self._access.uuid(event_id) for (event_id,) in stale])
        return len(stale)
