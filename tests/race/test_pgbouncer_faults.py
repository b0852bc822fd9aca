"""PgBouncer, or the server behind it, goes away under load: nothing is lost, and workers go on by themselves."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from stage import ledger
from stage.brokers import PgBouncer, pgbouncer
from stage.ledger import calls_are_kept, hear_again
from stage.server import Server, server
from stage.waits import SOON

from penstock.clock import SystemClock
from penstock.config import Config
from penstock.errors import TryAgain


@pytest.mark.parametrize(("what", "direct"), [("server", False), ("both", True)])
def test_a_restart_under_load_loses_nothing_that_was_acknowledged(what: str, direct: bool) -> None:
    async def story(own: Server, pooler: PgBouncer) -> None:
        await pooler.start()
        settings: dict[str, Any] = {"direct_database": own.url} if direct else {}

        async def disturb() -> None:
            if what != "server":
                await pooler.stop()
            if what != "pgbouncer":
                await own.restart()
            if what != "server":
                await pooler.start()

        async with (
            ledger.app.open(pooler.url, **settings) as front,
            ledger.app.open(pooler.url, services=("worker",), lease=5.0, **settings) as first,
            ledger.app.open(pooler.url, services=("worker",), lease=5.0, **settings) as second,
        ):
            await calls_are_kept(front, disturb)
            if direct:
                await hear_again(front, first, second)

    with server() as own, pgbouncer(own.url) as pooler:
        asyncio.run(story(own, pooler))


def test_a_pooler_that_is_away_is_waited_for_as_long_as_the_setting_says() -> None:
    async def story(pooler: PgBouncer) -> None:
        await pooler.start()
        async with ledger.app.open(pooler.url, database_wait=1.0) as backend:
            await pooler.stop()
            clock = SystemClock()
            for call in (
                lambda: backend.run_query(ledger.entries, what="x"),
                lambda: backend.run_mutation(ledger.enter, what="x"),
            ):
                before = clock.monotonic()
                with pytest.raises(TryAgain):
                    await call()
                assert clock.monotonic() - before < Config().database_wait
            await pooler.start()
            cast("Any", backend.engine.store)._connections.wait = SOON
            await backend.run_mutation(ledger.enter, what="after")
            assert await backend.run_query(ledger.entries, what="after") == [0]

    with server() as own, pgbouncer(own.url) as pooler:
        asyncio.run(story(pooler))
