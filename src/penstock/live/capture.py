"""The interest of live queries in a table: the columns by which rows are looked up."""

from __future__ import annotations

from penstock.changes.interest import Interest
from penstock.schema.table import TableDefinition
from penstock.search.vectors import VectorIndex


def live_interest(definition: TableDefinition) -> Interest:
    """The interest of all live queries in a table."""
    orders = [definition.order_of(index) for index in (None, *definition.indexes.values())]
    # Vectors are large, and only filters tell whether a search may find a row.
    orders += [
        one.filters if isinstance(one, VectorIndex) else (one.column, *one.filters)
        for one in definition.searches.values()
    ]
    columns = tuple(dict.fromkeys(name for order in orders for name in order))
    return Interest(
        name=f"live {definition.name}",
        table=definition.name,
        key=definition.key,
        before=columns,
        after=columns,
        on_demand=True,
    )
