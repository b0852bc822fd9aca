"""`ctx.db.query(Table).with_search_index(…)`: rows by their words, best first.

Owns the steps of a search. The index gives candidates, and rows with changes that the indexer has not read are looked
at as they are now. So a search finds all that its transaction sees, by any writer. `search.rank` has the order.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

from penstock.changes.readset import SearchRead
from penstock.changes.searches import TableSearch
from penstock.errors import LimitExceeded, ValueInvalid
from penstock.schema.fields import Column, Kind
from penstock.schema.table import Table
from penstock.search.index import SearchIndex
from penstock.search.query import Query
from penstock.search.rank import scorer
from penstock.store.session import Row
from penstock.store.sql.dialect import UNFIT
from penstock.store.sql.statements import TableStatements
from penstock.store.sql.values import decode_key, decode_stored_values
from penstock.transaction.pages import (
    BEGINNING,
    END,
    Page,
    PaginationOptions,
    Place,
    decode_cursor,
    encode_cursor,
    fingerprint,
    invalid_cursor,
    page_options,
)
from penstock.transaction.rows import check_count, read_rows
from penstock.transaction.rules import rule_of
from penstock.transaction.searching import PIECE, filter_value, find_unread, is_spelled, pieces
from penstock.transaction.transaction import Scope
from penstock.transaction.words import refuses_other_words

T = TypeVar("T", bound=Table)
Item = TypeVar("Item")

MAX_RESULTS = 1024
MAX_VALUES = 8  # of filters, in one search
_PLACE = [
    *(Column(name, Kind.INTEGER, optional=False) for name in ("words", "whole", "hits")),
    Column("created", Kind.INTEGER, optional=True),
    Column("key", Kind.TEXT, optional=False),
]


class _Found(NamedTuple):
    """A row that fits, by its rank: a greater one comes first. Then its key, as the change feed spells it."""

    words: int
    whole: int
    hits: int
    created: int  # in microseconds; 0 for a table without creation times
    tie: Any
    key: str

    @property
    def place(self) -> list[Any]:
        """Its place as a cursor tells it."""
        return [self.words, self.whole, self.hits, self.created, self.key]


@refuses_other_words
class Search(Generic[T]):
    """A text search over one table; each step gives a new one, and nothing is read until a last step is awaited.

    First come rows with more different words of the text, then with more whole words, with more hits, and the newest.
    At most 1,024 rows can be read.

    Steps: `filter`. Last steps: `take`, `first`, `collect`, `paginate`, and ``async for``.
    """

    __slots__ = ("_filters", "_query", "_scope", "_search", "_statements", "_table", "_transaction", "_values")

    def __init__(
        self,
        scope: Scope,
        table: type[T],
        search: TableSearch,
        query: Query,
        values: tuple[tuple[str, Any], ...],
        filters: tuple[Callable[[T], bool], ...] = (),
    ) -> None:
        self._scope = scope
        self._transaction = scope.transaction
        self._table = table
        self._statements: TableStatements = scope.table(table)
        self._search = search
        self._query = query
        self._values = values
        self._filters = filters

    def filter(self, predicate: Callable[[T], bool]) -> Search[T]:
        """Keep only rows for which a Python predicate is true. Those it drops count among the 1,024."""
        filters = (*self._filters, predicate)
        return Search(self._scope, self._table, self._search, self._query, self._values, filters)

    def take(self, count: int) -> Coroutine[Any, Any, list[T]]:
        """The best `count` rows, or fewer.

        Raises:
            SearchNotReady: The index is being filled, or is behind.
            LimitExceeded: There are more than 1,024 rows, and `count` is greater.
        """
        return self._scope.track(self._take(check_count(count)))

    def first(self) -> Coroutine[Any, Any, T | None]:
        """The best row, or None."""
        return self._scope.track(self._first())

    def collect(self) -> Coroutine[Any, Any, list[T]]:
        """All rows.

        Raises:
            LimitExceeded: There are more than 1,024.
        """
        return self._scope.track(self._take(None))

    def paginate(
        self, options: PaginationOptions | None = None, /, *, cursor: str | None = None, num_items: int = 100
    ) -> Coroutine[Any, Any, Page[T]]:
        """One page of rows, and the cursor after which the next page begins. A full page never says it is the last.

        Args:
            options: The page that a client asks for, in place of the others. In a live query it keeps its ends.
            cursor: None for the first page; then the `continue_cursor` of the page before.
            num_items: Rows per page, from 1 to 10,000.

        Raises:
            CursorInvalid: A cursor is malformed, or of another search.
            LimitExceeded: The page goes beyond the first 1,024 rows.
        """
        number = None if options is None else self._transaction.begin_page()
        return self._scope.track(self._paginate(page_options(options, cursor, num_items), number))

    async def __aiter__(self) -> AsyncIterator[T]:
        """All rows, read piece by piece."""
        self._scope.check_outside()
        async for row in self._rows(None):
            yield row

    # ----- steps

    async def _take(self, count: int | None) -> list[T]:
        return [row async for row in self._rows(count)] if count != 0 else []

    async def _first(self) -> T | None:
        return next(iter(await self._take(1)), None)

    async def _rows(self, most: int | None) -> AsyncIterator[T]:
        kept = 0
        async for _found, row in self._read(await self._find(), 0, most or PIECE):
            if row is not None:
                kept += 1
                yield row
                if kept == most:
                    return

    async def _paginate(self, options: PaginationOptions, number: int | None) -> Page[T]:
        transaction, name = self._transaction, self._statements.definition.name
        mark = fingerprint(name, self._search.index.name, self._query, self._values)
        end_cursor = options.end_cursor
        if end_cursor is None and number is not None:
            end_cursor = transaction.end_of_page(number)
        first = BEGINNING if options.cursor is None else self._place(options.cursor, mark)
        last = END if end_cursor is None else self._place(end_cursor, mark)
        ranked = await self._find()
        begin, end = self._index(ranked, first), self._index(ranked, last)
        wanted, most = (options.num_items, options.maximum_rows_read) if end_cursor is None else (None, None)
        page, seen = list[T](), list[_Found]()
        async for found, row in self._read(ranked[:end], begin, wanted or PIECE):
            seen.append(found)
            if row is not None:
                page.append(row)
            if len(page) == wanted or len(seen) == most:
                last = found.place
                break
        if end_cursor is None:
            end_cursor = encode_cursor(mark, last)
        if number is not None:
            transaction.page_ends[number] = end_cursor
        return Page(
            page=page,
            is_done=last is END,
            continue_cursor=end_cursor,
            split_cursor=encode_cursor(mark, seen[(len(seen) - 1) // 2].place) if len(seen) > 1 else None,
        )

    def _place(self, cursor: str, mark: str) -> Place:
        return decode_cursor(cursor, mark, _PLACE, self._statements.dialect)

    def _index(self, ranked: Sequence[_Found], place: Place) -> int:
        """The number of rows up to a place, with the one there."""
        if place is END or place == BEGINNING:
            return len(ranked) if place is END else 0
        *score, created, key = place
        try:
            at = (*score, created or 0, self._tie(key), key)
            return sum(one >= at for one in ranked)
        except (*UNFIT, RecursionError) as error:  # a client can send any key
            raise invalid_cursor() from error

    # ----- reading

    async def _find(self) -> list[_Found]:
        """All rows that fit, the best first."""
        transaction, search = self._transaction, self._search
        transaction.note_range(SearchRead(search.definition.name, search.index.column, self._values, self._query))
        if not self._query.words:
            return []
        async with self._scope.lock:
            number, unread = await find_unread(transaction, search)
            tokens = search.filter_tokens(self._values)
            hits = await transaction.store.searches.hits(transaction, number, self._query, tokens)
            candidates: list[Any] = [one for one in hits if one[0] not in unread]
            if None in unread:  # the table was truncated, or a part of it: rows of the index may be gone
                there = {key for some in pieces(candidates) for key in await self._load([one[0] for one in some])}
                candidates = [one for one in candidates if one[0] in there]
            for some in pieces([key for key in unread if key is not None]):
                loaded = (await self._load(some)).items()
                candidates += [self._index_row(key, row) for key, row in loaded if self._has_values(row)]
        score, found = scorer(self._query), list[_Found]()
        for key, created, tokens in candidates:
            if (points := score(tokens)) is not None:
                found.append(_Found(*points, created or 0, self._tie(key), key))
        found.sort(reverse=True)
        return found

    def _index_row(self, key: str, row: Row) -> tuple[str, Any, str]:
        """A row as the index would have it: its key, its creation time and its tokens."""
        values = self._values_of(row, self._search.source_columns)
        return key, values.get("creation_time"), self._search.tokens(values)

    async def _read(self, ranked: Sequence[_Found], begin: int, piece: int) -> AsyncIterator[tuple[_Found, T | None]]:
        """The rows from a place on, without rows that are gone; None for each that a filter or a rule leaves out."""
        rule = await rule_of(self._scope, self._statements, "read")
        for found in pieces(ranked[begin:MAX_RESULTS], min(piece, PIECE)):
            async with self._scope.lock:
                loaded = await self._load([one.key for one in found])
            self._transaction.count_rows(self._statements, [*loaded.values()])
            there = [one for one in found if one.key in loaded and self._has_values(loaded[one.key])]
            rows = cast("Iterable[T]", read_rows(self._statements, [loaded[one.key] for one in there]))
            for one, row in zip(there, rows, strict=True):
                keeps = (rule is None or rule.allows(row)) and all(predicate(row) for predicate in self._filters)
                yield one, row if keeps else None
        if len(ranked) > MAX_RESULTS:
            raise LimitExceeded(
                f"Search index {self._search.name} has found more than {MAX_RESULTS} rows, and no more can be read.",
                fix='Take fewer, or narrow the search by filters or with match="all".',
                limit=MAX_RESULTS,
                convex="SearchQueryScannedTooManyDocumentsError",
            )

    async def _load(self, keys: Sequence[str]) -> dict[str, Row]:
        """The rows with some keys, spelled as the change feed has them."""
        transaction, statements = self._transaction, self._statements
        dialect, definition = statements.dialect, statements.definition
        given = {key: decode_key(dialect, definition, key) for key in keys}
        found = dict[str, Row]()
        if len(keys) > 1:
            rows = await transaction.fetch(*statements.get_many([*given.values()], encoded=True))
            by_key = {tuple(self._key_of(row)): row for row in rows}
            found = {key: by_key[tuple(values)] for key, values in given.items() if tuple(values) in by_key}
            if definition.managed:
                return found
        for key, values in given.items():
            rows = [] if key in found else await transaction.fetch(statements.get(), values)
            if rows and is_spelled(self._key_of(rows[0]), values):
                found[key] = rows[0]
        return found

    def _key_of(self, row: Row) -> Sequence[Any]:
        definition = self._statements.definition
        return definition.key_values(definition.key_at(row))

    def _values_of(self, row: Row, names: Iterable[str]) -> dict[str, Any]:
        statements = self._statements
        stored = {name: row[statements.definition.positions[name]] for name in names}
        return decode_stored_values(statements.dialect, statements.definition, stored, names)

    def _has_values(self, row: Row) -> bool:
        """Whether the filters of a row have the values themselves: different ones may have one token."""
        return self._values_of(row, [name for name, _ in self._values]) == dict(self._values)

    def _tie(self, key: str) -> Any:
        """The value by which rows of one time are ordered; as SQLite does, if they are of several types."""
        definition = self._statements.definition
        if definition.managed:
            return key
        return [(_type_order(one), one) for one in decode_key(self._statements.dialect, definition, key)]


def make_search(scope: Scope, table: type[T], index: SearchIndex, query: Query, filters: dict[str, Any]) -> Search[T]:
    """A search in an index of a table.

    Raises:
        ValueInvalid: The index is another table's, a filter is not the index's, or a value is not one of its column.
    """
    definition = scope.table(table).definition
    if definition.searches.get(index.name) is not index:
        raise ValueInvalid(f"{index!r} is not a search index of table {table.__name__}.")
    if unknown := filters.keys() - {*index.filters}:
        raise ValueInvalid(
            f"Search index {index.name} has no filter {', '.join(sorted(unknown))}.",
            fix=f"Its filters are {', '.join(index.filters) or 'none'}; declare more, or choose with filter().",
            convex="IncorrectFilterFieldError",
        )
    if len(filters) > MAX_VALUES:
        raise ValueInvalid(
            f"A search in index {index.name} asks for {len(filters)} values, more than {MAX_VALUES}.",
            fix="Ask for the ones that leave the fewest rows, and choose among these with filter().",
            convex="TooManyFilterConditionsInSearchQueryError",
        )
    values = tuple((name, filter_value(definition, name, filters[name])) for name in index.filters if name in filters)
    return Search(scope, table, TableSearch(definition, index), query, values)


def _type_order(value: Any) -> int:
    """The place of a value's type in the order of SQLite: numbers, texts, bytes."""
    if value is None:
        raise ValueError("no key has NULL")
    return 2 if isinstance(value, bytes) else 1 if isinstance(value, str) else 0
