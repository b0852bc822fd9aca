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
SLOW_KEPT = timedelta(days=1)  # the slowest runs
HALF_HOUR = timedelta(minutes=30)
_BY_MINUTE = timedelta(minutes=90)  # for which numbers are kept by the minute
_MOST_NUMBERS, _MOST_HALF_HOURS, _MOST_EVENTS = 100_000, 300_000, 50_000  # that are kept
_MOVED_AT_ONCE = 4  # half hours
_TOTALS = {"function": "calls", "pool": "jobs"}
_OF_ONE, _RUNS = 5_000, 20  # events of one function; and of its runs the last, the last failed and the slowest ones


class StoredLogbook(Noun, queries=("logbook",)):
    """The logbook at rest."""

    async def write(self, now: datetime, numbers: Numbers, events: Sequence[LogEvent]) -> None:
        """Add numbers to those of this minute, with the totals of all functions and of all pools; and events."""
        logged = [
            {one.name: getattr(event, one.name) for one in fields(event)}
            | {"facts": json.dumps(event.facts, default=str)}
            for event in events
        ]
        async with self._writing() as session:
            await self._fetch_each(session, "add", _rows(numbers | _totals(numbers)), at=minute_of(now))
            await self._fetch_each(session, "log", logged)

    async def is_sampled(self, now: datetime) -> bool:
        """Whether a process has added samples in this minute."""
        ((is_sampled,),) = await self._look("is_sampled", at=minute_of(now))
        return bool(is_sampled)

    async def sample(self, now: datetime, numbers: Numbers) -> None:
        """Add samples to the numbers of this minute."""
        await self._run_each("add", _rows(numbers), at=minute_of(now))

    async def series(self, name: str, since: datetime, step: timedelta) -> list[dict[str, float]]:
        """The numbers of one name since a time, as many as there were in each step until now.

        Args:
            name: Such as ``pool mail``; ``calls`` for all functions, and ``jobs`` for all pools.
            since: The beginning of the first step.
            step: At least `HALF_HOUR` if `since` lies more than 90 minutes back.
        """
        found: list[dict[str, float]] = []
        for at, part, number in await self._look("series", name=name, since=since):
            place = (self._access.time(at) - since) // step
            found += [{} for _ in range(place + 1 - len(found))]
            found[place][part] = found[place].get(part, 0.0) + number
        return found

    async def sums(self, since: datetime) -> Numbers:
        """The numbers of all minutes and half hours that began at a time or later, added up."""
        found: Numbers = {}
        for name, part, number in await self._look("sums", since=since):
            found.setdefault(name, {})[part] = number
        return found

    async def events(self, limit: int, **where: Any) -> list[LogEvent]:
        """Log events, newest first.

        Args:
            limit: How many.
            **where: They are below an id (`below`), from a `level` on. They match the start of a name (`event`), a part
                of a `function`, one of some `words`, and a `text` in the error or the message.
        """
        given: dict[str, Any] = {"level": LEAST_LEVEL, "event": "", "function": "", "words": [""], "below": ABOVE_ALL}
        given |= {"text": "", **where}
        given["spelled"] = json.dumps(given["text"])[1:-1]  # as JSON has it, so that few are decoded
        rows = await self._look("events", limit=limit, **given)
        return self._read(LogEvent, rows, facts=lambda row: json.loads(row["facts"]))

    async def prune(self, now: datetime, limit: int) -> int:
        """Forget what is too old or too much, of events in one bounded step; how many of these."""
        ((minute, half_hour),) = await self._look("excess", most=_MOST_NUMBERS, most_half_hours=_MOST_HALF_HOURS)
        minute, half_hour = (None if one is None else self._access.time(one) for one in (minute, half_hour))
        await self._move_minutes(max(now - _BY_MINUTE, minute + timedelta(minutes=1) if minute else now - KEPT))
        await self._run("forget_numbers", until=max(now - KEPT, half_hour or now - KEPT))
        most = {"most": _MOST_EVENTS, "of_one": _OF_ONE, "runs": _RUNS, "limit": limit}
        stale = await self._look("stale", before=now - KEPT, slow_before=now - SLOW_KEPT, **most)
        if stale:
            await self._run("forget", id=[self._access.uuid(event_id) for (event_id,) in stale])
        return len(stale)

    async def _move_minutes(self, before: datetime) -> None:
        """Add the numbers of minutes before a time to those of their half hours, the oldest first."""
        for _ in range(_MOVED_AT_ONCE):
            oldest = await self._look("oldest_minute")
            if not oldest or (at := self._access.time(oldest[0][0])) >= before:
                return
            since = half_hour_of(at)
            await self._run("move", since=since, until=min(since + HALF_HOUR, before))


def _rows(numbers: Numbers) -> list[dict[str, Any]]:
    return [
        {"name": name, "part": part, "number": number}
        for name, found in sorted(numbers.items())  # in one order, so that none wait in a circle
        for part, number in sorted(found.items())
    ]


def _totals(numbers: Numbers) -> Numbers:
    found: Numbers = {}
    for name, parts in numbers.items():
        if (total := _TOTALS.get(name.partition(" ")[0])) is not None:
            into = found.setdefault(total, {})
            for part, number in parts.items():
                into[part] = into.get(part, 0.0) + number
    return found


def half_hour_of(time: datetime) -> datetime:
    """The beginning of its half hour."""
    return minute_of(time).replace(minute=time.minute // 30 * 30)


def minute_of(time: datetime) -> datetime:
    """The beginning of its minute."""
    return time.replace(second=0, microsecond=0)
