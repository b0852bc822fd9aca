"""PostgreSQL goes away under those who watch: nobody is told, and then they see what is there now."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import asyncpg
from stage.postgres import server
from stage.waits import SOON, until

from penstock import App, Id, MutationCtx, QueryCtx, Table
from penstock.app import Backend
from penstock.errors import TryAgain
from penstock.live.view import Step, View

app = App()
_FORGETS = "synchronous_commit = off\nwal_writer_delay = 10s\nwal_writer_flush_after = 1GB\n"


class Account(Table):
    amount: int


@app.query
async def quick(ctx: QueryCtx, key: str) -> int:
    row = await ctx.db.get(Account, Id(key))
    return 0 if row is None else row.amount


@app.mutation
async def put(ctx: MutationCtx) -> list[str]:
    return [await ctx.db.insert(Account(amount=50)) for _ in range(2)]


@app.mutation
async def transfer(ctx: MutationCtx, one: str, two: str, by: int) -> None:
    for key, change in ((one, -by), (two, by)):
        row = await ctx.db.get(Account, Id(key))
        assert row is not None
        await ctx.db.patch(Account, row.id, amount=row.amount + change)


class Client:
    """What a client has seen; it checks that this is of one snapshot, and that its clock does not fall."""

    def __init__(self, backend: Backend, keys: list[str]) -> None:
        self.view: View = backend.live_queries.view()
        self.seen: dict[int, Any] = {}
        self.clock = 0
        for number, key in enumerate(keys):
            self.view.add(number, quick, {"key": key})

    async def sees(self, *amounts: int) -> None:
        async with asyncio.timeout(SOON):
            while list(self.seen.values()) != [*amounts]:
                while (step := self.view.step()) is None:
                    await self.view.moved.wait()
                self.take(step)

    def take(self, step: Step) -> None:
        self.seen.update((number, one.result) for number, one in sorted(step.answers.items()))
        assert sum(self.seen.values()) == 100
        assert step.tick.clock >= self.clock
        self.clock = step.tick.clock


async def anyhow(backend: Backend, keys: list[str], by: int) -> None:
    """Transfer once the server is there again."""

    async def is_done() -> bool:
        with suppress(TryAgain):
            await backend.run_mutation(transfer, one=keys[0], two=keys[1], by=by)
            return True
        return False

    await until(is_done)


async def test_answers_of_lost_commits_do_not_stay_and_the_clock_does_not_fall() -> None:
    """Other transactions get their numbers then, so the feed cannot tell."""
    with server(_FORGETS) as own:
        async with app.open(own.url) as backend:
            keys = await backend.run_mutation(put)
            connection = await asyncpg.connect(own.url)
            client = Client(backend, keys)
            await client.sees(50, 50)
            await backend.run_mutation(transfer, one=keys[0], two=keys[1], by=5)
            await client.sees(45, 55)
            await connection.execute("checkpoint")
            for by in (10, 1):
                await backend.run_mutation(transfer, one=keys[0], two=keys[1], by=by)
            await client.sees(34, 66)
            clock = client.clock
            await own.crash()
            await until(connection.is_closed)
            await anyhow(backend, keys, 0)
            now = [await backend.run_query(quick, key=key) for key in keys]
            assert now in ([45, 55], [34, 66]), "they are lost, unless something had them written meanwhile"
            await client.sees(*now)
            await anyhow(backend, keys, 20)
            await client.sees(now[0] - 20, now[1] + 20)
        await own.restart()
        async with app.open(own.url) as backend:
            again = backend.live_queries.view()
            number = again.expect()
            async with asyncio.timeout(SOON):
                while (step := again.step()) is None or step.tick.number < number:
                    await again.moved.wait()
            assert step.tick.clock >= clock
