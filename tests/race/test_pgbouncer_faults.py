"""PgBouncer, or the server behind it, goes away under load: nothing is lost, and workers go on by themselves."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from programs import ledger
from programs.ledger import calls_are_kept, hear_again
from stage.postgres import Server, server
from stage.servers import PgBouncer, pgbouncer
from stage.waits import until

from penstock import App, JobId, MutationCtx, Table
from penstock.calls.workflows.context import WorkflowCtx
from penstock.testing import TestApp


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


class Sent(Table):
    number: int


sending = App()
said = sending.event("said", int)
senders: list[int] = []
tokens: list[str] = []


@sending.workflow
async def hear_all(ctx: WorkflowCtx) -> list[int]:
    tokens[:] = [ctx.event_token(said, timedelta(hours=1)) for _ in range(4)]
    return sorted([await ctx.wait_for(said) for _ in range(4)])


@sending.mutation
async def say(ctx: MutationCtx, run: JobId, number: int, by_token: bool) -> None:
    await ctx.db.insert(Sent(number=number))
    senders.append(number)
    await until(lambda: len(set(senders)) == 4)
    if by_token:
        await said.redeem(ctx, tokens[number], number)
    else:
        await said.send(ctx, run, number)


@pytest.mark.parametrize("by_token", [False, True])
async def test_senders_of_events_that_hold_all_four_connections_do_not_wait_for_each_other(
    pooled_url: str, by_token: bool
) -> None:
    senders.clear()
    async with TestApp(sending, pooled_url) as backend:
        run = await backend.scheduler.run_after(timedelta(0), hear_all)
        await backend.run_until_idle(advance=False)
        await asyncio.gather(*(backend.run_mutation(say, run, number, by_token) for number in range(4)))
        await backend.run_until_idle()
        status = await backend.job(run)
        assert status is not None
        assert status.result == [0, 1, 2, 3]
