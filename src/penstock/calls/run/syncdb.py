"""`ctx.db` of functions written with def.

Generated, with `PENSTOCK_WRITE_SYNC=1 python -m pytest tests/house/test_house_sync.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from penstock.calls.run.bridge import Face, in_thread, waits
from penstock.schema.ids import Id
from penstock.schema.index import Index
from penstock.schema.table import Table
from penstock.transaction.aggregates import Groups
from penstock.transaction.database import DatabaseReader, DatabaseWriter
from penstock.transaction.pages import Page, PaginationOptions
from penstock.transaction.scan import Scan
from penstock.transaction.segments import Direction
from penstock.transaction.words import refuses_other_words

T = TypeVar("T", bound=Table)


@refuses_other_words
class SyncDatabaseReader(Face[DatabaseReader]):
    """`DatabaseReader` for code that does not await."""

    get = waits(DatabaseReader.get)

    def query(self, table: type[T]) -> SyncScan[T]:
        """See `DatabaseReader.query`."""
        return SyncScan(self._twin.query(table), self._wait)


@refuses_other_words
class SyncDatabaseWriter(SyncDatabaseReader):
    """`DatabaseWriter` for code that does not await."""

    _twin: DatabaseWriter
    insert = waits(DatabaseWriter.insert)

    def insert_many(self, rows: Iterable[T]) -> list[Id[T]]:
        """See `DatabaseWriter.insert_many`."""
        return self._wait(self._twin.insert_many(list(rows)))

    patch = waits(DatabaseWriter.patch)
    replace = waits(DatabaseWriter.replace)
    delete = waits(DatabaseWriter.delete)


@refuses_other_words
class SyncScan(Face[Scan[T]]):
    """`Scan` for code that does not await."""

    def with_index(self, index: Index, /, **columns: Any) -> SyncScan[T]:
        """See `Scan.with_index`."""
        return SyncScan(self._twin.with_index(index, **columns), self._wait)

    def order(self, direction: Direction) -> SyncScan[T]:
        """See `Scan.order`."""
        return SyncScan(self._twin.order(direction), self._wait)

    def filter(self, predicate: Callable[[T], bool]) -> SyncScan[T]:
        """See `Scan.filter`."""
        return SyncScan(self._twin.filter(predicate), self._wait)

    def take(self, count: int) -> list[T]:
        """See `Scan.take`."""
        return self._wait(self._twin.take(count))

    def first(self) -> T | None:
        """See `Scan.first`."""
        return self._wait(self._twin.first())

    def unique(self) -> T | None:
        """See `Scan.unique`."""
        return self._wait(self._twin.unique())

    def collect(self) -> list[T]:
        """See `Scan.collect`."""
        return self._wait(self._twin.collect())

    def paginate(
        self, options: PaginationOptions | None = None, /, *, cursor: str | None = None, num_items: int = 100
    ) -> Page[T]:
        """See `Scan.paginate`."""
        return self._wait(self._twin.paginate(options, cursor=cursor, num_items=num_items))

    def __iter__(self) -> Iterator[T]:
        """See `Scan.__aiter__`."""
        return in_thread(self._twin.__aiter__(), self._wait)

    count = waits(Scan.count)
    sum = waits(Scan.sum)
    min = waits(Scan.min)
    max = waits(Scan.max)

    def group_by(self, *columns: str) -> SyncGroups:
        """See `Scan.group_by`."""
        return SyncGroups(self._twin.group_by(*columns), self._wait)


class SyncGroups(Face[Groups]):
    """`Groups` for code that does not await."""

    count = waits(Groups.count)
    sum = waits(Groups.sum)
    min = waits(Groups.min)
    max = waits(Groups.max)
