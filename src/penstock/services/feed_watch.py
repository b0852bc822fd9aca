"""Watches the change feed for the pruner: logs readers that are behind, and repairs interests that do not capture.

It also logs tasks and outboxes without an interest, which it cannot repair. Each fault is logged once. `changes/lag`
decides which readers are behind.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping

from penstock.changes.lag import ReaderLag, SentAlert, is_news, lag_alert, retries_at
from penstock.clock import Clock
from penstock.errors import DatabaseBusy, DataError, DeclarationError, PenstockError
from penstock.observe.logs import event as log_event
from penstock.outbox.outbox import outbox_read, reader_name
from penstock.reactive.task import interest_name
from penstock.store.nouns.captures import State
from penstock.store.nouns.changes import FeedSeen, see_feed
from penstock.store.nouns.interests import InterestRow
from penstock.store.store import Store

MOST = 1_000
_PAUSE = 60.0
_DEAF_LOOKS = 2
_FIXES: dict[State, str] = {
    "held": "Run penstock release with the name of its table, once its schema is changed.",
    "missing": "Find out who dropped its triggers, or added a partition; penstock makes them again.",
    "disabled": "Find out who switched its triggers off; penstock makes them again.",
    "altered": "Declare it in a form that fits the table.",
    "gone": "Make the table again, or declare it no more.",
}


class FeedWatch:
    """Watches readers and interests."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._told: dict[str, SentAlert] = {}
        self._states: dict[int, tuple[State, int]] = {}
        self._deaf: dict[str, int] = {}
        self.broken: Mapping[str, float] = {}  # how many interests did not capture at the last look, by state

    async def look(self) -> float:
        await self._look_at_interests()
        feed = await see_feed(self._store.changes, MOST)
        for _row, reader in feed.readers:
            self._check_reader(reader, feed)
        for name in self._told.keys() - {reader.name for _row, reader in feed.readers}:
            del self._told[name]
        return _PAUSE

    # ----- readers

    def _check_reader(self, reader: ReaderLag, feed: FeedSeen) -> None:
        now = self._clock.now()
        found, told = lag_alert(reader, feed.size, now), self._told.get(reader.name)
        if found is None:
            if self._told.pop(reader.name, None) is not None:
                log_event("changes.reader_caught_up", reader=reader.name)
        elif is_news(found, told, now):
            self._told[reader.name] = SentAlert(found, now)
            outbox = outbox_read(reader.name)
            drop = f"changes drop {reader.name}" if outbox is None else f"outbox drop {outbox}"
            log_event(
                "changes.reader_behind",
                logging.ERROR if found.full else logging.WARNING,
                reader=reader.name,
                stopped=found.stopped,
                rows=reader.rows,
                seconds=round(reader.age(now).total_seconds()),
                moved_at=reader.moved_at,
                bytes=feed.size,
                fix=f"Start its reader, or drop it: penstock {drop}",
            )

    # ----- interests

    async def _look_at_interests(self) -> None:
        rows = await self._store.interests.list()
        broken: Counter[str] = Counter()
        states: dict[int, tuple[State, int]] = {}
        for row in rows:
            if row.state == "ok":
                continue
            known, looks = self._states.get(row.id, (None, 0))
            looks = looks + 1 if known == row.state else 0
            if not await self._mend(row, looks):
                states[row.id] = (row.state, looks)
                broken[row.state] += 1
        self._states, self.broken = states, dict(broken)
        await self._look_for_deaf({row.id for row in rows})

    async def _look_for_deaf(self, interests: Collection[int]) -> None:
        """Log tasks and outboxes without an interest, at the second look, as one may be declared just now."""
        tasks = [interest_name(row.plan.name) for row in await self._store.tasks.list() if row.interest is None]
        outboxes = [
            reader_name(row.plan.name)
            for row in await self._store.outboxes.list()
            if row.ready and not any(number in interests or number < 0 for number in row.interests)  # < 0 is a topic
        ]
        self._deaf = {name: self._deaf.get(name, 0) + 1 for name in (*tasks, *outboxes)}
        for name, looks in self._deaf.items():
            if looks == _DEAF_LOOKS:
                fix = "Start a program that declares it. A task looks at all rows then; an outbox misses what changed."
                log_event("changes.no_interest", logging.ERROR, reader=name, fix=fix)

    async def _mend(self, row: InterestRow, looks: int) -> bool:
        """Let an interest capture again if possible; whether it does. A fault is logged once, and so is its end."""
        if row.state == "gone" and row.interest.on_demand:  # nobody has declared more than the table
            await self._store.interests.drop([row.id])
            return True
        error: PenstockError | None = None
        mended, told_at = False, 0
        if row.state == "held":
            told_at = 1  # perhaps its schema is being changed just now
        elif row.state != "gone" and retries_at(looks):
            try:
                mended = await self._store.interests.mend(row.id)
            except (DeclarationError, DataError) as refused:
                error = refused
            except DatabaseBusy as refused:
                error, told_at = refused, 1  # perhaps it is being declared just now
            else:
                if not mended:  # another process has, or has dropped it
                    return True
        if mended or looks == told_at:
            log_event(
                "changes.interest_broken",
                logging.ERROR,
                interest=row.interest.name,
                table=row.interest.table,
                state=row.state,
                mended=mended,
                **({} if error is None else {"error": error}),
                fix=_FIXES[row.state],
            )
        return mended
