"""Rows of an outbox's table once more: rebuild what its handler has written from all of them, or send some again.

Rebuilding runs the reset and places the outbox at the beginning in one transaction, and keeps relays out meanwhile.
Resending appends each row to the change feed as it is now, in a transaction that keeps it from being changed. So it
comes in order, behind the messages that are still to be delivered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from penstock.api.outbox.declared import DeclaredOutbox
from penstock.calls.call import Arguments, Call
from penstock.calls.handlers.deliveries import ChangeRules
from penstock.calls.lease import Lease
from penstock.calls.run.attempts import Attempts
from penstock.calls.run.ctxkinds import CONTEXTS
from penstock.calls.run.engine import Engine
from penstock.calls.run.runner import FunctionCalls
from penstock.changes.change import CapturedChange
from penstock.changes.interest import ROW
from penstock.dataclass import dataclass
from penstock.errors import ContextError, OutboxNotFound, TryAgain
from penstock.functions.function import AnyFunction
from penstock.observe import points
from penstock.observe.logs import event as log_event
from penstock.outbox.backfill import new_backfill
from penstock.outbox.outbox import MessageCriteria, reader_name
from penstock.reactive.expression import Condition
from penstock.reactive.filtertext import TextFilter
from penstock.reactive.tracing import RowFilter, trace_filter
from penstock.schema.table import TableDefinition
from penstock.store.nouns.outboxes import OutboxRow
from penstock.store.session import Row, Session, writing
from penstock.store.sql.conditions import condition_sql

_AT_ONCE = 500


# ----- rebuild


def reset_of(declared: DeclaredOutbox | None, name: str) -> AnyFunction:
    """The reset of an outbox; `ContextError` if this program does not declare the outbox, or no reset."""
    if declared is None:
        raise ContextError(
            f"Outbox {name} has no declaration in this program, so its handler cannot run.",
            fix="Do it with the program that declares it.",
        )
    if declared.reset is None:
        raise ContextError(
            f"Outbox {name} declares no reset, so there is nothing to rebuild.",
            fix="Move it back to send kept messages again. Only an outbox of a table with a mutation as handler takes "
            "reset=.",
        )
    return declared.reset


async def rebuild(engine: Engine, name: str, reset: AnyFunction) -> None:
    """Run the reset of an outbox, and have it begin with all rows again.

    Meanwhile the outbox is held under a lease: a relay would write to the same rows as the reset. If this process dies,
    relays have it again when the lease expires.
    """
    store = engine.store
    lease = Lease(engine, f"rebuild {name}", _on_lost, fenced=True)
    await lease.keep()
    log_event("outbox.rebuilding", outbox=name, lease=lease.number)
    row: OutboxRow | None = None
    left = new_backfill()

    async def hold() -> None:
        """Before each attempt: a relay may hold it, and another release may have declared it."""
        nonlocal row, left
        while lease.number is None:  # it was lost, and another is about to be taken
            await engine.clock.sleep(lease.due)
        await store.outboxes.hold(name, lease.number)
        row = next((one for one in await store.outboxes.list() if one.plan.name == name), None)
        left = await _all_rows(engine, row)

    async def begin_anew(session: Session) -> None:
        if points.armed:
            await points.reach("outbox.rebuild", outbox=name)
        interests = None if row is None else row.interests
        if not await store.outboxes.place(
            name, None, left, engine.clock.now(), forgets="all", interests=interests, session=session
        ):
            raise OutboxNotFound(f"Outbox {name} was dropped meanwhile.")

    try:
        async with _keep_alive(engine, lease):
            await FunctionCalls(engine, CONTEXTS).mutation(_ResetCall(reset, {}, hold=hold, begin_anew=begin_anew))
    finally:
        if lease.number is not None:
            await store.changes.leave(reader_name(name), lease.number)  # a relay that takes it sees that nobody died
        await lease.give_back()
        store.signals.notify()
    log_event("outbox.rebuilt", logging.WARNING, outbox=name)


@dataclass(slots=True, kw_only=True)  # not frozen: see `Call`
class _ResetCall(Call):
    """The call of a reset: each attempt holds the outbox first, and writes its new place last."""

    hold: Callable[[], Awaitable[None]]
    begin_anew: Callable[[Session], Awaitable[None]]

    async def check(self, *, again: bool = False) -> Arguments:  # noqa: ARG002 - each attempt does the same
        await self.hold()
        return {}

    async def seal(self, session: Session, answer: Any) -> None:  # noqa: ARG002 - a reset has none
        await self.begin_anew(session)


@contextlib.asynccontextmanager
async def _keep_alive(engine: Engine, lease: Lease) -> AsyncIterator[None]:

    async def renew() -> None:
        while True:
            await engine.clock.sleep(lease.due)
            with contextlib.suppress(TryAgain):
                await lease.keep(busy=False)

    keeper = asyncio.create_task(renew())
    try:
        yield
    finally:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)


async def _on_lost(_lease: int, _reason: str) -> None:
    """The next attempt holds the outbox again, under another lease."""


async def _all_rows(engine: Engine, row: OutboxRow | None) -> str:
    """The backfill of all rows, in the order whose changes are captured."""
    if row is None:
        return new_backfill()
    found = (one.interest.order for one in await engine.store.interests.list() if one.id == row.interests[-1])
    return new_backfill(tuple(next(found, ())), row.epoch)


# ----- resend


@dataclass(frozen=True, slots=True)
class Chosen:
    """Rows of a table that meet a condition."""

    definition: TableDefinition
    condition: Condition


def rows_to_send(declared: DeclaredOutbox | None, name: str, where: str | RowFilter[Any]) -> Chosen:
    """The rows of an outbox that are to be sent again."""
    if declared is None:
        raise ContextError(
            f"Outbox {name} has no declaration in this program, so its table is unknown here.",
            fix="Do it with the program that declares it.",
        )
    definition = declared.outbox.definition
    if definition is None or "insert" not in declared.outbox.on:
        raise ContextError(
            f"Outbox {name} does not send inserted rows of a table, so it cannot send rows again.",
            fix="Move it back to send kept messages again.",
        )
    given = TextFilter(definition, where) if isinstance(where, str) else where
    return Chosen(definition, trace_filter(definition, given, "resend: where"))


async def resend(attempts: Attempts, row: OutboxRow, chosen: Chosen) -> int:
    """Append chosen rows to the change feed, some in each transaction; how many."""
    engine, store, number = attempts.engine, attempts.engine.store, row.interests[-1]
    only = condition_sql(chosen.condition, chosen.definition, store.dialect, ROW, own=True)
    source = await store.interests.source(number, only)
    if source is None:
        raise ContextError(f"The table of outbox {row.plan.name} is not there, or not captured.")
    judged = ChangeRules(
        store.dialect, MessageCriteria(condition=None if only.exact else chosen.condition, kinds=("enter",))
    )
    count, more = 0, True
    place: str | None = None

    def is_meant(key: str, columns: str) -> bool:
        return judged.kind(CapturedChange(0, number, "enter", key, None, columns, engine.clock.now())) is not None

    async def append() -> tuple[int, Row | None]:
        page = (source.first, [_AT_ONCE]) if place is None else (source.following, [place, _AT_ONCE])
        async with writing(store.begin_write) as session:
            rows = await session.fetch(*page)
            meant = [(key, after) for key, after, columns, _place in rows if is_meant(key, columns)]
            await store.outboxes.resend(session, number, meant)
        return len(meant), rows[-1] if len(rows) == _AT_ONCE else None

    while more:
        sent, last = await attempts.attempt(append, "Sending rows again")
        count, more, place = count + sent, last is not None, None if last is None else last[3]
    store.signals.notify()
    log_event("outbox.resent", logging.WARNING, outbox=row.plan.name, rows=count)
    return count
