"""Schema pushes as tests tell them: a story on stores that are closed at its end, and one push in it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from penstock import Table
from penstock.schema.table import definition_of
from penstock.store.push import migrate
from penstock.store.store import Store


def tell(story: Coroutine[Any, Any, None], *stores: Store) -> None:
    """Run a story, and close the stores."""

    async def main() -> None:
        try:
            await story
        finally:
            for store in stores:
                await store.close()

    asyncio.run(main())


async def push(store: Store, *tables: type[Table], apply: bool = True) -> migrate.Plan:
    """Push tables."""
    return await migrate.push(store, [definition_of(table) for table in tables], apply=apply)
