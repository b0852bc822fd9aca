"""Search indexes of a program: declares them, fills them, and keeps them up with the change feed.

Owns the steps, each a transaction. `services/indexer` takes them again and again, `penstock migrate` until all rows are
indexed. An index is a reader of the change feed: rows with unread changes are looked at by the searches themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from pydantic_core import from_json

from penstock.calls.run.engine import Engine
from penstock.changes.change import LOST, read_values
from penstock.changes.interest import ROW, Interest
from penstock.changes.position import Position
from penstock.changes.searches import TableSearch, TableVectors, reader_name
from penstock.observe.logs import event as log_event
from penstock.store.nouns.changes import Batch
from penstock.store.nouns.interests import Source
from penstock.store.nouns.searches import Indexed, SearchRow
from penstock.store.session import Row, reading
from penstock.store.sql.conditions import column_sql
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.values import decode_captures
from penstock.store.store import Store

AT_ONCE = 200  # rows
_IN_THREAD = 65_536  # characters of rows that are made to tokens; more would keep the event loop from all else
Known = Collection[tuple[str, str]]  # names and digests


async def declare_searches(engine: Engine, searches: Sequence[TableSearch], now: datetime) -> None:
    """Make the search indexes of a program known, have their changes captured, and index the first rows."""
    store = engine.store
    await store.searches.check(searches)
    rows = {(row.name, row.digest): row for row in await store.searches.list()} if searches else {}
    for one in searches:
        if (one.name, one.digest) not in rows:
            await store.searches.add(one)
    numbers = await store.interests.declare([_interest(one, store.dialect) for one in searches], now)
    for one, interest in zip(searches, numbers, strict=True):
        state = await store.searches.find(None, one)
        assert state is not None  # noqa: S101 - it was added
        if await store.searches.capture(state.id, interest) or state.position is None:
            await begin(store, state.id, now)
            await fill(store, one)


async def begin(store: Store, number: int, now: datetime) -> None:
    """Have all rows of an index indexed again, with its reader where the feed ends now unless there is one."""
    await store.searches.restart(number)  # first, as a reader without that would have missed changes
    await store.changes.register(reader_name(number), now)


async def drop_searches(
    store: Store, searches: Sequence[TableSearch], tables: Collection[str], kept: Known, before: datetime
) -> list[str]:
    """Drop the search indexes of some tables that neither this program nor another one declares; their names.

    The ones stay that an indexer has kept up since `before`: a process of another release still runs.
    """
    rows = [row for row in await store.searches.list() if row.name.rpartition(".")[0] in tables]
    declared = {*kept, *((one.name, one.digest) for one in searches)}
    left = [row for row in rows if (row.name, row.digest) not in declared]
    if left:
        recent = {reader.name for reader in await store.changes.readers() if reader.moved_at >= before}
        left = [row for row in left if reader_name(row.id) not in recent]
    for row in left:
        await store.interests.drop([] if row.interest is None else [row.interest])
        await store.changes.forget(reader_name(row.id))
        await store.searches.drop(row.id)
    return [row.name for row in left]


async def fill_searches(store: Store, searches: Sequence[TableSearch]) -> None:
    """Index all rows that are not indexed yet."""
    for one in searches:
        while await fill(store, one):
            pass


async def fill(store: Store, search: TableSearch) -> bool:
    """Index the next rows of a backfill; False if all rows are indexed, or there is no table or no reader."""
    state = await store.searches.find(None, search)
    if state is None or state.cursor is None or state.position is None:
        return False
    if (source := await _source(store, search, state)) is None:
        return False
    async with reading(store.begin_read) as session:
        if state.cursor:
            rows = await session.fetch(source.following, [state.cursor, AT_ONCE])
        else:
            rows = await session.fetch(source.first, [AT_ONCE])
    after = rows[-1][3] if len(rows) == AT_ONCE else None
    # A key that cannot be written as text tells no row: its place is spelled otherwise.
    made = await _index(store, search, [row for row in rows if row[0] == row[3]])
    if after is None and (changes := await store.searches.complete(state.id, search)):
        async with store.catalog.lock() as lock:
            for change in changes:
                await lock.apply(change)
    if await store.searches.fill(state.id, search, state.cursor, after, made) and after is None:
        log_event("search.filled", index=search.name)
    return True


async def count_unread(store: Store, search: TableSearch, most: int) -> int | None:
    """The number of changes that an index has not read, up to `most`; None if it is not filled."""
    state = await store.searches.find(None, search)
    if state is None or state.interest is None or state.position is None or state.cursor is not None:
        return None
    return (await store.changes.lag(Position.parse(state.position), most, [state.interest])).rows


async def apply(store: Store, search: TableSearch, state: SearchRow, batch: Batch, lease: int, now: datetime) -> bool:
    """Index the rows of a batch of changes, and move the reader; False if it was lost."""
    kinds = [change.kind for change in batch.changes]
    restart, clear = LOST in kinds, "truncate" in kinds
    begin = len(kinds) - kinds[::-1].index("truncate") if clear else 0
    keys = [*dict.fromkeys(one.key for one in batch.changes[begin:] if one.key is not None)]
    source = await _source(store, search, state) if keys or clear else None
    if restart or (clear and source is not None and source.parted):  # the other partitions keep their rows
        restart, keys = True, []
    rows: Sequence[Row] = ()
    if source is not None and keys:
        async with reading(store.begin_read) as session:
            rows = await session.fetch(source.among, [f"[{','.join(keys)}]"])
    made = await _index(store, search, rows)
    gone = {*keys}.difference(one.key for one in made)
    reader, at, after = reader_name(state.id), batch.before, batch.position
    move = partial(store.changes.move, name=reader, lease=lease, before=at, after=after, now=now)
    return await store.searches.apply(state.id, search, made, [*gone], move, clear=clear or restart, restart=restart)


def _interest(search: TableSearch, dialect: Dialect) -> Interest:
    """The changes that concern a search index."""
    definition = search.definition
    watches = [column_sql(name, definition, dialect, ROW) for name in search.source_columns]
    return Interest(name=search.interest_name, table=definition.name, key=definition.key, watches=watches)


async def _source(store: Store, search: TableSearch, state: SearchRow) -> Source | None:
    return (
        None if state.interest is None else await store.interests.source(state.interest, columns=search.source_columns)
    )


async def _index(store: Store, search: TableSearch, rows: Iterable[Row]) -> list[Indexed]:
    """Make the rows of an index from those of a source. Many letters are read in a thread."""
    if sum(len(row[1]) for row in rows) > _IN_THREAD:
        return await asyncio.to_thread(_make, store, search, rows)
    return _make(store, search, rows)


def _make(store: Store, search: TableSearch, rows: Iterable[Row]) -> list[Indexed]:
    made = {}  # by keys: a table without a unique index may have one twice
    for key, after, *_ in rows:
        if (entry := search.entry(_values_of(store, search, after))) is not None:
            made[key] = Indexed(key, entry)
    return [*made.values()]


def _values_of(store: Store, search: TableSearch, text: str) -> dict[str, Any]:
    """The values of a captured row. A vector is as it stands there: with Decimals it would take ten times as long."""
    if not isinstance(search, TableVectors):
        return decode_captures(store.dialect, search.definition, read_values(text), search.source_columns)
    values = read_values(text) if search.has_decimals else from_json(text)
    filters = decode_captures(store.dialect, search.definition, values, search.index.filters)
    return {search.index.column: values[search.index.column], **filters}
