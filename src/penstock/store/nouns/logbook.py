"""The logbook at rest: numbers of what functions, pools, tasks and outboxes did, by the minute; and log events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any

from penstock.observe.logbook import LEAST_LEVEL, LogEvent, Numbers
from penstock.store.nouns.jobs import ABOVE_ALL
from penstock.store.nouns.noun import Noun

KEPT = timedelta(days=7)
_MOST_NUMBERS, _MOST_EVENTS = 100_000, 50_000  # that are kept
_OF_ONE, _RUNS = 5_000, 20  # events of one function, and its last runs


class StoredLogbook(Noun, queries=("logbook",)):
    """The logbook at rest."""

    async def write(self, now: datetime, numbers: Numbers, events: Sequence[LogEvent]) -> None:
        """Add numbers to those of this minute, and events."""
        rows = [
            {"name": name, "part": part, "number": number}
            for name, found in sorted(numbers.items())  # in one order, so that none wait in a circle
            for part, number in sorted(found.items())
        ]
        logged = [
            {one.name: getattr(event, one.name) for one in fields(event)}
            | {"facts": json.dumps(event.facts, default=str)}
            for event in events
        ]
        async with self._writing() as session:
            await self._fetch_each(session, "add", rows, at=minute_of(now))
            await self._fetch_each(session, "log", logged)

    async def sums(self, since: datetime) -> Numbers:
        """The numbers of all minutes that began at a time or later, added up."""
        found: Numbers = {}
        for name, part, number in await self._look("sums", since=since):
            found.setdefault(name, {})[part] = number
        return found

    async def events(self, limit: int, **where: Any) -> list[LogEvent]:
        """Log events, newest first.

        Args:
            limit: How many.
            **where: They are below an id (`below`), from a `level` on. They match the start of a name (`event`), a part
                of a `function`, and one of some `words`.
        """
        given = {"level": LEAST_LEVEL, "event": "", "function": "", "words": [""], "below": ABOVE_ALL} | where
        rows = await self._look("events", limit=limit, **given)
        return self._read(LogEvent, rows, facts=lambda row: json.loads(row["facts"]))

    async def prune(self, now: datetime, limit: int) -> int:
        """Forget what is too old or too much, of events in one bounded step; how many of these."""
        ((until,),) = await self._look("last_minute", before=now - KEPT, most=_MOST_NUMBERS)
        await self._run("forget_numbers", until=until)
        stale = await self._look("stale", before=now - KEPT, most=_MOST_EVENTS, of_one=_OF_ONE, runs=_RUNS, limit=limit)
        if stale:
            await self._run("forget", id=[self._access.uuid(event_id) for (event_id,) in stale])
        return len(stale)


def minute_of(time: datetime) -> datetime:
    """The beginning of its minute."""
    return time.replace(second=0, microsecond=0)
