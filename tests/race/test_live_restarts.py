"""PostgreSQL goes away under those who watch: nobody is told, and then they see what is there now."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import asyncpg
import pytest
from stage.logs import events
from stage.server import server
from stage.waits import SOON, until

from penstock import App, Id, MutationCtx, QueryCtx, Table
from penstock.app import Backend
from penstock.errors import TryAgain
from penstock.live.view import Step, View

app = App()
_FORGETS = "synchronous_commit = off\nwal_writer_delay = 10s\nwal_writer_flush_after = 1GB\n"


class Account(Table):
    amount: int


class Held:
    """Lets slow queries go on."""

    begun = asyncio.Event()
    opened = asyncio.Event()


@app.query
async def quick(ctx: QueryCtx, key: str) -> int:
    row = await ctx.db.get(Account, Id(key))
    return 0 if row is None else row.amount


@app.query
async def slow(ctx: QueryCtx, key: str) -> int:
    Held.begun.set()
    await Held.opened.wait()
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
        self.view.add(0, quick, {"key": keys[0]})
        self.view.add(1, slow, {"key": keys[1]})

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


@pytest.mark.long
@pytest.mark.parametrize("held", [False, True], ids=["at rest", "during a late query"])
async def test_who_watches_sees_one_snapshot_again_after_the_server_was_away(
    held: bool, caplog: pytest.LogCaptureFixture
) -> None:
    Held.begun, Held.opened = asyncio.Event(), asyncio.Event()
    Held.opened.set()
    with server() as own:
        async with app.open(own.url) as backend:
            keys = await backend.run_mutation(put)
            client = Client(backend, keys)
            await client.sees(50, 50)
            if held:
                Held.opened.clear()
                Held.begun.clear()
                await backend.run_mutation(transfer, one=keys[0], two=keys[1], by=10)
                await Held.begun.wait()
            await own.stop()
            Held.opened.set()
            await until(lambda: backend.live_queries._errors > 3)
            step = client.view.step()
            assert step is None or not step.answers
            await own.start()
            await anyhow(backend, keys, 20)
            await client.sees(*((20, 80) if held else (30, 70)))
            await backend.run_mutation(transfer, one=keys[0], two=keys[1], by=1)
            await client.sees(*((19, 81) if held else (29, 71)))
            told = len(events(caplog, "live.tick_failed"))
            assert 1 <= told <= 2, "once, and once more if a connection outlived the first one as the server stopped"
            before = client.clock
        async with app.open(own.url) as backend:
            client = Client(backend, keys)
            client.clock = before
            await client.sees(*((19, 81) if held else (29, 71)))


async def test_answers_of_lost_commits_do_not_stay_and_the_clock_does_not_fall() -> None:
    """Other transactions get their numbers then, so the feed cannot tell."""
    Held.begun, Held.opened = asyncio.Event(), asyncio.Event()
    Held.opened.set()
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
