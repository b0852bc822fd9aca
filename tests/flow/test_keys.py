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
    JobId,
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
from penstock.store.nouns.keys import Keys
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

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
async def cancel_and_enqueue(ctx: MutationCtx, old: WorkId, how: Any) -> WorkId:
    await fair.cancel(ctx, old)
    pool = fair.with_options(key="k", on_duplicate=how, run_after=MINUTE)
    new = await pool.enqueue(ctx, note, what="new")
    assert await fair.with_options(key="k").enqueue(ctx, note, what="newest") == new
    return new


def of(tenant: str, **options: Any) -> Any:
    return fair.with_options(concurrency_key=tenant, **options)


# ----- turns


async def test_a_tenant_with_much_work_does_not_starve_another(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await of("a").enqueue_batch(backend, serve, [{"tenant": "a"}] * 200)
        for tenant in "bc":
            await of(tenant).enqueue_batch(backend, serve, [{"tenant": tenant}] * 5)
        await backend.run_until_idle()
        assert Counter(ran) == {"a": 200, "b": 5, "c": 5}
        assert max(place for place, tenant in enumerate(ran) if tenant != "a") < 24
        assert max(most.values()) <= 2


async def test_retries_keep_within_the_limit_of_their_key(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        fail.extend([OSError("down")] * 6)
        await of("a", retry=True).enqueue_batch(backend, serve, [{"tenant": "a"}] * 6)
        await backend.run_until_idle()
        assert len(ran) == 12
        assert most["a"] <= 2


async def test_as_many_of_a_key_run_at_once_as_may(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        hold.append(asyncio.Event())
        await of("a").enqueue_batch(backend, serve, [{"tenant": "a"}] * 6)
        for _ in range(3):
            await backend.worker.tick()
        assert len(backend.worker.running) == 2
        await of("b").enqueue_batch(backend, serve, [{"tenant": "b"}] * 6)
        for _ in range(3):
            await backend.worker.tick()
        assert len(backend.worker.running) == 4, "the places that one key may not use are for others"
        hold[0].set()
        await backend.run_until_idle()
        assert most["a"] == 2
        assert most["b"] <= 2


async def test_work_at_the_gate_is_canceled_and_the_pool_paused(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        works = await of("a").enqueue_batch(backend, serve, [{"tenant": "a"}] * 3)
        await fair.pause(backend)
        await backend.run_until_idle()
        assert ran == []
        await fair.cancel(backend, works[0])
        await fair.resume(backend)
        await backend.run_until_idle()
        assert await fair.status(backend, works[0]) == Finished(Canceled())
        assert ran == ["a", "a"]
        await of("a", run_after=MINUTE).enqueue(backend, serve, "a")
        await of("a").enqueue_batch(backend, serve, [{"tenant": "a"}] * 3)
        assert await fair.cancel_all(backend) == 4
        await backend.run_until_idle()
        assert ran == ["a", "a"]


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
        once = fair.with_options(key="k")
        work = await once.enqueue(backend, note, what="first")
        assert await once.enqueue(backend, note, what="second") == work
        with pytest.raises(DuplicateJob, match="'k'") as refused:
            await once.with_options(on_duplicate="reject").enqueue(backend, note, what="third")
        assert refused.value.facts["job"] == work
        await backend.run_until_idle()
        assert ran == ["first"]
        assert await once.enqueue(backend, note, what="fourth") != work


async def test_a_transaction_that_fails_leaves_the_key_free(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        with pytest.raises(RuntimeError):
            await backend.run_mutation(enqueue_once, key="k", fails=True)
        await backend.run_mutation(enqueue_once, key="k")
        await backend.run_until_idle()
        assert ran == ["k"]


async def test_of_many_at_once_one_enqueues(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        works = await asyncio.gather(*(backend.run_mutation(enqueue_once, key="k") for _ in range(8)))
        assert len(set(works)) == 1
        await backend.run_until_idle()
        assert ran == ["k"]


async def test_work_with_different_keys_does_not_conflict(
    database_url: str,
) -> None:
    async with TestApp(app, database_url) as backend:
        works = await asyncio.gather(*(backend.run_mutation(enqueue_new, key=f"k{number}") for number in range(100)))
        assert len(set(works)) == 100
        assert len(enqueued) == 100, "none ran again"
        await backend.run_until_idle()
        assert len(ran) == 100


async def test_a_key_whose_job_was_never_stored_is_free_after_a_minute(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(*_: object) -> None:
        raise ConnectionResetError("the program ends here")

    async with TestApp(app, database_url) as backend:
        works: list[WorkId] = []
        lite = database_url.startswith("sqlite")
        with closing(
            sqlite3.connect(sqlite_file(database_url), isolation_level=None)
            if lite
            else psycopg.connect(database_url, autocommit=True)
        ) as own:
            once = fair.with_options(key="k")
            with monkeypatch.context() as patch:
                patch.setattr(backend.engine.store.jobs, "enqueue", die)
                with pytest.raises(ConnectionResetError):
                    once.enqueue(own, note, what="lost")
            lost = await once.enqueue(backend, note, what="k")
            assert await fair.status(backend, lost) is None, "another program may be about to store it"
            backend.clock.advance(1.1 * MINUTE)
            works += await asyncio.gather(*(backend.run_mutation(enqueue_once, key="k") for _ in range(5)))
            works.append(once.enqueue(own, note, what="k"))
        assert len(set(works)) == 1
        assert lost not in works
        await backend.run_until_idle()
        assert ran == ["k"]


async def test_a_key_without_a_job_that_two_find_is_free_for_the_second_too(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In transactions of weaker isolation; on SQLite the second one looks when the first has ended."""

    async def die(*_: object) -> None:
        raise ConnectionResetError("the program ends here")

    async with TestApp(app, postgres_url) as backend:
        once = fair.with_options(key="k", on_duplicate="reject")
        with closing(psycopg.connect(postgres_url, autocommit=True)) as own:
            with monkeypatch.context() as patch:
                patch.setattr(backend.engine.store.jobs, "enqueue", die)
                with pytest.raises(ConnectionResetError):
                    once.enqueue(own, note, what="lost")
            backend.clock.advance(1.1 * MINUTE)
            fetch = Keys._fetch

            async def overtaken(self: Keys, transaction: Any, name: str, **values: Any) -> Any:
                found = await fetch(self, transaction, name, **values)
                if name == "lost":  # now another one frees the key, whose transaction does not come to an end
                    assert found
                    with closing(psycopg.connect(postgres_url)) as other, other.transaction():
                        other.execute("delete from penstock.job_key")
                return found

            monkeypatch.setattr(Keys, "_fetch", overtaken)
            once.enqueue(own, note, what="k")
        await backend.run_until_idle()
        assert ran == ["k"]


async def test_what_is_tried_again_keeps_its_key(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        fail.append(OSError("down"))
        work = await of("a", key="k", retry=True).enqueue(backend, serve, "a")
        await backend.run_until_idle(advance=False)
        assert await fair.status(backend, work) == Pending(1)
        assert await fair.with_options(key="k").enqueue(backend, serve, "b") == work
        with pytest.raises(DuplicateJob):
            await fair.with_options(key="k", on_duplicate="replace").enqueue(backend, serve, "b")
        await backend.run_until_idle()
        assert ran == ["a", "a"]


async def test_a_key_is_had_until_on_complete_has_run(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        pool = fair.with_options(key="k", on_complete=told, context="k")
        work = await pool.enqueue(backend, note, what="x")
        await backend.run_until_idle()
        assert ran == ["x", "told k"]
        work = await pool.enqueue(backend, note, what="y")
        await fair.cancel(backend, work)
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
        first = await latest.enqueue(backend, serve, "runs")
        await backend.worker.tick()
        second = await latest.enqueue(backend, serve, "next")
        assert second != first, "what has started does not give way"
        hold[0].set()
        await backend.run_until_idle()
        assert ran[1:] == ["runs", "next"]
        assert await fair.status(backend, second) == Finished(Success("next"))


async def test_debounced_work_starts_when_nothing_new_has_come(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        later = fair.with_options(key="k", on_duplicate="debounce", run_after=MINUTE)
        for number in range(5):
            await later.enqueue(backend, note, what=f"{number}")
            backend.clock.advance(0.9 * MINUTE)
            await backend.run_until_idle(advance=False)
        assert ran == []
        backend.clock.advance(0.1 * MINUTE)
        await backend.run_until_idle(advance=False)
        assert ran == ["4"]


async def test_debounced_work_is_put_off_no_longer_than_allowed(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        later = fair.with_options(key="k", on_duplicate="debounce", run_after=MINUTE, max_wait=2 * MINUTE)
        for number in range(5):
            await later.enqueue(backend, note, what=f"{number}")
            backend.clock.advance(0.5 * MINUTE)
            await backend.run_until_idle(advance=False)
        assert ran == ["3"], "that of 1.5 minutes, after 2 of them"


@pytest.mark.parametrize("how", ["return", "reject", "replace", "debounce"])
@pytest.mark.parametrize("together", [False, True])
async def test_new_work_is_none_that_is_to_be_canceled(database_url: str, how: Any, together: bool) -> None:
    async with TestApp(app, database_url) as backend:
        pool = fair.with_options(key="k", on_duplicate=how, run_after=MINUTE)
        old = await pool.enqueue(backend, note, what="old")
        if together:
            new = await backend.run_mutation(cancel_and_enqueue, old, how)
        else:
            await fair.cancel(backend, old)
            new = await pool.enqueue(backend, note, what="new")
        await backend.run_until_idle()
        assert ran == ["new"]
        assert await fair.status_batch(backend, [old, new]) == [Finished(Canceled()), Finished(Success(None))]


@pytest.mark.parametrize("how", ["return", "replace"])
async def test_of_canceled_work_whose_on_complete_is_to_run_nothing_comes_in_the_place(
    database_url: str, how: Any
) -> None:
    async with TestApp(app, database_url) as backend:
        old = await fair.with_options(key="k", on_complete=told, context="k").enqueue(backend, note, what="old")
        await fair.cancel(backend, old)
        pool = fair.with_options(key="k", on_duplicate=how)
        if how == "return":
            assert await pool.enqueue(backend, note, what="new") == old
        else:
            with pytest.raises(DuplicateJob):
                await pool.enqueue(backend, note, what="new")
        await backend.run_until_idle()
        assert ran == ["told k"]


async def test_what_is_put_in_the_place_of_other_work_has_the_key_as_it_asks_itself(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        hold.append(asyncio.Event())
        first: JobId = await fair.with_options(key="k").enqueue(backend, note, what="never")
        later = fair.with_options(key="k", on_duplicate="debounce", run_after=MINUTE)
        assert await later.enqueue(backend, serve, "debounced") == first
        backend.clock.advance(MINUTE)
        for _ in range(2):
            await backend.worker.tick()
        assert len(backend.worker.running) == 1
        second = await later.enqueue(backend, serve, "next")
        assert second != first, "the first has started"
        hold[0].set()
        await backend.run_until_idle()
        assert ran == ["debounced", "next"]


@pytest.mark.parametrize(
    "options",
    [
        {"key": ""},
        {"key": 7},
        {"key": "x" * 201},
        {"key": "a\0b"},
        {"key": "\ud800"},
        {"concurrency_key": "\udfff"},
        {"key": "k", "on_duplicate": "ignore"},
        {"key": "k", "on_duplicate": "debounce", "run_after": MINUTE, "max_wait": timedelta(0)},
    ],
)
def test_options_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(ValueInvalid):
        fair.with_options(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"on_duplicate": "reject"},
        {"max_wait": MINUTE},
        {"key": "k", "on_duplicate": "debounce"},
        {"key": "k", "on_duplicate": "replace", "max_wait": MINUTE},
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        fair.with_options(**options)


@pytest.mark.parametrize(
    "declared",
    [
        {"key_parallelism": 0},
        {"key_parallelism": True},
        {"rate_limit": 5},
        {"key_rate_limit": "1/s"},
        {"group": ""},
        {"ageing": timedelta(0)},
        {"ageing": timedelta(days=3000)},
    ],
)
def test_pools_that_cannot_be(declared: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError):
        App().workpool("p", **declared)


async def test_a_batch_has_no_key(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        with pytest.raises(UsageError, match="one by one"):
            await fair.with_options(key="k").enqueue_batch(backend, note, [{"what": "x"}])
