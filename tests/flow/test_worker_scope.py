"""Workers that run only what they were told to: the names, what stays for others, and what nobody runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import pytest
from stage.waits import until

from penstock import ActionCtx, App, ConfigError, MutationCtx, Table, TaskCtx, WorkId
from penstock.functions.scope import EVERYTHING, Scope, Work, scope_of
from penstock.services.relay.relay import Relay
from penstock.services.scheduler import CronScheduler
from penstock.services.service import SERVICES
from penstock.services.worker.worker import Worker
from penstock.store.nouns.leases import list_unserved
from penstock.store.session import reading
from penstock.testing import TestApp

app = App()
video = app.workpool("video", max_parallelism=4, key_parallelism=1)
mail = app.workpool("mail", max_parallelism=4)
RAN: list[str] = []


class Film(Table, name="film_of_scopes"):
    name: str


@app.internal_action
async def note(ctx: ActionCtx, what: str) -> None:
    RAN.append(what)


@app.reactive_task(Film, pool=video)
async def cut(ctx: TaskCtx[Film]) -> None:
    RAN.append("cut")


@app.reactive_task(Film)
async def praise(ctx: TaskCtx[Film]) -> None:
    RAN.append("praise")


@app.outbox(Film)
async def to_cinema(ctx: ActionCtx, film: Film) -> None:
    RAN.append("to_cinema")


@app.outbox(Film)
async def to_archive(ctx: ActionCtx, film: Film) -> None:
    RAN.append("to_archive")


@app.cron(timedelta(hours=1))
async def hourly(ctx: ActionCtx) -> None:
    RAN.append("hourly")


@app.cron(timedelta(hours=1))
async def hourly_too(ctx: ActionCtx) -> None:
    RAN.append("hourly_too")


@app.internal_mutation
async def shoot(ctx: MutationCtx) -> list[WorkId]:
    """Give everything in this file something to do, but for the crons."""
    await ctx.db.insert(Film(name="a"))
    await ctx.scheduler.run_after(timedelta(0), note, "default")
    keyed = video.with_options(concurrency_key="a")
    return [await pool.enqueue(ctx, note, name) for pool, name in ((video, "video"), (keyed, "keyed"), (mail, "mail"))]


@asynccontextmanager
async def scoped(url: str, **only: Any) -> AsyncIterator[TestApp]:
    """A backend whose services run only this; it ticks them as `TestApp` does."""
    async with TestApp(app, url) as test:
        test.engine.scope = app.work().narrow(cast("Any", only))
        test.worker = cast("Worker", test.make_service("worker"))
        test.relay = cast("Relay", test.make_service("relay"))
        test.cron_scheduler = cast("CronScheduler", test.make_service("scheduler"))
        yield test


async def run(test: TestApp) -> set[str]:
    RAN.clear()
    await test.run_until_idle()
    return set(RAN)


JOBS = {"default", "video", "keyed", "mail"}


@pytest.mark.both_stores
@pytest.mark.parametrize(
    ("only", "runs"),
    [
        ({}, {*JOBS, "cut", "praise", "to_cinema", "to_archive"}),
        ({"pools": ["video"]}, {"video", "keyed", "cut", "to_cinema", "to_archive"}),
        ({"pools": ["default"], "outboxes": ["to_archive"]}, {"default", "praise", "to_archive"}),
        ({"not_pools": ["video"], "outboxes": []}, {"default", "mail", "praise"}),
        ({"tasks": ["cut"], "outboxes": []}, {*JOBS, "cut"}),
        ({"pools": ["mail", "video"], "tasks": ["praise"], "outboxes": []}, {"mail", "video", "keyed"}),
        ({"pools": [], "outboxes": []}, set()),
    ],
)
async def test_a_worker_runs_only_what_it_names_and_others_run_the_rest(
    database_url: str, only: dict[str, list[str]], runs: set[str]
) -> None:
    async with scoped(database_url, **only) as test:
        await test.run_mutation(shoot)
        assert await run(test) == runs
        async with scoped(database_url) as other:
            rest = {*JOBS, "cut", "praise", "to_cinema", "to_archive"} - runs
            await test.relay.finish()
            assert await run(other) == rest


@pytest.mark.both_stores
async def test_a_worker_starts_only_the_crons_that_it_names(database_url: str) -> None:
    async with scoped(database_url, crons=["hourly"]) as test:
        RAN.clear()
        await test.run_until(test.clock.now() + timedelta(hours=1))
        assert RAN == ["hourly"]
        async with scoped(database_url, crons=[]) as none:
            await none.run_until(none.clock.now() + timedelta(hours=1))
            assert RAN == ["hourly"]
        async with scoped(database_url) as other:
            await other.run_until_idle()
            await other.cron_scheduler.tick()
            await other.run_until_idle()
        assert sorted(RAN[1:]) == ["hourly", "hourly_too"]


def test_a_name_is_checked_at_the_door_and_may_go_without_its_module() -> None:
    work = app.work()
    (full,) = (one for one in work.tasks if one.endswith(":cut"))
    scope = work.narrow({"tasks": ["cut"], "not_pools": ["mail"], "outboxes": []})
    assert scope == Scope(not_pools=("mail",), tasks=(full,), outboxes=())
    assert str(scope) == f"not pools mail; tasks {full}; no outboxes"
    assert scope_of(scope.text()) == scope
    assert (EVERYTHING.text(), scope_of(None), str(EVERYTHING)) == (None, EVERYTHING, "")
    for only, what, fix in (
        ({"pools": ["vidoe"]}, "no pool 'vidoe'", "Did you mean video?"),
        ({"not_pools": ["x"]}, "no pool 'x'", "There are: default, video, mail."),
        ({"tasks": ["cutt"]}, "no reactive task 'cutt'", f"Did you mean {full}?"),
        ({"outboxes": ["to_cinem"]}, "no outbox 'to_cinem'", ":to_cinema?"),
        ({"crons": ["hourli"]}, "no cron 'hourli'", ":hourly?"),
        ({"pool": ["video"]}, "no kind of work 'pool'", "pools, not_pools, tasks"),
    ):
        with pytest.raises(ConfigError) as refused:
            work.narrow(cast("Any", only))
        assert what in refused.value.what, only
        assert fix in refused.value.fix, only


def test_a_name_that_two_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="'tick' may be a:tick or b:tick"):
        Work((), {}, (), ["a:tick", "b:tick"]).narrow({"crons": ["tick"]})


@pytest.mark.both_stores
async def test_the_doctor_says_what_no_worker_runs(database_url: str) -> None:
    async def found(test: TestApp) -> list[str]:
        return [one.where for one in await test.health() if one.code == "work-unserved"]

    (cut_name,) = (one for one in app.work().tasks if one.endswith(":cut"))
    work = app.work()
    cron, outbox = (
        next(one for one in names if one.endswith((":to_cinema", ":hourly"))) for names in (work.crons, work.outboxes)
    )
    async with scoped(database_url, pools=["video"], tasks=[], outboxes=["to_archive"], crons=["hourly_too"]) as first:
        assert await found(first) == [], "a database without any worker is another finding"
        await first.worker.tick()
        assert await found(first) == [
            "pool default", "pool mail", f"task {cut_name}", f"outbox {outbox}", f"cron {cron}",
        ]  # fmt: skip
        async with scoped(database_url, not_pools=["mail"]) as second:
            await second.worker.tick()
            assert await found(second) == ["pool mail"]
            async with scoped(database_url) as third:
                await third.worker.tick()
                assert await found(third) == []
                async with reading(third.engine.store.begin_read) as session:
                    leases = await third.engine.store.leases.list(session)
                assert [str(one.scope) for one in leases if one.is_worker][-1] == ""
                gone = max(one.expires_at for one in leases)
                assert list_unserved(leases, app.work(), gone) == [], "a dead worker says nothing"


@pytest.mark.both_stores
async def test_a_program_opens_for_some_of_its_work(database_url: str) -> None:
    RAN.clear()
    with pytest.raises(ConfigError, match="no pool"):
        async with app.open(database_url, services=SERVICES, only={"pools": ["x"]}):
            pass
    async with app.open(database_url, services=SERVICES, only={"pools": ["video"], "outboxes": []}) as backend:
        assert backend.engine.scope == Scope(pools=("video",), outboxes=())
        ids = await backend.run_mutation(shoot)
        await until(lambda: {"video", "keyed", "cut"} <= set(RAN))
        assert (await backend.job(ids[2])).state.value == "pending"  # type: ignore[union-attr]
    assert set(RAN) == {"video", "keyed", "cut"}
