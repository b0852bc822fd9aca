"""The part that text search and vector search share: changes that an index has not read, and values of filters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from penstock.changes.position import Position
from penstock.changes.searches import TableSearch
from penstock.errors import SearchNotReady, ValueInvalid
from penstock.reactive.evaluate import normal_value
from penstock.schema.table import TableDefinition
from penstock.transaction.transaction import Transaction

Item = TypeVar("Item")

MOST_UNREAD = 4096  # changed rows that a search reads by itself
PIECE = 256


async def find_unread(transaction: Transaction, search: TableSearch) -> tuple[int, Collection[str | None]]:
    """The number of an index, and the keys of rows whose changes it has not read; None for all rows.

    Raises:
        SearchNotReady: It is being filled, or is behind.
    """
    store = transaction.store
    state = await store.searches.find(transaction, search)
    if state is None or state.interest is None or state.position is None or state.cursor is not None:
        raise _not_ready(transaction, _not_filled(search))
    unread = await store.changes.list_unread(transaction, Position.parse(state.position), state.interest, MOST_UNREAD)
    if unread is None:
        raise _not_ready(transaction, _behind(search))
    return state.id, unread


def filter_value(definition: TableDefinition, name: str, value: Any) -> Any:
    """The value of a filter, in the form of `reactive.evaluate`."""
    column = definition.column(name)
    try:
        found = None if value is None else normal_value(column.kind, column.encode(column.check(value)))
    except (ValueError, TypeError, AttributeError):
        found = None
    if found is None and value is not None:
        raise ValueInvalid(f"{definition.name}.{name}: this {type(value).__name__} is not a value of its column.")
    return found


def is_spelled(key: Iterable[Any], wanted: Iterable[Any]) -> bool:
    """Whether a row that was found by a key has this key itself, and none that its collation takes for equal."""
    return all(
        own == one for own, one in zip(key, wanted, strict=True) if isinstance(own, str) and isinstance(one, str)
    )


def pieces(items: Sequence[Item], size: int = PIECE) -> Iterator[Sequence[Item]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]


def _not_ready(transaction: Transaction, error: SearchNotReady) -> SearchNotReady:
    """Note that no change of a row will tell when the index is ready, as a query may catch the error."""
    transaction.read_set.untold = True
    return error


def _not_filled(search: TableSearch) -> SearchNotReady:
    return SearchNotReady(
        f"Search index {search.name} is not filled yet.",
        fix="Run penstock migrate, which waits for that; or try again while a process runs the services.",
    )


def _behind(search: TableSearch) -> SearchNotReady:
    return SearchNotReady(
        f"Search index {search.name} is behind: more than {MOST_UNREAD} rows have changed since it was written.",
        fix="Try again. If this lasts, check that a process runs the services, such as penstock worker. If a mutation "
        "itself has changed so many, search in the next one.",
    )
