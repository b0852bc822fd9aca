"""`ctx.db.query(Table)`: reading many rows, through an index, in its order.

Owns the steps of a query and its reads: in pieces, each noted in the read set and counted against the limits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from penstock.changes.readset import Bound, RangeRead
from penstock.errors import NotUnique, ValueInvalid
from penstock.observe import practices
from penstock.reactive.expression import Condition
from penstock.schema.index import Index
from penstock.schema.table import Table
from penstock.search.index import SearchIndex
from penstock.search.query import Match, parse_query
from penstock.store.session import Row
from penstock.store.sql.dialect import ALL, Where
from penstock.store.sql.statements import TableStatements
from penstock.transaction.aggregates import Aggregated, Groups, aggregate
from penstock.transaction.pages import (
    BEGINNING,
    END,
    OTHERS,
    Page,
    PaginationOptions,
    Place,
    decode_cursor,
    encode_cursor,
    fingerprint,
    page_options,
)
from penstock.transaction.rows import check_count, read_rows
from penstock.transaction.rules import CallersRule, rule_of
from penstock.transaction.search import Search, make_search
from penstock.transaction.segments import Direction, Order, Segment, segment_of
from penstock.transaction.transaction import Scope
from penstock.transaction.words import refuses_other_words

T = TypeVar("T", bound=Table)
R = TypeVar("R")
P = ParamSpec("P")

_EVERYTHING = Segment()
_FIRST_PIECE = 64
_LARGEST_PIECE = 1024
_SHORT = "!"  # in a journal: a limit ended the page there, and no cursor has this
_FEW = 16  # rows, which a mutation may change next
_SPLIT_ABOVE = 0.75  # of the rows or bytes that a page may read


@refuses_other_words
class Scan(Generic[T]):
    """A query over one table; each step gives a new one, and nothing is read until a last step is awaited.

    Steps: `with_index`, `with_search_index`, `order`, `filter`. Last steps: `take`, `first`, `unique`, `collect`,
    `paginate`, `count`, `sum`, `min`, `max`, `group_by`, and ``async for``.
    """

    __slots__ = (
        "_direction",
        "_filters",
        "_index",
        "_rule",
        "_scope",
        "_segment",
        "_statements",
        "_table",
        "_transaction",
        "_where",
    )

    def __init__(
        self,
        scope: Scope,
        table: type[T],
        index: Index | None = None,
        segment: Segment = _EVERYTHING,
        direction: Direction = "asc",
        filters: tuple[Callable[[T], bool], ...] = (),
        where: Where = ALL,
        rule: CallersRule | None = None,
    ) -> None:
        self._scope = scope
        self._transaction = scope.transaction
        self._table = table
        self._statements: TableStatements = scope.table(table)
        self._index = index
        self._segment = segment
        self._direction: Direction = direction
        self._filters = filters
        self._where = where  # the rule for the caller as SQL, once it is known
        self._rule = rule  # that rule, if Python has to ask it of each row

    # ----- steps

    def with_index(self, index: Index, /, **columns: Any) -> Scan[T]:
        """Read through an index: values that its first columns equal, then at most one `Range` on the next one.

        ``with_index(Booking.by_customer, customer="Ada", starts_at=gte(today) & lt(tomorrow))``

        Raises:
            ValueInvalid: The index is another table's, a column is left out or not the index's, or a value is not
                one of its column.
        """
        definition = self._statements.definition
        if definition.indexes.get(index.name) is not index:
            raise ValueInvalid(f"{index!r} is not an index of table {self._table.__name__}.")
        segment = segment_of(self._statements, index, columns)
        return Scan(self._scope, self._table, index, segment, self._direction, self._filters)

    def with_search_index(self, index: SearchIndex, text: str, /, *, match: Match = "any", **filters: Any) -> Search[T]:
        """Look for rows by their words, best first.

        ``with_search_index(Message.by_body, "hello wor", channel=channel)``

        Args:
            index: A search index of the table.
            text: The text that a user typed. Its first 16 words count, and the last one also finds words that begin
                with it.
            match: Whether a row needs ``"any"`` word or ``"all"``.
            **filters: Values that filters of the index equal.

        Raises:
            ValueInvalid: The index is another table's, or a filter is not the index's or no value of its column.
        """
        if self._index is not None or self._direction != "asc":
            raise ValueInvalid("A search has an index and an order of its own.", fix="Leave out with_index and order.")
        found = make_search(self._scope, self._table, index, parse_query(text, match), filters)
        for predicate in self._filters:
            found = found.filter(predicate)
        return found

    def order(self, direction: Direction) -> Scan[T]:
        """Read in ascending (``"asc"``, the default) or descending (``"desc"``) order of the index, or of creation."""
        if direction not in {"asc", "desc"}:
            raise ValueInvalid(f"An order is asc or desc, not {direction!r}.")
        return Scan(self._scope, self._table, self._index, self._segment, direction, self._filters)

    def filter(self, predicate: Callable[[T], bool]) -> Scan[T]:
        """Keep only rows for which a Python predicate is true.

        Rows are read first and then looked at: those it drops count against the limits too. Use `with_index` where
        an index can choose the rows.
        """
        return Scan(self._scope, self._table, self._index, self._segment, self._direction, (*self._filters, predicate))

    # ----- rows

    def take(self, count: int) -> Coroutine[Any, Any, list[T]]:
        """The first `count` rows, or fewer."""
        return self._last(Scan._take, check_count(count))

    def first(self) -> Coroutine[Any, Any, T | None]:
        """The first row, or None."""
        return self._last(Scan._first)

    def unique(self) -> Coroutine[Any, Any, T | None]:
        """The only row, or None.

        Raises:
            NotUnique: There is more than one.
        """
        return self._last(Scan._unique)

    def collect(self) -> Coroutine[Any, Any, list[T]]:
        """All rows. For few: use `take` or `paginate` where there may be many.

        Raises:
            LimitExceeded: There are more than one transaction may read.
        """
        return self._last(Scan._collect)

    def paginate(
        self, options: PaginationOptions | None = None, /, *, cursor: str | None = None, num_items: int = 100
    ) -> Coroutine[Any, Any, Page[T]]:
        """One page of rows, and the cursor after which the next page begins.

        Args:
            options: The page that a client asks for, in place of the others. In a live query it keeps its ends.
            cursor: None for the first page; then the `continue_cursor` of the page before.
            num_items: Rows per page, from 1 to 10,000.

        Raises:
            CursorInvalid: A cursor is malformed, or of another query.
            ValueInvalid: `num_items` is no such number, or is given together with `options`, as is `cursor`.
        """
        number = None if options is None else self._transaction.begin_page()
        return self._last(Scan._paginate, page_options(options, cursor, num_items), number)

    async def __aiter__(self) -> AsyncIterator[T]:
        """All rows, read piece by piece."""
        scan = await self._for_caller()
        async for row in scan._rows():  # noqa: SLF001 - a scan too
            yield row

    # ----- aggregates

    def count(self) -> Coroutine[Any, Any, int]:
        """The number of rows. The database counts them; they do not count against the limits."""
        return self._last(Scan._count)

    def sum(self, column: str) -> Coroutine[Any, Any, Any]:
        """The sum of a column of numbers or timedeltas; 0 over no rows, and None values do not count."""
        return self._scope.track(self._aggregate("sum", column))

    def min(self, column: str) -> Coroutine[Any, Any, Any]:
        """The least value of a column; None over no rows."""
        return self._scope.track(self._aggregate("min", column))

    def max(self, column: str) -> Coroutine[Any, Any, Any]:
        """The greatest value of a column; None over no rows."""
        return self._scope.track(self._aggregate("max", column))

    def group_by(self, *columns: str) -> Groups:
        """Groups of rows with equal values in the next columns of the index; then `count`, `sum`, `min` or `max`.

        Raises:
            ValueInvalid: The columns are not the next ones of the index.
        """
        self._refuse_filter("group_by")
        following = self._index.columns[len(self._segment.prefix) :] if self._index else ()
        if not columns or columns != following[: len(columns)]:
            raise ValueInvalid(
                f"group_by{columns!r} needs an index whose next columns are these.",
                fix=f"Choose an index with with_index(…); the next columns here are {', '.join(following) or 'none'}.",
            )
        return Groups(self._aggregation(columns))

    # ----- the caller's part

    def _last(
        self, step: Callable[Concatenate[Scan[T], P], Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        """A last step, on the rows that the caller may read."""
        if not self._scope.ruled or self._statements.definition.rules is None:
            return self._scope.track(step(self, *args, **kwargs))

        async def call() -> R:
            return await step(await self._for_caller(), *args, **kwargs)

        return self._scope.track(call())

    async def _for_caller(self) -> Scan[T]:
        rule = await rule_of(self._scope, self._statements, "read")
        if rule is None:
            return self
        where, is_exact = rule.where(self._order, self._segment.prefix)
        if is_exact and where is ALL:
            return self
        of = self._scope, self._table, self._index, self._segment, self._direction, self._filters
        return Scan(*of, where, None if is_exact else rule)

    def _matching(self, condition: Condition) -> Scan[T]:
        """The last step of penstock's own queries: the rows that meet a condition, chosen by the database.

        Where it cannot say the condition exactly, Python chooses among them.
        """
        rule = CallersRule(self._statements, "read", None, (), condition)
        where, is_exact = rule.where(self._order, self._segment.prefix)
        filters = self._filters if is_exact else (*self._filters, rule.allows)
        return Scan(self._scope, self._table, self._index, self._segment, self._direction, filters, where)

    # ----- reading

    @property
    def _order(self) -> tuple[str, ...]:
        return self._statements.definition.order_of(self._index)

    def _ordering(self) -> Order:
        definition = self._statements.definition
        columns = [definition.column(name) for name in self._order]
        # SQLite compares long decimals by value, however they are spelled
        exact = definition.managed and not any(column.long for column in columns)
        return Order(self._order, [column.optional for column in columns], self._direction, exact)

    def _read_of(self, segment: Segment) -> RangeRead:
        name = self._index.name if self._index else None
        return segment.read(self._statements.definition.name, name, self._order)

    async def _read(self, segment: Segment, limit: int, *, noted: bool = True) -> Sequence[Row]:
        """Up to `limit` rows of a segment; the range noted ends at the last one if there may be more."""
        self._scope.check_outside()  # an iteration is no call that is tracked
        order = self._order
        conditions, args = segment.conditions(order)
        statement = self._statements.scan(
            conditions,
            order,
            self._direction,
            limit=limit,
            indexed=self._index is not None or not conditions,
            where=self._where,
        )
        read, ranges = self._read_of(segment), self._transaction.read_set.ranges
        place = len(ranges)
        if noted:
            self._transaction.note_range(read)  # before the read, as it may fail
        async with self._scope.lock:
            if self._where is ALL:
                rows = await self._transaction.fetch_range(read, statement, (*args, limit))
            else:
                rows = await self._transaction.fetch(statement, (*args, *self._where.args, limit))
            if self._scope.writable and len(rows) <= _FEW:
                self._transaction.know(self._statements.definition, rows)
        if noted and rows and len(rows) == limit:
            ranges[place] = self._up_to(read, rows[-1])
        self._transaction.count_rows(self._statements, rows)
        return rows

    def _note(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            self._transaction.note_range(self._read_of(segment))

    async def _read_most(self, count: int) -> Sequence[Row]:
        """Up to `count` rows: at once if they are likely small, else in pieces, which the limits end in time."""
        count = min(count, self._all_left)
        piece = self._statements.piece_rows(count)
        rows = await self._read(self._segment, piece)
        if len(rows) < piece or piece == count:
            return rows
        found, pending = list(rows), self._after(self._segment, rows[-1])
        while pending and len(found) < count:
            segment = pending.pop(0)
            piece = self._statements.piece_rows(count - len(found))
            rows = await self._read(segment, piece)
            found += rows
            if len(rows) == piece:
                pending = [*self._after(segment, rows[-1]), *pending]
        return found

    def _up_to(self, read: RangeRead, row: Row) -> RangeRead:
        """The part of a range up to a row's value of its next column: nothing beyond it was seen."""
        place, ascending = len(read.prefix), self._direction == "asc"
        if place == len(read.columns):
            return read
        optional = self._statements.definition.column(read.columns[place]).optional
        value = self._place_of(row)[place]
        if value is None:  # another program's column may be NULL that is not declared so, and is ordered otherwise
            return replace(read, prefix=(*read.prefix, None)) if ascending and optional else read
        bound = Bound(value, inclusive=True)
        if ascending:
            return replace(read, upper=bound)
        return replace(read, lower=bound, nulls=read.nulls and not optional)

    async def _rows(self, piece: int = _FIRST_PIECE, most: int | None = None) -> AsyncIterator[T]:
        read = kept = 0
        async for rows in self._pieces([self._segment], piece):
            for row in self._decode(rows):
                if kept == most:
                    break
                if self._is_allowed(row):
                    read += 1
                    if self._keeps(row):
                        kept += 1
                        yield row
            if kept == most:
                break
        if self._filters:
            practices.note_filter(self._table.__name__, read, kept)

    async def _pieces(
        self, segments: Sequence[Segment], piece: int, most: int | None = None, *, noted: bool = True
    ) -> AsyncIterator[Sequence[Row]]:
        """The rows of segments, or the first `most`, piece by piece."""
        pending = list(segments)
        while pending and most != 0:
            segment = pending.pop(0)
            limit = piece if most is None else min(piece, most)
            rows = await self._read(segment, limit, noted=noted)
            if len(rows) == limit:
                pending = [*self._after(segment, rows[-1]), *pending]
            yield rows
            piece = min(piece * 2, _LARGEST_PIECE)
            most = None if most is None else most - len(rows)

    @property
    def _in_python(self) -> bool:
        """Whether Python chooses among the rows that are read."""
        return bool(self._filters) or self._rule is not None

    def _is_allowed(self, row: T) -> bool:
        return self._rule is None or self._rule.allows(row)

    def _keeps(self, row: T) -> bool:
        return all(predicate(row) for predicate in self._filters)

    def _after(self, segment: Segment, row: Row) -> list[Segment]:
        if segment.null is not None:
            # a segment of NULLs, or of all that is not NULL: go on inside it
            place = len(segment.prefix)
            if segment.null:
                segment = segment._replace(prefix=(*segment.prefix, None), null=None)
            else:
                bound = Bound(self._place_of(row)[place], inclusive=True)
                lower, upper = (bound, None) if self._direction == "asc" else (None, bound)
                segment = segment._replace(lower=lower, upper=upper, null=None)
        return self._ordering().after(segment, self._place_of(row))

    def _decode(self, rows: Sequence[Row]) -> Iterable[T]:
        return cast("Iterable[T]", read_rows(self._statements, rows))

    async def _take(self, count: int) -> list[T]:
        if count == 0:
            return []
        if not self._in_python:
            return list(self._decode(await self._read_most(count)))
        return [row async for row in self._rows(max(count, _FIRST_PIECE), count)]

    async def _first(self) -> T | None:
        rows = await self._take(1)
        return rows[0] if rows else None

    async def _unique(self) -> T | None:
        rows = await self._take(2)
        if len(rows) > 1:
            raise NotUnique(
                f"Table {self._table.__name__}: unique() found more than one row.",
                fix="Narrow the query, or use first().",
            )
        return rows[0] if rows else None

    async def _collect(self) -> list[T]:
        if self._in_python:
            found = [row async for row in self._rows()]
        else:
            found = list(self._decode(await self._read_most(self._all_left)))
        practices.note_collect(self._table.__name__, len(found))
        return found

    @property
    def _all_left(self) -> int:
        """One row more than may still be read, so that exceeding the limit is noticed."""
        return self._transaction.rows_left + 1

    async def _paginate(self, options: PaginationOptions, number: int | None) -> Page[T]:
        """A page; its number is None if it does not keep its end."""
        transaction, statements = self._transaction, self._statements
        mark = fingerprint(statements.definition.name, self._index and self._index.name, self._segment, self._direction)
        cursor, end_cursor, was_short = options.cursor, options.end_cursor, False
        if end_cursor is None and number is not None and (before := transaction.end_of_page(number)) is not None:
            end_cursor, was_short = before.removesuffix(_SHORT), before.endswith(_SHORT)
        first = BEGINNING if cursor is None else self._place(cursor, mark)
        last = END if end_cursor is None else self._place(end_cursor, mark)
        # one row less than the transaction may read: another one tells whether rows follow
        left, room = max(1, transaction.rows_left - 1), int(transaction.bytes_left * _SPLIT_ABOVE)
        rows, size = min(options.maximum_rows_read or left, left), min(options.maximum_bytes_read or room, room)
        # a page that has an end is read to there, as clients show it joined with others
        most = (rows, size) if end_cursor is None else (left, room)
        wanted = options.num_items if end_cursor is None else None
        part = self._part(first, last)
        try:
            page, seen, following = await self._read_page(part, options.num_items, wanted, *most)
        except BaseException:
            self._note(part)
            raise
        cut = following is not None and end_cursor is not None
        short = (was_short and bool(seen)) or (following is not None and len(page) != wanted)  # a limit has ended it
        if end_cursor is None:
            last = END if following is None else self._place_of(seen[-1])
            end_cursor = self._cursor(mark, last)
        if number is not None:
            transaction.page_ends[number] = end_cursor + (_SHORT if short and not cut else "")
        # without the row that follows, this page would be the last one if it were asked for without its end
        known = last if following is None else self._place_of(following)
        self._note(part if cut else self._part(first, known))
        full = len(seen) > rows * _SPLIT_ABOVE or statements.bytes_of(seen) > size * _SPLIT_ABOVE
        middle = seen[(len(seen) - 1) // 2] if len(seen) > 1 or short else None
        return Page(
            page=page,
            is_done=last is END and not cut,
            continue_cursor=end_cursor,
            split_cursor=None if middle is None else self._cursor(mark, self._place_of(middle)),
            page_status="SplitRequired" if short else "SplitRecommended" if full else None,
        )

    async def _read_page(
        self, part: Sequence[Segment], likely: int, wanted: int | None, most_rows: int, most_bytes: int
    ) -> tuple[list[T], list[Row], Row | None]:
        """The rows of a page, all rows that it has read, and the one that follows in its part."""
        page, seen, size = list[T](), list[Row](), 0
        piece = min(self._statements.piece_rows(likely + 1), _LARGEST_PIECE)
        # Rows that Python hides from the caller end no page: its cursor would tell their values.
        most = most_rows + 1 if self._rule is None else None
        async for rows in self._pieces(part, piece, most, noted=False):
            all_fit = size + self._statements.bytes_of(rows) <= most_bytes
            for values, row in zip(rows, self._decode(rows), strict=True):
                if not self._is_allowed(row):
                    continue
                size += 0 if all_fit else self._statements.bytes_of((values,))
                if len(page) == wanted or len(seen) == most_rows or (seen and size > most_bytes):
                    return page, seen, values
                seen.append(values)
                if self._keeps(row):
                    page.append(row)
            size = self._statements.bytes_of(seen)
        return page, seen, None

    def _part(self, first: Place, last: Place) -> list[Segment]:
        """The rows after one place, up to another."""
        if first is END:
            return []
        if first == BEGINNING and last is END:
            return [self._segment]
        # a forged cursor moves inside its query only
        whole = self._segment._replace(within=self._segment)
        if last is END:
            return self._ordering().after(whole, first)
        if first == BEGINNING:
            return self._ordering().until(whole, last)
        return self._ordering().after_until(whole, first, last)

    def _place_of(self, row: Row) -> list[Any]:
        return self._statements.place_of(row, self._order)

    def _cursor(self, mark: str, place: Place) -> str:
        if place is END:
            return encode_cursor(mark, END)
        kinds = [self._statements.definition.column(name).kind for name in self._order]
        given = zip(kinds, place, strict=True)
        return encode_cursor(
            mark, [[value] if isinstance(value, OTHERS.get(kind, ())) else value for kind, value in given]
        )

    def _place(self, cursor: str, mark: str) -> Place:
        """The place of a cursor, its values as the store holds them."""
        columns = [self._statements.definition.column(name) for name in self._order]
        values = decode_cursor(cursor, mark, columns, self._statements.dialect)
        return END if values is END else [*self._segment.prefix, *values[len(self._segment.prefix) :]]

    async def _count(self) -> int:
        if self._in_python:
            return len([row async for row in self._rows()])
        return cast("int", await aggregate(self._aggregation(), "count"))

    async def _aggregate(self, what: str, column: str) -> Any:
        self._refuse_filter(what)
        return await aggregate(self._aggregation(), what, column)

    def _aggregation(self, columns: tuple[str, ...] = ()) -> Aggregated:
        return Aggregated(self._scope, self._statements, self._read_of(self._segment), self._segment, columns)

    def _refuse_filter(self, what: str) -> None:
        if self._filters:
            raise ValueInvalid(
                f"{what} runs in the database, which cannot run a Python filter.",
                fix="Narrow with with_index, or count in an async for.",
            )
