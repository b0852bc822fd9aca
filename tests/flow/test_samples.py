"""How much work waits: counted once a minute by one process of many, and by none while nothing waits."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock import ActionCtx, App, MutationCtx, Table
from penstock.services.logbook import LogbookWriter
from penstock.testing import TestApp, TestClock

app = App()
pool = app.workpool("sampled", max_parallelism=1)
MINUTE = timedelta(minutes=1)


class Parcel(Table, name="parcel_of_samples"):
    weight: int


@app.internal_action
async def weigh(ctx: ActionCtx) -> None: ...


@app.outbox(Parcel)
async def announce(ctx: ActionCtx, parcel: Parcel) -> None: ...


@app.mutation
async def insert(ctx: MutationCtx) -> None:
    await ctx.db.insert(Parcel(weight=1))


@pytest.mark.both_stores
async def test_one_process_counts_what_waits_and_none_counts_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogbookWriter, "start", lambda _writer: None)  # those below tick by hand
    clock = TestClock()
    async with TestApp(app, database_url, clock=clock) as one, TestApp(app, database_url, clock=clock) as other:
        writers, begun, logbook = (
            [LogbookWriter(each.engine) for each in (one, other)],
            clock.now(),
            one.engine.store.logbook,
        )

        async def look() -> dict[str, dict[str, float]]:
            """Let a minute pass, and both processes act in turn."""
            clock.advance(MINUTE)
            for writer in writers:
                await writer.tick()
            names = "jobs", "pool sampled", "pool default", f"outbox {__name__.rpartition('.')[2]}:announce"
            return {name: next(iter(await logbook.series(name, begun, 60 * MINUTE)), {}) for name in names}

        assert not any("samples" in found for found in (await look()).values()), "nothing waits"
        for _ in range(3):
            await pool.enqueue(one, weigh)
        await one.run_mutation(insert)
        await look()
        await look()
        jobs, sampled, default, messages = (await look()).values()
        assert jobs["samples"] == sampled["samples"] == messages["samples"] == 3, "of two processes one counts"
        assert (jobs["ready"], sampled["ready"], messages["ready"]) == (9, 9, 3)
        assert sampled["oldest"] == jobs["oldest"] == 60 + 120 + 180
        assert "samples" not in default
