"""Schema pushes as tests tell them: stores that are closed at the end of a story, and one push in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock import Table
from penstock.schema.table import definition_of
from penstock.store.push import migrate
from penstock.store.store import Store


@asynccontextmanager
async def closing(*stores: Store) -> AsyncIterator[None]:
    """Close the stores at the end, in the event loop that has used them."""
    try:
        yield
    finally:
        for store in stores:
            await store.close()


async def push(store: Store, *tables: type[Table], apply: bool = True) -> migrate.Plan:
    """Push tables."""
    return await migrate.push(store, [definition_of(table) for table in tables], apply=apply)
