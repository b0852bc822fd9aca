"""Seats, and a query that counts them; `python -m stage.seats watch <url>` watches it and says each answer."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stage.reactive import Stage
from stage.watching import settle, watched

from penstock import Index, QueryCtx, Table
from penstock.changes.demand import Demands
from penstock.live.entry import Entry
from penstock.services.live.live import LiveQueries
from penstock.testing import TestApp

ROOM = 30


class Seat(Table):
    row: int = 0

    by_row = Index("row")


class Other(Table):
    note: str = ""


class Theatre(Stage):
    def __init__(self) -> None:
        super().__init__(Seat, Other)

        @self.app.query
        async def count(ctx: QueryCtx) -> int:
            return await ctx.db.query(Seat).count()

        self.count = count

    def watching(self, test: TestApp) -> tuple[LiveQueries, Entry]:
        live = LiveQueries(test.runner, self.app.definitions())
        return live, watched(live, self.count)

    @asynccontextmanager
    async def captured(self, url: str) -> AsyncIterator[tuple[TestApp, LiveQueries, Entry]]:
        async with self.open(url) as test:
            live, entry = self.watching(test)
            await settle(live)
            await settle(live)
            yield test, live, entry


def insert(name: str) -> str:
    return f"insert into seat (id, creation_time, row) values ('{name}', '2030-01-01T00:00:00.000000Z', 0)"


async def watch(url: str) -> None:
    Demands.room = ROOM
    stage = Theatre()
    async with stage.app.open(url) as backend:
        async for answer in backend.live(stage.count):
            print(answer, flush=True)  # noqa: T201 - the test reads it


if __name__ == "__main__":
    asyncio.run(watch(sys.argv[2]))
