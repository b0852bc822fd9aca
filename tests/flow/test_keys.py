"""Keys of work: tenants take turns, and of work with the same key there is only one."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from stage.guests import sqlite_file

from penstock import (
    ActionCtx,
    App,
    Canceled,
    DeclarationError,
    DuplicateJob,
    Finished,
    MutationCtx,
    Pending,
    Retry,
    Success,
    Table,
    UsageError,
    ValueInvalid,
    WorkId,
    WorkResult,
)
from penstock.testing import TestApp

MINUTE = timedelta(minutes=1)
app = OPENED = App()
fair = app.workpool("fair", max_parallelism=4, key_parallelism=2, default_retry=Retry(3, initial_backoff=1))
patient = app.workpool("patient", max_parallelism=1, ageing=MINUTE)

ran: list[str] = []
enqueued: list[str] = []
running: Counter[str] = Counter()
most: Counter[str] = Counter()
hold: list[asyncio.Event] = []
fail: list[Exception] = []


class Told(Table, name="told_of_keys"):
    what: str


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    for left in (ran, enqueued, running, most, hold, fail):
        left.clear()


@app.internal_action
async def serve(ctx: ActionCtx, tenant: str) -> str:
    ran.append(tenant)
    running[tenant] += 1
    most[tenant] = max(most[tenant], running[tenant])
    if hold:
        await hold[0].wait()
    running[tenant] -= 1
    if fail:
        raise fail.pop()
    return tenant


@app.internal_mutation
async def note(ctx: MutationCtx, what: str) -> None:
    ran.append(what)
    await ctx.db.insert(Told(what=what))


@app.internal_mutation
async def told(ctx: MutationCtx, work_id: WorkId, result: WorkResult[Any], context: str) -> None:
    ran.append(f"told {context}")
    assert await fair.with_options(key=context).enqueue(ctx, note, what="again") == work_id, "it has its key still"


@app.mutation
async def enqueue_once(ctx: MutationCtx, key: str, fails: bool = False) -> WorkId:
    work = await fair.with_options(key=key).enqueue(ctx, note, what=key)
    assert await fair.with_options(key=key).enqueue(ctx, note, what=key) == work
    assert await fair.status(ctx, work) == Pending(0)
    if fails:
        raise RuntimeError("never mind")
    return work


@app.mutation
async def enqueue_new(ctx: MutationCtx, key: str) -> WorkId:
    enqueued.append(key)
    return await fair.with_options(key=key).enqueue(ctx, note, what=key)


@app.mutation
async def cancel_and_enqueue(ctx: MutationCtx, old: WorkId, key: str, how: Any) -> WorkId:
    await fair.cancel(ctx, old)
    pool = fair.with_options(key=key, on_duplicate=how, run_after=MINUTE)
    new = await pool.enqueue(ctx, note, what=f"new of {key}")
    assert await fair.with_options(key=key).enqueue(ctx, note, what="newest") == new
    return new


def of(tenant: str, **options: Any) -> Any:
    return fair.with_options(concurrency_key=tenant, **options)


# ----- turns


async def test_a_tenant_with_much_work_does_not_starve_another(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await of("a").enqueue_batch(backend, serve, [{"tenant": "a"}] * 100)
        for tenant in "bc":
            await of(tenant).enqueue_batch(backend, serve, [{"tenant": tenant}] * 5)
        await backend.run_until_idle()
        assert Counter(ran) == {"a": 100, "b": 5, "c": 5}
        assert max(place for place, tenant in enumerate(ran) if tenant != "a") < 24
        assert max(most.values()) <= 2


async def test_old_work_overtakes_more_urgent_work_once_it_has_waited_long_enough(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await patient.enqueue(backend, note, what="old")
        backend.clock.advance(3 * MINUTE)
        await patient.with_options(priority=2).enqueue(backend, note, what="urgent")
        await patient.with_options(priority=5).enqueue(backend, note, what="very urgent")
        await backend.run_until_idle()
        assert ran == ["very urgent", "old", "urgent"]


# ----- one at a time


async def test_there_is_one_with_a_key_until_it_ends(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        with pytest.raises(RuntimeError):
            await backend.run_mutation(enqueue_once, key="k", fails=True)
        works = await asyncio.gather(*(backend.run_mutation(enqueue_once, key="k") for _ in range(8)))
        (work,) = set(works)
        once = fair.with_options(key="k")
        with pytest.raises(DuplicateJob, match="'k'") as refused:
            await once.with_options(on_duplicate="reject").enqueue(backend, note, what="third")
        assert refused.value.facts["job"] == work
        await backend.run_until_idle()
        assert ran == ["k"]
        assert await once.enqueue(backend, note, what="fourth") != work
        with pytest.raises(UsageError, match="one by one"):
            await once.enqueue_batch(backend, note, [{"what": "x"}])


async def test_work_with_different_keys_does_not_conflict(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        works = await asyncio.gather(*(backend.run_mutation(enqueue_new, key=f"k{number}") for number in range(50)))
        assert len(set(works)) == 50
        assert len(enqueued) == 50, "none ran again"
        await backend.run_until_idle()
        assert len(ran) == 50


async def test_a_key_whose_job_was_never_stored_is_free_after_a_minute(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(*_: object) -> None:
        raise ConnectionResetError("the program ends here")

    once = fair.with_options(key="k")
    async with TestApp(app, database_url) as backend:
        with closing(
            sqlite3.connect(sqlite_file(database_url), isolation_level=None)
            if database_url.startswith("sqlite")
            else psycopg.connect(database_url, autocommit=True)
        ) as own:
            with monkeypatch.context() as patch:
                patch.setattr(backend.engine.store.jobs, "enqueue", die)
                with pytest.raises(ConnectionResetError):
                    once.enqueue(own, note, what="lost")
            lost = await once.enqueue(backend, note, what="k")
            assert await fair.status(backend, lost) is None, "another program may be about to store it"
            backend.clock.advance(1.1 * MINUTE)
            works = await asyncio.gather(*(backend.run_mutation(enqueue_once, key="k") for _ in range(5)))
            assert {once.enqueue(own, note, what="k")} == set(works) != {lost}
        await backend.run_until_idle()
        assert ran == ["k"]


async def test_a_key_is_had_until_on_complete_has_run(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        pool = fair.with_options(key="k", on_complete=told, context="k")
        work = await pool.enqueue(backend, note, what="x")
        await backend.run_until_idle()
        assert ran == ["x", "told k"]
        work = await pool.enqueue(backend, note, what="y")
        await fair.cancel(backend, work)
        assert await fair.with_options(key="k").enqueue(backend, note, what="new") == work
        with pytest.raises(DuplicateJob):
            await fair.with_options(key="k", on_duplicate="replace").enqueue(backend, note, what="new")
        await backend.run_until_idle()
        assert ran == ["x", "told k", "told k"]
        assert await fair.with_options(key="k").enqueue(backend, note, what="z") != work


async def test_the_newest_comes_in_the_place_of_what_is_pending(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        latest = fair.with_options(key="k", on_duplicate="replace")
        works = [await latest.enqueue(backend, note, what=f"{number}") for number in range(3)]
        assert len(set(works)) == 1
        await backend.run_until_idle()
        assert ran == ["2"]
        hold.append(asyncio.Event())
        first: WorkId = await fair.with_options(key="k").enqueue(backend, note, what="never")
        assert await latest.enqueue(backend, serve, "runs") == first
        await backend.worker.tick()
        second = await latest.enqueue(backend, serve, "next")
        assert second != first, "what has started does not give way, and has its key as it asked itself"
        hold[0].set()
        await backend.run_until_idle()
        assert ran[1:] == ["runs", "next"]
        assert await fair.status(backend, second) == Finished(Success("next"))


async def test_debounced_work_starts_when_nothing_new_has_come_or_it_has_waited_long_enough(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        later = fair.with_options(key="k", on_duplicate="debounce", run_after=MINUTE)
        soon = fair.with_options(key="s", on_duplicate="debounce", run_after=MINUTE, max_wait=2.7 * MINUTE)
        for number in range(5):
            await later.enqueue(backend, note, what=f"{number}")
            await soon.enqueue(backend, note, what=f"soon {number}")
            backend.clock.advance(0.9 * MINUTE)
            await backend.run_until_idle(advance=False)
        assert ran == ["soon 2"], "that of 1.8 minutes, after 2.7 of them"
        backend.clock.advance(0.1 * MINUTE)
        await backend.run_until_idle(advance=False)
        assert ran[1:2] == ["4"]


async def test_new_work_is_none_that_is_to_be_canceled(database_url: str) -> None:
    hows: list[Any] = ["return", "reject", "replace", "debounce"]
    async with TestApp(app, database_url) as backend:
        pairs = list[WorkId]()
        for how in hows:
            for together in (False, True):
                key = f"{how} {together}"
                pool = fair.with_options(key=key, on_duplicate=how, run_after=MINUTE)
                old = await pool.enqueue(backend, note, what="old")
                if together:
                    new = await backend.run_mutation(cancel_and_enqueue, old, key, how)
                else:
                    await fair.cancel(backend, old)
                    new = await pool.enqueue(backend, note, what=f"new of {key}")
                pairs += [old, new]
        await backend.run_until_idle()
        assert len(ran) == len(set(ran)) == 2 * len(hows)
        assert await fair.status_batch(backend, pairs) == [Finished(Canceled()), Finished(Success(None))] * 8


def test_options_that_cannot_be_are_refused() -> None:
    refused: list[tuple[type[Exception], dict[str, Any]]] = [
        (ValueInvalid, {"key": ""}),
        (ValueInvalid, {"key": 7}),
        (ValueInvalid, {"key": "x" * 201}),
        (ValueInvalid, {"key": "a\0b"}),
        (ValueInvalid, {"concurrency_key": "\udfff"}),
        (ValueInvalid, {"key": "k", "on_duplicate": "ignore"}),
        (UsageError, {"on_duplicate": "reject"}),
        (UsageError, {"max_wait": MINUTE}),
        (UsageError, {"key": "k", "on_duplicate": "debounce"}),
        (UsageError, {"key": "k", "on_duplicate": "replace", "max_wait": MINUTE}),
    ]
    for error, options in refused:
        with pytest.raises(error):
            fair.with_options(**options)
    declared: list[dict[str, Any]] = [
        {"key_parallelism": 0}, {"key_parallelism": True}, {"rate_limit": 5}, {"key_rate_limit": "1/s"},
        {"group": ""}, {"ageing": timedelta(0)}, {"ageing": timedelta(days=3000)},
    ]  # fmt: skip
    for options in declared:
        with pytest.raises(DeclarationError):
            App().workpool("p", **options)
