"""Has the tables of a program captured for live queries when it starts, and drops what no process needs any more."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from penstock.changes.interest import Interest
from penstock.errors import ConfigError, DatabaseBusy, DeclarationError
from penstock.live.capture import live_interest
from penstock.observe.logs import event as log_event
from penstock.schema.table import TableDefinition
from penstock.store.nouns.captures import identity_of
from penstock.store.nouns.interests import InterestRow
from penstock.store.store import Store


async def declare_live(
    store: Store, definitions: Collection[TableDefinition], now: datetime, kept: Collection[tuple[str, str]] = ()
) -> None:
    """Have live tables captured on demand. Other programs declare those in `kept`, by name and digest.

    Queries of tables are polled that cannot be captured, as they are views, are locked by others, or belong to others.
    """
    interests = [live_interest(one) for one in definitions if one.live]
    rows = await store.interests.list()
    captured = {identity_of(row.interest) for row in rows if row.state == "ok"}
    if missing := [one for one in interests if identity_of(one) not in captured]:
        await _declare(store, missing, now)
    tables, declared = {one.name for one in definitions}, {*map(identity_of, interests), *kept}
    live = [row for row in rows if row.interest.on_demand and row.interest.table in tables]
    await _drop(store, [row for row in live if identity_of(row.interest) not in declared])


async def _declare(store: Store, interests: Sequence[Interest], now: datetime) -> None:
    """Have interests captured: together, as that is quicker; each by itself, if one cannot be."""
    try:
        await store.interests.declare(interests, now)
    except (ConfigError, DatabaseBusy, DeclarationError) as error:
        if len(interests) == 1:
            log_event("live.polled", table=interests[0].table, reason=error)
            return
        for one in interests:
            await _declare(store, [one], now)


async def _drop(store: Store, rows: Iterable[InterestRow]) -> None:
    """Drop the interests of other releases. The next start drops the ones that their processes demand now."""
    numbers = [row.id for row in rows]
    needed = await store.changes.list_demanded(numbers) if numbers else set()
    try:
        await store.interests.drop([number for number in numbers if number not in needed])
    except DatabaseBusy as error:
        log_event("live.not_dropped", reason=error)
