"""Stores the outboxes of a program when it starts: first their readers, then their interests.

Owns the order of these steps, and the checks of a table whose rows are to be read.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from penstock.api.outbox.declared import DeclaredOutbox
from penstock.api.outbox.outboxes import Outboxes
from penstock.api.outbox.views import look_at
from penstock.calls.run.engine import Engine
from penstock.changes.interest import Interest
from penstock.changes.position import BEGINNING
from penstock.errors import DeclarationError
from penstock.observe.logs import event as log_event
from penstock.outbox.backfill import BackfillProgress, new_backfill
from penstock.outbox.outbox import Outbox
from penstock.outbox.trouble import reader_lost
from penstock.schema.stored import StoredTable, index_columns, unique_keys
from penstock.schema.table import TableDefinition
from penstock.store.nouns.outboxes import OutboxRow
from penstock.store.sql.ddl import describe
from penstock.store.sql.dialect import Dialect

_MOST_TOLD = 1000


async def check_outboxes(
    engine: Engine, outboxes: Outboxes, besides: Collection[str] = (), *, tells: bool = True
) -> None:
    """Refuse outboxes that cannot be read or captured, before anything is written; tables in `besides` are left out."""
    store, dialect = engine.store, engine.store.dialect
    for one in outboxes:
        one.messages(dialect)
    known = {row.plan.name: row for row in await store.outboxes.list()} if len(outboxes) else {}
    names = {one.outbox.definition.name for one in outboxes if one.outbox.definition is not None}
    tables = await store.catalog.read_tables(sorted(names)) if names else {}
    wanted = []
    for one in outboxes:
        outbox, row = one.outbox, known.get(one.outbox.name)
        if row is not None and row.plan.version <= outbox.version and row.plan.source != outbox.source:
            raise DeclarationError(  # the messages that wait are not for this handler
                f"Outbox {outbox.name!r} is one of {row.plan.source} in this database, and cannot become one of "
                f"{outbox.source}.",
                fix="Give it another name=. The old outbox waits for a handler until you drop it.",
            )
        if outbox.definition is None or outbox.definition.name in besides:
            continue
        if (stored := tables.get(outbox.definition.name)) is not None:
            _check_rows(one, outbox.definition, row, stored, dialect)
            if tells:
                _tell_of_order(outbox, outbox.definition, row, stored, dialect)
        if row is None or row.plan.version <= outbox.version:
            wanted.append(_interest(one, row, dialect))
    await store.interests.check(wanted, engine.clock.now())


async def declare_outboxes(engine: Engine, outboxes: Outboxes) -> None:
    """Store the outboxes of a program: first their readers, then their interests.

    Relays know the number of an interest before anything is captured under it. The same transaction ends the capture of
    the former declaration. So no change is missed, and none comes twice. If two releases start at once, the last
    declaration is captured. A start reads each list of the store once, however many outboxes it has.
    """
    store = engine.store
    if len(outboxes):
        rows = [(one, await _declare(engine, one)) for one in outboxes]
        readers = {reader.name for reader in await store.changes.readers()}  # afterwards: a ready outbox has had one
        for one, row in rows:
            await _register(engine, one.outbox, row, readers)
        captured = await _capture(engine, [(one, row) for one, row in rows if _is_said_by(one.outbox, row)])
        for one, row in rows:
            if not row.ready and (one.outbox.definition is None or row.id in captured):
                await store.outboxes.note_prepared(row.id)
    await engine.learn_order()
    await _tell_of_others(engine, outboxes)


async def _declare(engine: Engine, one: DeclaredOutbox) -> OutboxRow:
    backfill = new_backfill(one.outbox.order_by) if _reads_rows(one.outbox) else None
    return await engine.store.outboxes.declare(one.plan(), backfill, engine.clock.now())


async def _register(engine: Engine, outbox: Outbox, row: OutboxRow, readers: Collection[str]) -> None:
    """Register the reader of an outbox; for a topic also the number it reads under."""
    store = engine.store
    if outbox.reader not in readers:
        if row.ready:
            await _halt_lost(engine, outbox)
        if outbox.definition is None or _is_said_by(outbox, row):
            at = BEGINNING if outbox.definition is None and outbox.start == "beginning" else None
            await store.changes.register(outbox.reader, engine.clock.now(), at)
    if outbox.definition is None and row.plan.source == outbox.source:
        await _read_under(engine, row, -await store.outboxes.topic(outbox.topic or ""))


def _is_said_by(outbox: Outbox, row: OutboxRow) -> bool:
    """Whether this program decides the capture of a table, and not a newer one."""
    return outbox.definition is not None and row.plan.version == outbox.version


async def _capture(engine: Engine, ours: Sequence[tuple[DeclaredOutbox, OutboxRow]]) -> set[int]:
    """Capture changes as outboxes are declared; the numbers of the outboxes whose capture stands.

    Another release that starts at the same time may declare an outbox otherwise. The last one to do so wins, and
    begins again if the other has taken its place.
    """
    store, now, captured = engine.store, engine.clock.now(), set[int]()
    while ours:
        interests = [_interest(one, row, store.dialect) for one, row in ours]
        added = await store.interests.add(interests, now)
        plans = {row.id: one.plan() for one, row in ours}
        # Afterwards: a later declaration, of another release, replaces what was added.
        standing = {row.id: row for row in await store.outboxes.list() if row.plan == plans.get(row.id)}
        known = [
            (one, standing[row.id], interest, number)
            for (one, row), interest, number in zip(ours, interests, added, strict=True)
            if row.id in standing
        ]
        left = [number for (_one, row), number in zip(ours, added, strict=True) if row.id not in standing]
        await store.interests.drop(left, unused=True)
        for _one, row, interest, number in known:
            await _read_under(engine, row, number, interest.meaning)
        gone = await store.interests.replace([each[2] for each in known], [each[3] for each in known], now)
        captured |= {row.id for _one, row, _interest, number in known if number not in gone}
        ours = [(one, row) for one, row, _interest, number in known if number in gone]
    return captured


async def _read_under(engine: Engine, row: OutboxRow, number: int, meaning: str | None = None) -> None:
    """Let relays read the changes that are captured under a number."""
    if number not in row.interests:
        await engine.store.outboxes.capture(row.id, [number], meaning)


def _interest(one: DeclaredOutbox, row: OutboxRow | None, dialect: Dialect) -> Interest:
    """The interest of an outbox; a backfill in progress keeps its order."""
    left = None if row is None else row.backfill
    return one.interest(dialect, one.outbox.order_by if left is None else BackfillProgress.parse(left).order)


def _reads_rows(outbox: Outbox) -> bool:
    return outbox.definition is not None and outbox.start == "beginning"


async def _halt_lost(engine: Engine, outbox: Outbox) -> None:
    """Halt an outbox whose reader is gone: a new reader alone would leave out messages."""
    trouble = reader_lost(outbox.name, engine.clock.now())
    await engine.store.outboxes.halt(outbox.name, trouble)
    log_event("outbox.halted", logging.ERROR, outbox=outbox.name, message=0, key=None, attempts=0, error=trouble.error)


async def _tell_of_others(engine: Engine, outboxes: Outboxes) -> None:
    """Log outboxes with messages that nobody delivers, and that this program does not declare."""
    store = engine.store
    others = [row for row in await store.outboxes.list() if outboxes.find(row.plan.name) is None]
    if not others:
        return
    named = {
        (one.noun, one.name) for one in await store.programs.list() if one.program not in {"", engine.registry.program}
    }
    others = [row for row in others if ("outbox", row.plan.name) not in named]
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
                fix=f"Declare it under this name, or drop it: penstock outbox drop {status.name}",
            )


def _check_rows(
    one: DeclaredOutbox, definition: TableDefinition, row: OutboxRow | None, stored: StoredTable, dialect: Dialect
) -> None:
    """Refuse a backfill whose rows have no unique key, or may have NULL in a column of the order."""
    outbox = one.outbox
    if not (_has_rows_left(outbox, row) or one.reset is not None) or stored.kind != "table":
        return
    keys, place = _columns(outbox, definition, dialect)
    nullable = {name for name, column in stored.columns.items() if column.nullable} - {*stored.key}
    told_apart = [columns for columns in unique_keys(stored) if not nullable.intersection(columns)]
    if not definition.managed and not any(set(keys).issuperset(columns) for columns in told_apart):
        listed = ", ".join(definition.key)
        raise DeclarationError(
            f"Outbox {outbox.name!r}: several rows of {definition.name} may have the same ({listed}), so that they are "
            "not told apart.",
            fix=f"Create a unique index of ({listed}), all of them NOT NULL, with the program that owns the table; or "
            'declare start="end".',
        )
    if missing := [name for name in place if name in nullable]:
        raise DeclarationError(
            f"Outbox {outbox.name!r}: order_by: {', '.join(missing)} of {definition.name} may be NULL, which has no "
            "place in an order.",
            fix="Make it NOT NULL with the program that owns the table, or order by other columns.",
        )


def _tell_of_order(
    outbox: Outbox, definition: TableDefinition, row: OutboxRow | None, stored: StoredTable, dialect: Dialect
) -> None:
    keys, place = _columns(outbox, definition, dialect)
    if place and stored.kind == "table" and _has_rows_left(outbox, row) and not _is_indexed(stored, place, keys):
        order = outbox.order_by
        log_event(
            "outbox.unindexed",
            logging.WARNING,
            outbox=outbox.name,
            table=definition.name,
            columns=",".join(order),
            fix=f"Create an index of ({', '.join(dict.fromkeys((*order, *definition.key)))}): without one, each look "
            "at the rows sorts all of them.",
        )


def _has_rows_left(outbox: Outbox, row: OutboxRow | None) -> bool:
    return _reads_rows(outbox) if row is None else row.backfill is not None


def _columns(outbox: Outbox, definition: TableDefinition, dialect: Dialect) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns of a table's key, and those by which its rows are ordered, as the database calls them."""
    names = {column.name: name for name, column in describe(definition, dialect).columns.items()}
    return tuple(names[name] for name in definition.key), tuple(names.get(name, name) for name in outbox.order_by)


def _is_indexed(stored: StoredTable, order: tuple[str, ...], key: tuple[str, ...]) -> bool:
    """Whether an index has the rows in this order, so that a page reads few of them."""
    place = tuple(dict.fromkeys((*order, *key)))
    found = [(stored.key, True), *index_columns(stored)]
    return any(
        columns[: len(place)] == place or (unique and set(columns) <= set(order) and columns == order[: len(columns)])
        for columns, unique in found
        if columns
    )
