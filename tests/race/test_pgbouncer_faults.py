"""PgBouncer, or the server behind it, goes away under load: nothing is lost, and workers go on by themselves."""

from __future__ import annotations

import asyncio
from typing import Any

from programs import ledger
from programs.ledger import calls_are_kept, hear_again
from stage.postgres import Server, server
from stage.servers import PgBouncer, pgbouncer


def test_a_restart_under_load_loses_nothing_that_was_acknowledged() -> None:
    async def story(own: Server, pooler: PgBouncer) -> None:
        await pooler.start()
        settings: dict[str, Any] = {"direct_database": own.url}

        async def disturb() -> None:
            await pooler.stop()
            await own.restart()
            await pooler.start()

        async with (
            ledger.app.open(pooler.url, **settings) as front,
            ledger.app.open(pooler.url, services=("worker",), lease=5.0, **settings) as first,
            ledger.app.open(pooler.url, services=("worker",), lease=5.0, **settings) as second,
        ):
            await calls_are_kept(front, disturb)
            await hear_again(front, first, second)

    with server() as own, pgbouncer(own.url) as pooler:
        asyncio.run(story(own, pooler))
