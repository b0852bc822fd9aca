"""Who looks at a PostgreSQL server, and ends the connections of others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from stage.waits import until


@asynccontextmanager
async def administrator(url: str) -> AsyncIterator[Any]:
    """A connection beside those of penstock."""
    connection = await asyncpg.connect(url, server_settings={"application_name": "administrator"})
    try:
        yield connection
    finally:
        await connection.close()


async def end_all_connections(admin: Any) -> None:
    """End every connection of penstock's to this database, and wait until they are gone; it may have others by then."""
    mine = "where datname = current_database() and application_name = 'penstock'"
    ended = await admin.fetch(f"select pid, pg_terminate_backend(pid) from pg_stat_activity {mine}")

    async def gone() -> bool:
        pids = [row["pid"] for row in ended]
        return bool(await admin.fetchval("select count(*) = 0 from pg_stat_activity where pid = any($1)", pids))

    await until(gone)
