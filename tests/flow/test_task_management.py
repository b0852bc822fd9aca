"""Looking after reactive tasks: their rows are listed, counted, retried, canceled, skipped, deleted, explained."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from stage.databases import run_sql, sql

from penstock import (
    App,
    ContextError,
    CursorInvalid,
    DataError,
    DeclarationError,
    Id,
    IdInvalid,
    JobState,
    MutationCtx,
    MutationTaskCtx,
    Retry,
    SyncTaskCtx,
    Table,
    TaskCtx,
    TaskFilter,
    TaskRecord,
    UsageError,
    ValueInvalid,
)
from penstock.api.tasks import selection
from penstock.testing import TestApp

HOUR = timedelta(hours=1)

app = App()
narrow = app.workpool("narrow", max_parallelism=1)
ran: list[tuple[str, Any, str]] = []
failing: set[str] = set()
attempts: list[int] = []
gates: dict[str, asyncio.Event] = {}


class Order(Table, name="order_of_tasks"):
    name: str
    status: str = "paid"
    amount: int = 1


class Parcel(Table, name="parcel", source="parcel_of_others", key="number", managed=False):
    number: int
    name: str = ""


async def work(kind: str, name: str, change: str) -> None:
    ran.append((kind, name, change))
    if name in gates:
        gates[f"{name} begun"].set()
        await gates[name].wait()
    if name in failing:
        raise ConnectionError(f"no way for {name}")


@app.reactive_task(Order, filter=lambda order: order.status == "paid", watch=("amount",), name="ship",
                   retry=Retry.fixed(60, max_attempts=3, jitter=0))  # fmt: skip
async def ship(ctx: TaskCtx[Order]) -> None:
    attempts.append(ctx.attempt)
    await work("ship", (await ctx.get_document()).name, ctx.change)


@app.reactive_task(Order, name="note", watch=("name",), pool=narrow, retry=None)
async def note(ctx: MutationTaskCtx[Order]) -> None:
    order = await ctx.get_document()
    ran.append(("note", order.name, ctx.change))
    if f"note {order.name}" in failing:
        raise ValueError("not now")


@app.reactive_task(Parcel, name="weigh", on=("enter", "change", "delete"), retry=None)
def weigh(ctx: SyncTaskCtx[Parcel]) -> None:
    ran.append(("weigh", ctx.doc_id, ctx.change))


@app.internal_mutation
async def write(ctx: MutationCtx, orders: list[Order]) -> list[Id[Order]]:
    return [await ctx.db.insert(order) for order in orders]


@app.internal_mutation
async def change(ctx: MutationCtx, order: Id[Order], values: dict[str, Any]) -> None:
    await ctx.db.patch(Order, order, **values)


@app.internal_mutation
async def delete(ctx: MutationCtx, order: Id[Order]) -> None:
    await ctx.db.delete(Order, order)


@app.internal_mutation
async def in_mutation(ctx: MutationCtx) -> None:
    await app.tasks.list(ctx)  # type: ignore[call-overload]


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    for one in (ran, failing, attempts, gates):
        one.clear()


class House:
    """A backend, and what is asked of it."""

    def __init__(self, backend: TestApp) -> None:
        self.backend = backend

    async def plan(self) -> None:
        """Plan all that has changed."""
        await self.backend.plan()

    async def settle(self, *, advance: bool = True) -> None:
        """Plan, and run all there is."""
        await self.plan()
        await self.backend.run_until_idle(advance=advance, raise_errors=False)

    async def orders(self, *names: str, **values: Any) -> list[Id[Order]]:
        return await self.backend.run_mutation(write, [Order(name=name, **values) for name in names])

    async def states(self, task: str) -> dict[Any, str]:
        page = await app.tasks.records(self.backend, TaskFilter(task=task), limit=1000)
        return {one.key: "lost" if one.state is None else one.state.value for one in page.records}

    async def find(self, key: Any, task: str = "ship") -> TaskRecord:
        found = await app.tasks.find(self.backend, task, key)
        assert found is not None
        return found

    async def pages(self, where: TaskFilter[Any], limit: int, **options: Any) -> list[list[TaskRecord]]:
        """All records, in pages."""
        pages, after = list[list[TaskRecord]](), None
        while not pages or after is not None:
            page = await app.tasks.records(self.backend, where, limit=limit, after=after, **options)
            pages.append(page.records)
            after = page.next
        return pages


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[None]:
    """Open the app where another program has made its table."""
    await run_sql(url, "create table parcel_of_others (number bigint primary key, name text not null)")
    async with TestApp(app, url):
        yield


OPENED = opened


@asynccontextmanager
async def house(url: str) -> AsyncIterator[House]:
    async with TestApp(app, url) as backend:
        yield House(backend)


@pytest.mark.both_stores
async def test_tm1_tm6_tm8_tm10_tm11_tm12_tm13_tm14_tm15_api4_api5_api6_api7_api8_f24_filters_pick_records(
    database_url: str,
) -> None:
    failing.update({"a", "note b"})
    async with house(database_url) as it:
        a, b = await it.orders("a", "b")
        await it.settle()
        await sql(it.backend, "insert into parcel_of_others (number, name) values (7, 'x')")
        (c,) = await it.orders("c")
        await it.plan()
        picks: list[tuple[dict[str, Any], set[tuple[str, Any]]]] = [
            ({"task": "ship", "state": "failed"}, {("ship", a)}),
            ({"task": "ship", "state": ("failed", "pending")}, {("ship", a), ("ship", c)}),
            ({"error": "no way"}, {("ship", a)}),
            ({"error": "not now"}, {("note", b)}),
            ({"error": "NOT NOW"}, set()),
            ({"has_error": True}, {("ship", a), ("note", b)}),
            ({"has_error": False, "table": Order}, {("ship", b), ("note", a), ("ship", c), ("note", c)}),
            ({"table": Parcel}, {("weigh", 7)}),
            ({"key": "7"}, {("weigh", 7)}),
            ({"key": str(a)}, {("ship", a), ("note", a)}),
        ]
        for given, expected in picks:
            page = await app.tasks.records(it.backend, TaskFilter(**given))
            assert {(one.task, one.key) for one in page.records} == expected, given
            assert sum((await app.tasks.count(it.backend, TaskFilter(**given))).values()) == len(expected), given
        failed = await it.find(str(a))
        assert (failed.state, failed.error, failed.attempt) == (JobState.FAILED, "ConnectionError: no way for a", 3)
        assert (await it.find(7, "weigh")) == (await it.find("7", "weigh"))
        assert (await it.find(7, "weigh")).key == 7
        assert await app.tasks.find(it.backend, "weigh", 8) is None
        with pytest.raises(IdInvalid):
            await app.tasks.find(it.backend, "weigh", "seven")
        with pytest.raises(ValueInvalid, match="no state 'dirty'"):
            TaskFilter(state=("failed", "dirty"))

        ship = TaskFilter(task="ship")
        assert await app.tasks.count(it.backend, ship) == {"failed": 1, "success": 1, "pending": 1}
        for where, retried, counts in (
            (TaskFilter(task="ship", error="nothing like it"), 0, {"failed": 1, "success": 1, "pending": 1}),
            (TaskFilter(table=Parcel, state="failed"), 0, {"failed": 1, "success": 1, "pending": 1}),
            (TaskFilter(task="ship", state="failed"), 1, {"success": 1, "pending": 2}),
            (TaskFilter(key=str(a)), 2, {"success": 1, "pending": 2}),
            (ship, 3, {"pending": 3}),
        ):
            assert await app.tasks.retry(it.backend, where) == retried, where
            assert await app.tasks.count(it.backend, ship) == counts, where
        ran.clear()
        await it.settle()
        assert ("ship", "b", "manual") in ran, "what has succeeded runs too"

        before = await app.tasks.count(it.backend)
        for verb in (app.tasks.retry, app.tasks.cancel, app.tasks.skip, app.tasks.delete):
            with pytest.raises(UsageError, match="all rows of all reactive tasks"):
                await verb(it.backend, TaskFilter())
        assert await app.tasks.count(it.backend) == before
        assert await app.tasks.retry(it.backend, TaskFilter(), everything=True) == 7


async def test_f16_tm2_a_retry_runs_at_once_counts_attempts_anew_and_keeps_the_history(database_url: str) -> None:
    failing.add("a")
    async with house(database_url) as it:
        (a,) = await it.orders("a")
        await it.settle(advance=False)
        run_at = (await it.find(a)).run_at
        assert run_at is not None
        assert run_at > it.backend.clock.now()
        assert await app.tasks.retry(it.backend, TaskFilter(task="ship", key=a)) == 1
        await it.settle(advance=False)
        assert attempts == [1, 1], "it did not wait for its next attempt"
        await it.settle()
        assert attempts == [1, 1, 2, 3]
        before = await it.find(a)
        it.backend.clock.advance(HOUR)
        assert await app.tasks.retry(it.backend, TaskFilter(task="ship", key=a)) == 1
        record = await it.find(a)
        assert (record.state, record.attempt, record.change, record.generation) == (JobState.PENDING, 0, "manual", 3)
        assert (record.changed_at, record.run_at) == (before.changed_at, it.backend.clock.now())
        status = await it.backend.job(record.job)
        assert status is not None
        assert [one.error for one in status.attempts] == ["ConnectionError: no way for a"] * 4
        attempts.clear()
        await it.settle()
        assert attempts == [1, 2, 3], "all attempts of the policy, not one"
        assert ran[-1] == ("ship", "a", "manual")


async def test_tm3_a_retry_of_a_running_record_runs_it_once_more(database_url: str) -> None:
    async with house(database_url) as it:
        gates["a"], gates["a begun"] = asyncio.Event(), asyncio.Event()
        (a,) = await it.orders("a")
        await it.plan()
        working = asyncio.create_task(it.backend.run_until_idle())
        await gates["a begun"].wait()
        for _ in range(3):
            assert await app.tasks.retry(it.backend, TaskFilter(task="ship", state="running")) == 1
        assert (await it.find(a)).state is JobState.RUNNING
        assert "it is run once more afterwards" in str(await app.tasks.explain(it.backend, "ship", a))
        gates["a"].set()
        await working
        await it.backend.run_until_idle()
        assert [one for one in ran if one[0] == "ship"] == [("ship", "a", "enter"), ("ship", "a", "manual")]
        assert (await it.states("ship")) == {a: "success"}


async def test_tm5_a_retry_by_fields_of_the_row_touches_all(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_SOURCE_AT_ONCE", 10)
    async with house(database_url) as it:
        for amount in (1, 2):
            await it.orders(*(f"o{number}" for number in range(8)), amount=amount)
        await it.orders("left", amount=9)
        await it.settle()
        rows = TaskFilter(task="ship", table=Order, rows=lambda order: order.amount < 5)
        assert await app.tasks.count(it.backend, rows) == {"success": 16}
        assert await app.tasks.retry(it.backend, rows) == 16
        assert await app.tasks.count(it.backend, TaskFilter(task="ship")) == {"pending": 16, "success": 1}


async def test_tm7_what_cannot_be_asked_is_refused(database_url: str) -> None:
    with pytest.raises(ValueInvalid, match="the table is unknown"):
        TaskFilter(rows=lambda order: order.id == "x")
    missing = TaskFilter(table=Order, rows=lambda order: order.missing == 1)  # type: ignore[attr-defined]
    by_amount = TaskFilter(table=Order, rows=lambda order: order.amount == 1)
    unknown = TaskFilter(task=("ship", "shipp"))
    async with house(database_url) as it:
        for call, error, message in (
            (lambda: app.tasks.records(it.backend, unknown), DataError, "no reactive task 'shipp'"),
            (lambda: app.tasks.count(it.backend, unknown), DataError, "no reactive task 'shipp'"),
            (lambda: app.tasks.retry(it.backend, unknown), DataError, "no reactive task 'shipp'"),
            (lambda: app.tasks.explain(it.backend, "shipp", "x"), DataError, "no reactive task 'shipp'"),
            (lambda: app.tasks.pause(it.backend, "shipp"), DataError, "no reactive task 'shipp'"),
            (lambda: app.tasks.reconcile(it.backend, "shipp"), DataError, "no reactive task 'shipp'"),
            (lambda: app.tasks.resume(it.backend, "shipp"), DataError, "no reactive task 'shipp'"),
            (lambda: app.tasks.count(it.backend, missing), DeclarationError, "missing"),
            (lambda: app.tasks.records(it.backend, by_amount, order="due"), ValueInvalid, "ordered by key"),
            (lambda: it.backend.run_mutation(in_mutation), ContextError, "outside of queries and mutations"),
            (lambda: app.tasks.list(None), ContextError, "neither a ctx nor a backend"),  # type: ignore[call-overload]
        ):
            with pytest.raises(error, match=message):
                await call()


async def test_tm9_records_of_several_tables_are_listed_by_their_next_run(database_url: str) -> None:
    failing.add("late")
    async with house(database_url) as it:
        (late,) = await it.orders("late")
        await it.settle(advance=False)
        it.backend.clock.advance(timedelta(seconds=10))
        await sql(it.backend, "insert into parcel_of_others (number, name) values (7, 'x')")
        (done,) = await it.orders("done", status="open")
        await it.plan()
        page = await app.tasks.records(it.backend, order="due")
        assert [(one.task, one.key) for one in page.records][:3] == [("note", done), ("weigh", 7), ("ship", late)]
        assert [(one.task, one.key, one.state) for one in page.records][3:] == [("note", late, JobState.SUCCESS)]
        pages = await it.pages(TaskFilter(), 1, order="due")
        assert [one for records in pages for one in records] == page.records


async def test_api2_api3_pages_go_on_where_the_last_ended(database_url: str) -> None:
    async with house(database_url) as it:
        orders = sorted(await it.orders(*map(str, range(55))))
        await it.plan()
        ship = TaskFilter(task="ship")
        page = await app.tasks.records(it.backend, ship)
        assert [one.key for one in page.records] == orders[:50], "fifty, by their keys"
        rest = await app.tasks.records(it.backend, ship, after=page.next)
        assert ([one.key for one in rest.records], rest.next) == (orders[50:], None)
        assert await app.tasks.records(it.backend, ship, order="key", limit=50) == page
        pages = await it.pages(ship, 20)
        assert [[one.key for one in records] for records in pages] == [orders[:20], orders[20:40], orders[40:]]
        rows = TaskFilter(task="ship", table=Order, rows=lambda one: one.name >= "5")
        found = [one for records in await it.pages(rows, 4) for one in records]
        names = {str(number) for number in range(55) if str(number) >= "5"}
        assert len(found) == len({one.key for one in found}) == len(names)
        for wrong in ("nonsense", "[1]", "{}", '["x", 1, "k"]'):
            for order in ("key", "due"):
                with pytest.raises(CursorInvalid):
                    await app.tasks.records(it.backend, after=wrong, order=order)


async def test_pending_runs_are_canceled_or_skipped_and_the_next_change_is_run(database_url: str) -> None:
    async with house(database_url) as it:
        a, b = await it.orders("a", "b")
        await it.plan()
        assert await app.tasks.skip(it.backend, TaskFilter(task="ship", key=a)) == 1
        assert await it.states("ship") == {a: "skipped", b: "pending"}
        assert await app.tasks.skip(it.backend, TaskFilter(task="ship", key=a)) == 0
        assert await app.tasks.cancel(it.backend, TaskFilter(task="ship")) == 1
        assert await narrow.cancel_all(it.backend) == 2
        await it.settle()
        assert await it.states("ship") == {a: "skipped", b: "canceled"}
        assert await it.states("note") == {a: "canceled", b: "canceled"}
        assert not ran
        await it.backend.run_mutation(change, a, {"amount": 2, "name": "c"})
        await it.settle()
        assert await it.states("ship") == await it.states("note") == {a: "success", b: "canceled"}
        assert await app.tasks.cancel(it.backend, TaskFilter(task="ship")) == 0
        with pytest.raises(ValueInvalid, match="success cannot be canceled"):
            await app.tasks.cancel(it.backend, TaskFilter(state="success"))


async def test_a_paused_task_is_planned_but_stays_pending_and_others_run(database_url: str) -> None:
    async with house(database_url) as it:
        await app.tasks.pause(it.backend, "ship")
        (a,) = await it.orders("a")
        await it.settle(advance=False)
        assert await it.states("ship") == {a: "pending"}
        assert await it.states("note") == {a: "success"}
        (status,) = [one for one in await app.tasks.list(it.backend) if one.name == "ship"]
        assert (status.paused, status.ready + status.scheduled, status.declared) == (True, 1, True)
        assert await app.tasks.count(it.backend, TaskFilter(task="ship", has_error=True)) == {}
        assert "The task is paused" in str(await app.tasks.explain(it.backend, "ship", a))
        assert await app.tasks.resume(it.backend, "ship") == 1
        await it.settle(advance=False)
        assert await it.states("ship") == {a: "success"}


async def test_f22_f23_what_is_to_be_done_is_asked_of_the_database(database_url: str) -> None:
    """By any process; it is zero again once all is done."""
    failing.add("bad")
    async with house(database_url) as it:
        await it.orders("bad", "good")
        await it.plan()
        it.backend.clock.advance(timedelta(seconds=7))
        (ship_,) = [one for one in await it.backend.engine.store.records.backlog(100) if one.name == "ship"]
        assert (ship_.ready, ship_.scheduled, ship_.running, ship_.failed) == (2, 0, 0, 0)
        assert ship_.oldest is not None
        await it.settle()
        (ship_,) = [one for one in await it.backend.engine.store.records.backlog(100) if one.name == "ship"]
        assert (ship_.ready, ship_.scheduled, ship_.running, ship_.failed, ship_.oldest) == (0, 0, 0, 1, None)


async def test_explain_says_why_a_row_has_run_or_not(database_url: str) -> None:
    failing.add("a")
    async with house(database_url) as it:
        a, open_ = await it.orders("a") + await it.orders("open", status="open")
        explained = await app.tasks.explain(it.backend, "ship", a)
        assert explained.record is None
        assert explained.matches
        assert "no change of the row has been planned" in explained.reasons[0]
        await it.plan()
        assert "A run is pending because of a row that began to match" in str(
            await app.tasks.explain(it.backend, "ship", a)
        )
        await it.backend.run_until_idle(advance=False, raise_errors=False)
        assert "its last attempt: ConnectionError: no way for a" in str(await app.tasks.explain(it.backend, "ship", a))
        await it.settle()
        explained = await app.tasks.explain(it.backend, "ship", a)
        assert "failed" in explained.reasons[0]
        assert explained.job is not None and len(explained.job.attempts) == 3  # noqa: PT018
        assert [(one.name, one.then, one.now) for one in explained.watched] == [("amount", "1", "1")]
        await it.backend.run_mutation(change, a, {"amount": 5})
        explained = await app.tasks.explain(it.backend, "ship", a)
        assert [(one.then, one.now) for one in explained.watched] == [("1", "5")]
        assert "amount changed since" in str(explained)
        explained = await app.tasks.explain(it.backend, "ship", open_)
        assert (explained.exists, explained.matches) == (True, False)
        assert "does not match the filter" in explained.reasons[0]
        assert [str(one) for one in explained.findings] == ["status == 'paid' is false: status is 'open'"]
        await it.backend.run_mutation(delete, open_)
        explained = await app.tasks.explain(it.backend, "ship", open_)
        assert (explained.exists, explained.matches) == (False, None)
        assert "no such row" in explained.reasons[0]


async def test_a_run_that_is_put_off_while_its_task_is_resumed_does_not_wait_for_an_hour(database_url: str) -> None:
    async with house(database_url) as it:
        await app.tasks.pause(it.backend, "ship")
        gates["b"], gates["b begun"] = asyncio.Event(), asyncio.Event()
        (a,) = await it.orders("a")
        await it.plan()
        holds, store = it.backend.engine.pauses, it.backend.engine.store
        holds.learn(await store.tasks.list_held(it.backend.clock.now()))
        learn, holds.learn = holds.learn, lambda known: None  # type: ignore[method-assign]  # it has in hand what was so
        assert await app.tasks.resume(it.backend, "ship") == 0
        await it.backend.run_until_idle(advance=False)
        assert await it.states("ship") == {a: "pending"}
        holds.learn = learn  # type: ignore[method-assign]
        it.backend.clock.advance(timedelta(seconds=6))
        await it.backend.run_until_idle(advance=False)
        await it.backend.run_until_idle(advance=False)
        assert await it.states("ship") == {a: "success"}
