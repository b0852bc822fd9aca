"""How outboxes are made known to the database when a program starts: first how they are read, then what is captured.

Owns the order of these steps, and what a table has to be like whose rows are read. Leaves the words of declarations to
`calls/outboxes`.
"""

from __future__ import annotations

import logging

from penstock.calls.engine import Engine
from penstock.calls.outboxes import DeclaredOutbox, Outboxes
from penstock.calls.outboxlooks import look_at
from penstock.changes.position import BEGINNING
from penstock.errors import DeclarationError
from penstock.observe.logs import event as log_event
from penstock.outbox.older import Older, first
from penstock.outbox.outbox import Outbox
from penstock.outbox.trouble import reader_lost
from penstock.schema.stored import StoredTable, index_columns, unique_keys
from penstock.store.ddl import describe
from penstock.store.outboxes import OutboxRow

_MOST_TOLD = 1000


async def declare_outboxes(engine: Engine, outboxes: Outboxes) -> None:
    """Make the outboxes of a program known: first how they are read, then what is captured.

    The number of an interest is known to relays before anything is captured under it, and what was declared before is
    captured no more from the same transaction on: so no change is missed, and none comes twice. Outboxes of other
    programs are learned of here.
    """
    for one in outboxes:
        one.messages(engine.store.dialect)  # what cannot be is refused now
        await _check_rows(engine, one)
    for one in outboxes:
        await _declare(engine, one)
    await engine.learn_order()
    await _tell_of_others(engine, outboxes)


async def _declare(engine: Engine, one: DeclaredOutbox) -> None:
    store, now, outbox = engine.store, engine.clock.now(), one.outbox
    row = await store.outboxes.declare(one.plan(), first(outbox.order_by) if _reads_rows(outbox) else None, now)
    if row.ready and outbox.reader not in {reader.name for reader in await store.changes.readers()}:
        await _halt_lost(engine, outbox)
    if outbox.definition is None:
        await store.changes.register(outbox.reader, now, BEGINNING if outbox.start == "beginning" else None)
        await store.outboxes.capture(row.id, [-await store.outboxes.topic(outbox.topic or "")])
    elif row.plan.version == outbox.version:
        await store.changes.register(outbox.reader, now)
        await _capture(engine, one, row)
    if not row.ready:
        await store.outboxes.prepared(row.id)


async def _capture(engine: Engine, one: DeclaredOutbox, row: OutboxRow) -> None:
    """Have its changes captured as it is declared; rows that are being handed over go on in the order they have."""
    store, now = engine.store, engine.clock.now()
    order = one.outbox.order_by if row.backfill is None else Older.parse(row.backfill).order
    interest = one.interest(store.dialect, order)
    (number,) = await store.interests.add([interest], now)
    await store.outboxes.capture(row.id, [number], interest.meaning)
    known = await store.interests.list()
    before = [old.id for old in known if old.interest.name == interest.name and old.id != number]
    await store.interests.declare([interest], now, replaces=before)


def _reads_rows(outbox: Outbox) -> bool:
    """Whether it begins with the rows of its table."""
    return outbox.definition is not None and outbox.start == "beginning"


async def _halt_lost(engine: Engine, outbox: Outbox) -> None:
    """Have an outbox wait for somebody whose reader is gone: with a new one alone, messages would be left out."""
    trouble = reader_lost(outbox.name, engine.clock.now())
    await engine.store.outboxes.halt(outbox.name, trouble)
    log_event("outbox.halted", logging.ERROR, outbox=outbox.name, message=0, key=None, attempts=0, error=trouble.error)


async def _tell_of_others(engine: Engine, outboxes: Outboxes) -> None:
    """Tell of outboxes with messages that nobody hands over, and that this program does not declare."""
    store = engine.store
    others = [row for row in await store.outboxes.list() if outboxes.find(row.plan.name) is None]
    if not others:
        return
    for status in await look_at(store, others, engine.clock.now(), lambda _name: False, _MOST_TOLD):
        if status.read_by is None and (status.messages or status.older_rows is not None):
            log_event(
                "outbox.unknown",
                logging.WARNING,
                outbox=status.name,
                handler=status.handler,
                source=status.source,
                messages=status.messages,
                seconds=round(status.seconds),
                fix=f"Declare it under this name, or let it go: penstock outbox drop {status.name}",
            )


async def _check_rows(engine: Engine, one: DeclaredOutbox) -> None:
    """See to it that the rows of an outbox's table can be read one after another, each once, if they are to be read.

    Raises:
        DeclarationError: Several rows may have the same key, or a column by which they are ordered may be NULL.
    """
    outbox, definition = one.outbox, one.outbox.definition
    row = next((row for row in await engine.store.outboxes.list() if row.plan.name == outbox.name), None)
    begins = _reads_rows(outbox) if row is None else row.backfill is not None
    if definition is None or not (begins or one.reset is not None):
        return
    stored = (await engine.store.catalog.stored_tables([definition.name])).get(definition.name)
    if stored is None or stored.kind != "table":
        return
    order = outbox.order_by
    names = {column.name: name for name, column in describe(definition, engine.store.dialect).columns.items()}
    keys, place = [names[name] for name in definition.key], [names.get(name, name) for name in order]
    if not definition.managed and not any(set(keys).issuperset(columns) for columns in unique_keys(stored)):
        listed = ", ".join(definition.key)
        raise DeclarationError(
            f"Outbox {outbox.name!r}: several rows of {definition.name} may have the same ({listed}), so that they are "
            "not told apart.",
            fix=f'Create a unique index of ({listed}) with the program that owns the table; or declare start="end".',
        )
    nullable = {name for name, column in stored.columns.items() if column.nullable} - {*stored.key}
    if missing := [name for name in place if name in nullable]:
        raise DeclarationError(
            f"Outbox {outbox.name!r}: order_by: {', '.join(missing)} of {definition.name} may be NULL, which has no "
            "place in an order.",
            fix="Make it NOT NULL with the program that owns the table, or order by other columns.",
        )
    if begins and order and not _is_indexed(stored, tuple(place), tuple(keys)):
        log_event(
            "outbox.unindexed",
            logging.WARNING,
            outbox=outbox.name,
            table=definition.name,
            columns=",".join(order),
            fix=f"Create an index of ({', '.join(dict.fromkeys((*order, *definition.key)))}): without one, each look "
            "at the rows sorts all of them.",
        )


def _is_indexed(stored: StoredTable, order: tuple[str, ...], key: tuple[str, ...]) -> bool:
    """Whether an index has rows in an order, so that few of them are read for a page."""
    place = tuple(dict.fromkeys((*order, *key)))
    found = [(stored.key, True), *index_columns(stored)]
    return any(
        columns[: len(place)] == place or (unique and set(columns) <= set(order) and columns == order[: len(columns)])
        for columns, unique in found
        if columns
    )
