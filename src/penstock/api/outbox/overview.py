"""Reads the status of outboxes, and the messages that they cannot deliver; `api/outbox/views` makes values of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from penstock.api.outbox.views import (
    Found,
    MessageState,
    OutboxMessage,
    OutboxPage,
    OutboxStatus,
    aside_message,
    failing_message,
    status_of,
)
from penstock.changes.change import CapturedChange
from penstock.changes.position import Position
from penstock.errors import OutboxNotFound
from penstock.functions.function import find_named
from penstock.outbox.backfill import BEFORE_ALL
from penstock.outbox.outbox import reader_name
from penstock.outbox.trouble import Trouble
from penstock.store.contract.changes import Lag, ReaderRow
from penstock.store.contract.outboxes import Aside, AsideCount, AsideState, OutboxRow
from penstock.store.contract.store import Store

MOST_COUNTED = 100_000
_AT_ONCE = 2000
_ASIDE_AT_ONCE = 50
_LARGEST_PAGE = 8 * 2**20  # bytes, about: a message has up to some MiB
_ASIDE: tuple[AsideState, ...] = ("waiting", "halted", "parked")


async def outbox_of(store: Store, name: str) -> OutboxRow:
    """An outbox by its name, with or without its module; `OutboxNotFound` if the database knows none."""
    found = find_named(await store.outboxes.list(), name, lambda row: row.plan.name)
    if found is None:
        raise OutboxNotFound(
            f"The database knows no outbox {name!r}.",
            fix="Start the program that declares it once; see penstock outbox.",
        )
    return found


async def look_at(
    store: Store,
    rows: Sequence[OutboxRow],
    now: datetime,
    is_declared: Callable[[str], bool],
    most: int = MOST_COUNTED,
) -> list[OutboxStatus]:
    """The status of some outboxes, with up to `most` messages of each counted."""
    readers = {one.name: one for one in await store.changes.readers()}
    leases = await _leases(store)
    aside: dict[int, dict[AsideState, AsideCount]] = {}
    for one in await store.outboxes.backlog(most):
        aside.setdefault(one.outbox, {})[one.state] = one
    found = []
    for row in rows:
        reader = readers.get(reader_name(row.plan.name))
        fails = "halted" in aside.get(row.id, {})
        found.append(
            Found(
                row=row,
                position=None if reader is None else str(reader.position),
                lag=await lag_of(store, row, reader, most),
                aside=aside.get(row.id, {}),
                next_is=await _next_aside(store, row),
                retry_at=await store.outboxes.next_retry(row.id) if fails else None,
                read_by=None if reader is None or reader.lease is None else leases.get(reader.lease),
                declared=is_declared(row.plan.name),
            )
        )
    return [status_of(one, now) for one in found]


async def look_at_one(
    store: Store, name: str, now: datetime, is_declared: Callable[[str], bool]
) -> tuple[OutboxStatus, list[OutboxMessage]]:
    """The status of one outbox, and the message that blocks it, or its key, if there is one."""
    row = await outbox_of(store, name)
    (status,) = await look_at(store, [row], now, is_declared)
    return status, (await messages_of(store, row, ("failing", "halted"), 1, None)).messages


async def lag_of(store: Store, row: OutboxRow, reader: ReaderRow | None, most: int) -> Lag:
    """The unread changes of an outbox; none if it has no reader."""
    return Lag(0, None) if reader is None else await store.changes.lag(reader.position, most, row.interests)


async def messages_of(
    store: Store, row: OutboxRow, states: Sequence[MessageState], limit: int, after: int | None
) -> OutboxPage:
    """Messages of an outbox that have failed, or wait for one that has; fewer than `limit` if they are large."""
    found: list[OutboxMessage] = []
    trouble, size = row.trouble, 0
    if after is None and trouble is not None and trouble.seq and "failing" in states:
        found.append(failing_message(row.plan.name, trouble, await _change(store, row, trouble)))
    wanted = [state for state in _ASIDE if state in states]
    following, more = BEFORE_ALL if after is None else after, bool(wanted)
    while more and len(found) < limit and size < _LARGEST_PAGE:
        at_once = min(limit - len(found), _ASIDE_AT_ONCE)
        put = await store.outboxes.aside(row.id, wanted, at_once, following)
        found += [aside_message(row.plan.name, one) for one in put if not _is_next(one, trouble)]
        size += sum(map(_size, put))
        following, more = put[-1].change.seq if put else following, len(put) == at_once
    return OutboxPage(found, following if more else None)


def _size(one: Aside) -> int:
    """The approximate size in bytes of the part of a message that is shown."""
    texts = (one.change.before, one.change.after, None if one.trouble is None else one.trouble.traceback)
    return sum(len(text) for text in texts if text is not None)


async def _change(store: Store, row: OutboxRow, trouble: Trouble) -> CapturedChange | None:
    """The next message, which has failed; None if it is gone."""
    if (put := await _next_aside(store, row)) is not None:
        return put.change
    if trouble.seq < 0:
        return await _older(store, row, trouble)
    reader = next((one for one in await store.changes.readers() if one.name == reader_name(row.plan.name)), None)
    if reader is None:
        return None
    position: Position = reader.position
    batch = await store.changes.read(position, _AT_ONCE, row.interests)
    return next((one for one in batch.changes if one.seq == trouble.seq), None)


async def _next_aside(store: Store, row: OutboxRow) -> Aside | None:
    """The next message, which has failed, if it was set aside before."""
    if row.trouble is None or not row.trouble.seq:
        return None
    put = await store.outboxes.aside(row.id, _ASIDE, 1, row.trouble.seq - 1)
    return next((one for one in put if _is_next(one, row.trouble)), None)


def _is_next(one: Aside, trouble: Trouble | None) -> bool:
    """Whether a message that was set aside is the next one; it stays there until it is delivered."""
    return trouble is not None and one.state != "parked" and trouble.is_of(one.change)


async def _older(store: Store, row: OutboxRow, trouble: Trouble) -> CapturedChange | None:
    """A row that is older than its outbox, as it is now."""
    source = await store.interests.source(row.interests[-1])
    if source is None or trouble.key is None:
        return None
    session = await store.begin_read()
    try:
        rows = await session.fetch(source.among, [f"[{trouble.key}]"])
    finally:
        await session.rollback()
    return next(
        (CapturedChange(trouble.seq, row.interests[-1], "enter", key, None, after, trouble.since)
         for key, after, _before in rows),
        None,
    )  # fmt: skip


async def _leases(store: Store) -> dict[int, str]:
    session = await store.begin_read()
    try:
        return {one.lease: one.worker for one in await store.leases.list(session)}
    finally:
        await session.rollback()
