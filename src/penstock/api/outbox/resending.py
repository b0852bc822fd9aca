"""Sending rows of an outbox again: each is appended to the change feed as it is now, as if it was written just then.

So it comes in order, whatever the outbox has still to hand over. Owns which rows are meant, and that each is appended
in a transaction that keeps it from being changed meanwhile.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from penstock.api.outbox.declared import DeclaredOutbox
from penstock.calls.handlers.deliveries import ChangeRules
from penstock.calls.run.attempts import Attempts
from penstock.calls.run.engine import Engine
from penstock.changes.change import CapturedChange
from penstock.changes.interest import ROW
from penstock.errors import ContextError
from penstock.observe.logs import event as log_event
from penstock.outbox.meaning import Meaning
from penstock.reactive.expression import Condition
from penstock.reactive.filtertext import TextFilter
from penstock.reactive.tracing import RowFilter, trace_filter
from penstock.schema.table import TableDefinition
from penstock.store.contract.changes import Source
from penstock.store.contract.outboxes import OutboxRow
from penstock.store.contract.session import Row
from penstock.store.sql.conditions import condition_sql

_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Chosen:
    """Rows of a table of which a condition is true."""

    definition: TableDefinition
    condition: Condition


def chosen_rows(declared: DeclaredOutbox | None, name: str, where: str | RowFilter[Any]) -> Chosen:
    """The rows of an outbox that are to be sent again.

    Args:
        declared: The outbox, if this program declares it.
        name: Its name.
        where: Which rows.

    Raises:
        ContextError: It is not declared here, or does not send the rows that are inserted into a table.
        DeclarationError: The condition cannot be translated.
        ValueInvalid: Nor can it as text.
    """
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


async def resend(engine: Engine, row: OutboxRow, chosen: Chosen) -> int:
    """Append chosen rows to the change feed, some in each transaction; how many."""
    store, number = engine.store, row.interests[-1]
    only = condition_sql(chosen.condition, chosen.definition, store.dialect, ROW, own=True)
    source = await store.interests.source(number, only)
    if source is None:
        raise ContextError(f"The table of outbox {row.plan.name} is not there, or not captured.")
    judged = ChangeRules(store.dialect, Meaning(condition=None if only.exact else chosen.condition, kinds=("enter",)))
    count, place, more = 0, None, True

    def is_meant(key: str, columns: str) -> bool:
        return judged.kind(CapturedChange(0, number, "enter", key, None, columns, engine.clock.now())) is not None

    async def append() -> tuple[int, Row | None]:
        session = await store.begin_write()
        try:
            rows = await session.fetch(*_page(source, place))
            meant = [(key, after) for key, after, columns, _place in rows if is_meant(key, columns)]
            await store.outboxes.resend(session, number, meant)
            await session.commit()
        finally:
            await session.rollback()
        return len(meant), rows[-1] if len(rows) == _AT_ONCE else None

    while more:
        sent, last = await Attempts(engine).run(append, "Sending rows again")
        count, more, place = count + sent, last is not None, None if last is None else last[3]
    store.signals.notify()
    log_event("outbox.resent", logging.WARNING, outbox=row.plan.name, rows=count)
    return count


def _page(source: Source, place: str | None) -> tuple[Any, list[Any]]:
    return (source.first, [_AT_ONCE]) if place is None else (source.following, [place, _AT_ONCE])
