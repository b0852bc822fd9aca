"""Has the tables of a program captured for live queries when it starts, and drops what no process needs any more."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from penstock.errors import DatabaseBusy, DeclarationError
from penstock.live.capture import live_interest
from penstock.observe.logs import event as log_event
from penstock.schema.table import TableDefinition
from penstock.store.contract.changes import InterestRow
from penstock.store.contract.store import Store
from penstock.store.rows.interests import identity_of


async def declare_live(store: Store, definitions: Iterable[TableDefinition], now: datetime) -> None:
    """Have live tables captured on demand.

    Queries of tables that cannot be captured, such as views, or that others hold locks on, are polled.
    """
    wanted = {one.name: live_interest(one) if one.live else None for one in definitions}
    interests = [one for one in wanted.values() if one is not None]
    rows = await store.interests.list()
    captured = {identity_of(row.interest) for row in rows if row.state == "ok"}
    for one in interests:
        if identity_of(one) not in captured:
            try:
                await store.interests.declare([one], now)
            except (DeclarationError, DatabaseBusy) as error:
                log_event("live.polled", table=one.table, reason=error)
    left = {identity_of(one) for one in interests}
    await _drop(store, [row for row in rows if _is_live(row, wanted) and identity_of(row.interest) not in left])


def _is_live(row: InterestRow, tables: Iterable[str]) -> bool:
    return row.interest.on_demand and row.interest.table in tables


async def _drop(store: Store, rows: Iterable[InterestRow]) -> None:
    """Drop interests of another release, unless one of its processes demands them: then the next start does."""
    numbers = [row.id for row in rows]
    needed = await store.changes.demanded(numbers) if numbers else set()
    try:
        await store.interests.drop([number for number in numbers if number not in needed])
    except DatabaseBusy as error:
        log_event("live.not_dropped", reason=error)
