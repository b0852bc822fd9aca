"""Crons: declared or created at run time, run at the times of their schedules, one run at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from stage.stories import tell_in
from stage.waits import events

from penstock import (
    ActionCtx,
    App,
    ArgumentsInvalid,
    ContextError,
    CronExpression,
    CronStatus,
    DataError,
    DeclarationError,
    Id,
    Interval,
    JobState,
    MutationCtx,
    NonRetryableError,
    QueryCtx,
    Retry,
    Table,
    UsageError,
    ValueInvalid,
    daily,
    hourly,
)
from penstock import MutationCtx as SomeCtx
from penstock.calls.run.syncctx import SyncActionCtx, SyncMutationCtx
from penstock.testing import TestApp, TestClock

NIGHT = datetime(2030, 3, 30, 22, tzinfo=UTC)  # before the night in which Prague's clocks jump over 2 o'clock
HOUR, DAY = timedelta(hours=1), timedelta(days=1)

app = App()
write, read, act = tell_in(app)
pool = app.workpool("slow", max_parallelism=1, default_retry=Retry(max_attempts=3, initial_backoff=600, base=2))
ran: list[tuple[str, datetime]] = []
failures: list[Exception] = []


class Tick(Table, name="tick"):
    what: str
    planned_at: datetime | None = None


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    ran.clear()
    failures.clear()


@app.cron("30 2 * * *", timezone="Europe/Prague", name="in Prague")
async def in_prague(ctx: MutationCtx, planned_at: datetime) -> None:
    await ctx.db.insert(Tick(what="prague", planned_at=planned_at))


@app.cron(timedelta(hours=6))
async def every_six_hours(ctx: ActionCtx) -> None:
    ran.append(("six", ctx.now()))


@app.internal_mutation
async def tick(ctx: MutationCtx, what: str, planned_at: datetime | None = None) -> Id[Tick]:
    return await ctx.db.insert(Tick(what=what, planned_at=planned_at))


@app.internal_action
async def work(ctx: ActionCtx, what: str = "work") -> None:
    ran.append((what, ctx.now()))
    if failures:
        raise failures.pop(0)


@app.query
async def ticks(ctx: QueryCtx) -> list[Tick]:
    return await ctx.db.query(Tick).collect()


@app.internal_action
def from_a_thread(ctx: SyncActionCtx) -> int:
    app.crons.create(ctx, "b", Interval(timedelta(hours=1)), work, {"what": "b"})
    app.crons.pause(ctx, "b")
    app.crons.resume(ctx, "b")
    return len(app.crons.list(ctx))


@app.internal_mutation
def from_a_thread_in_a_transaction(ctx: SyncMutationCtx) -> list[str]:
    app.crons.create(ctx, "c", hourly("c", 0), work, {"what": "c"})
    names = [cron.name for cron in app.crons.list(ctx)]
    app.crons.remove(ctx, "a")
    return names


app.crons.declare("report", daily("report", 7, 0), tick, {"what": "report"})


async def cron_named(backend: TestApp, name: str) -> CronStatus:
    (found,) = [cron for cron in await backend.app.crons.list(backend) if cron.name == name]
    return found


async def test_declared_crons_run_at_their_times_and_are_seen_with_their_last_run(database_url: str) -> None:
    async with TestApp(app, database_url, clock=TestClock(NIGHT)) as backend:
        before = await cron_named(backend, "report")
        assert (before.job, before.state, before.planned_at) == (None, None, None)
        await backend.run_until(NIGHT + DAY)
        rows = [(row.what, row.creation_time, row.planned_at) for row in await backend.run_query(ticks)]
        jump = datetime(2030, 3, 31, 1, tzinfo=UTC)  # from 2:00 to 3:00 in Prague
        seven = datetime(2030, 3, 31, 7, tzinfo=UTC)
        assert rows == [("prague", jump, jump), ("report", seven, seven)]
        assert ran == [("six", NIGHT.replace(hour=0) + DAY + hours * HOUR) for hours in (0, 6, 12, 18)]
        assert backend.clock.now() == NIGHT + DAY
        found = await cron_named(backend, "report")
        assert found.job is not None
        assert found == CronStatus(
            "report", "0 7 * * *", "UTC", tick.name, declared=True, kept=True, paused=False, next_at=seven + DAY,
            planned_at=seven, job=found.job, state=JobState.SUCCESS,
        )  # fmt: skip


async def test_a_run_under_way_in_a_pool_makes_the_next_one_be_skipped(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with TestApp(app, database_url, clock=TestClock(NIGHT)) as backend:
        failures.extend([OSError("no"), OSError("no")])  # it waits 10 minutes, then 20, each times 0.5 to 1.5
        await app.crons.create(backend, "w", timedelta(minutes=5), work, pool=pool.with_options(retry=True))
        await backend.run_until(NIGHT + timedelta(minutes=50))
        times = [at - NIGHT for what, at in ran if what == "work"]
        first, second, third, next_one, *_ = (round(time / timedelta(minutes=1), 1) for time in times)
        assert (first, 10 <= second <= 20, 20 <= third <= 50) == (5, True, True)
        assert next_one == 5 * int(third // 5 + 1), "the next planned time after that run has ended"
        assert {one["reason"] for one in events(caplog, "cron.skipped")} == {"under way"}


async def test_a_cron_is_created_and_removed_with_a_transaction_and_from_anywhere(database_url: str) -> None:
    create = app.crons.create

    def subscribe(who: str, *, fail: bool = False) -> Any:
        async def story(ctx: MutationCtx) -> None:
            await create(ctx, f"digest of {who}", "0 8 * * *", tick, {"what": who})
            if fail:
                raise RuntimeError("no")

        return story

    async with TestApp(app, database_url, clock=TestClock(NIGHT)) as backend:
        with pytest.raises(RuntimeError):
            await backend.run_mutation(write, subscribe("ada", fail=True))
        await backend.run_mutation(write, subscribe("bob"))
        await backend.run_action(act, lambda ctx: create(ctx, "a", timedelta(hours=1), work, {"what": "a"}))
        assert await backend.run_action(from_a_thread) == 6
        assert {"a", "b", "c"} <= set(await backend.run_mutation(from_a_thread_in_a_transaction))
        await create(backend, "d", CronExpression("0 * * * *", "Asia/Kolkata"), work, {"what": "d"})
        await backend.run_until(NIGHT + HOUR)
        assert ran == [("d", NIGHT + HOUR / 2), ("b", NIGHT + HOUR), ("c", NIGHT + HOUR)]

        await backend.run_until(NIGHT + DAY)
        with pytest.raises(DataError, match="There is a cron called 'digest of bob'"):
            await backend.run_mutation(write, subscribe("bob"))
        for found in (True, False):
            assert await backend.run_mutation(write, lambda ctx: app.crons.remove(ctx, "digest of bob")) is found
        wrong: tuple[Any, ...] = (3, 0, [1], "what")
        for args in wrong:
            with pytest.raises(ArgumentsInvalid, match=r"Cron 'e': .*:work takes its arguments by name, in a mapping"):
                await create(backend, "e", "0 8 * * *", work, args)
        await backend.run_until(NIGHT + 2 * DAY)
        whats = [row.what for row in await backend.run_query(ticks)]
        assert (whats.count("ada"), whats.count("bob")) == (0, 1)


async def test_a_cron_runs_later_by_its_jitter_goes_on_after_a_failure_and_not_while_it_is_paused(
    database_url: str,
) -> None:
    async with TestApp(app, database_url, clock=TestClock(NIGHT)) as backend:
        await app.crons.create(backend, "paused", timedelta(hours=1), work, {"what": "paused"})
        await app.crons.pause(backend, "paused")
        assert (await cron_named(backend, "paused")).paused
        for name in "abc":
            await app.crons.create(backend, name, "0 * * * *", work, {"what": name}, jitter=timedelta(minutes=10))
        failures.append(NonRetryableError("no"))
        await backend.run_until(NIGHT + 1.9 * HOUR, raise_errors=False)
        await app.crons.resume(backend, "paused")
        assert sorted(what for what, _ in ran) == ["a", "b", "c"]
        await backend.run_until(NIGHT + 3 * HOUR)
        assert sorted(what for what, _ in ran) == ["a", "a", "b", "b", "c", "c", "paused", "paused", "six"]
        assert [at for what, at in ran if what == "paused"] == [NIGHT + 2 * HOUR, NIGHT + 3 * HOUR], "nothing caught up"
        late = {(what, (at - NIGHT) % HOUR) for what, at in ran if what in "abc"}
        assert len(late) == 3, "always by the same"
        assert all(timedelta(0) <= by < timedelta(minutes=10) for _, by in late)


async def release(
    database_url: str, schedule: Any, start: datetime, until: datetime | None = None, **options: Any
) -> list[datetime]:
    """Declare a cron in a release that runs for a time: when the cron ran."""
    own = App()
    own.registry.add(work)
    own.crons.declare("w", schedule, work, **options)
    ran.clear()
    async with TestApp(own, database_url, clock=TestClock(start)) as backend:
        await backend.run_until(until or start)
    return [at for _, at in ran]


async def test_after_a_stop_as_many_runs_make_up_for_all_as_is_asked_for_and_a_changed_schedule_holds_from_then_on(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    later = NIGHT + 6.5 * HOUR
    assert await release(database_url, "0 * * * *", NIGHT, NIGHT + HOUR) == [NIGHT + HOUR]
    assert await release(database_url, "0 * * * *", later) == [later]
    (skipped,) = events(caplog, "cron.skipped")
    assert skipped == {"cron": "w", "first": NIGHT + 2 * HOUR, "last": NIGHT + 5 * HOUR, "reason": "missed"}
    assert await release(database_url, "0 * * * *", later + 5 * HOUR, catch_up="skip") == []
    ten = later + 6 * HOUR
    assert await release(database_url, "0 9 * * *", ten - HOUR, ten) == [], "it counts from the deploy on"
    assert await release(database_url, "0 11 * * *", ten, ten + HOUR) == [ten + HOUR / 2]
    assert await release(database_url, "0 11 * * *", ten + HOUR, jitter=2 * HOUR) == [], "it has run"


def test_what_cannot_be_declared_is_refused() -> None:
    own = App()

    @own.internal_action
    async def act(ctx: ActionCtx) -> None: ...

    @own.internal_mutation
    async def change(ctx: MutationCtx) -> None: ...

    own.crons.declare("a", "0 9 * * *", act)
    slow = own.workpool("slow")
    for options, words in (
        ({"name": "a"}, "There are two crons called 'a'"),
        ({"schedule": 5}, "5 is no schedule"),
        ({"timezone": "Europe/Prag"}, "Did you mean 'Europe/Prague'"),
        ({"schedule": timedelta(1), "timezone": "Europe/Prague"}, "only a cron expression given as text"),
        ({"function": ticks}, "it runs a mutation or an action"),
        ({"function": print}, "it runs a mutation or an action"),
        ({"function": work}, "is not a function of this app"),
        ({"pool": "slow"}, "pool takes a Workpool"),
        ({"retry": True}, "retry takes a Retry"),
        ({"pool": slow, "retry": Retry()}, "pool and retry were both given"),
        ({"function": change, "retry": Retry()}, "is not retried when it raises"),
        ({"every": 5}, "there is no option 'every'"),
    ):
        given: Any = {"name": "b", "schedule": "0 9 * * *", "function": act, **options}
        with pytest.raises(DeclarationError, match=words):
            own.crons.declare(**given)


def test_a_decorator_has_to_know_what_it_decorates() -> None:
    own = App()

    @own.cron("0 9 * * *")
    async def by_another_name(ctx: SomeCtx) -> None: ...

    @own.cron("0 9 * * *", name="twice a day")
    @own.cron(timedelta(days=1), name="also")
    @own.action
    async def declared_below(ctx: ActionCtx) -> None: ...

    functions: list[Any] = [by_another_name, declared_below]
    assert [(one.kind.value, one.public) for one in functions] == [("mutation", False), ("action", True)]
    assert own.crons.scope().names == [by_another_name.name, "also", "twice a day"]
    with pytest.raises(DeclarationError, match="does not say whether it is a mutation or an action"):
        own.cron("0 9 * * *")(lambda ctx: None)
    with pytest.raises(DeclarationError, match="5 is not a function"):
        own.cron("0 9 * * *")(5)  # type: ignore[call-overload]


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"args": {"what": 5}}, ArgumentsInvalid, "valid string"),
    ({"args": {"what": "x"}, "pool": pool.with_options(run_after=HOUR)}, UsageError, "contradict its schedule"),
    ({"args": {"what": "x"}, "pool": pool.with_options(key="x")}, UsageError, "its pool options have a key"),
    ({"args": {"what": "x"}, "pool": pool.with_options(retry=True)}, UsageError, "is a mutation"),
]


async def test_a_program_with_a_wrong_cron_does_not_start_and_what_cannot_be_done_later_is_refused(
    database_url: str,
) -> None:
    for declare, error, words in WRONG:
        own = App()
        own.registry.add(tick)
        own.crons.declare("wrong", "0 9 * * *", tick, **declare)
        with pytest.raises(error, match=words):
            async with TestApp(own, database_url):
                raise AssertionError("it started")
    async with TestApp(app, database_url) as backend:
        create, before = app.crons.create, await app.crons.list(backend)
        assert "wrong" not in [cron.name for cron in before]
        calls: list[tuple[Callable[[], Any], type[Exception], str]] = [
            (
                lambda: backend.run_query(read, lambda ctx: create(ctx, "q", "0 9 * * *", work)),
                ContextError,
                "only reads",
            ),
            (
                lambda: backend.run_mutation(write, lambda ctx: app.crons.run(ctx, "report")),
                ContextError,
                "inside a tr",
            ),
            (lambda: create(backend, "x", "0 9 * * *", tick, {"what": "\0"}), ValueInvalid, "NUL"),
            (lambda: create(backend, "x", "soon", work), DeclarationError, "five or six fields"),
            (lambda: create(backend, "x", "0 9 * * *", ticks), DeclarationError, "a mutation or an action"),
            (lambda: create(backend, "report", "0 9 * * *", work), DataError, "There is a cron called 'report'"),
            (lambda: create(5, "x", "0 9 * * *", work), ContextError, "neither a ctx nor a backend"),  # type: ignore[call-overload]
            (lambda: app.crons.remove(backend, "report"), UsageError, "is declared by this program"),
            (lambda: app.crons.remove(backend, ["x"]), ValueInvalid, r"is text, not \['x'\]"),  # type: ignore[call-overload]
            (lambda: app.crons.pause(backend, "none"), DataError, "knows no cron 'none'"),
            (lambda: app.crons.run(backend, "none"), DataError, "knows no cron 'none'"),
        ]
        for call, error, words in calls:
            with pytest.raises(error, match=words):
                await call()
        assert await app.crons.list(backend) == before
        assert await backend.jobs() == []
