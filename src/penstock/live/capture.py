"""What live queries have captured of each table: enough to tell which ranges a changed row lies in."""

from __future__ import annotations

from penstock.changes.interest import Interest
from penstock.schema.table import TableDefinition


def live_interest(definition: TableDefinition) -> Interest:
    """The interest of all live queries in a table."""
    orders = [definition.order_of(index) for index in (None, *definition.indexes.values())]
    columns = tuple(dict.fromkeys(name for order in orders for name in order))
    return Interest(
        name=f"live {definition.name}", table=definition.name, key=definition.key, before=columns, after=columns
    )
