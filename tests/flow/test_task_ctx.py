"""What handlers of reactive tasks see and ask for: rows, watched values, deferring, throttling, retries, history."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from stage.taskruns import TaskApp, two_on
from stage.waits import until

from penstock import (
    App,
    Id,
    MutationCtx,
    MutationTaskCtx,
    Retry,
    Table,
    TaskConditionFailed,
    TaskCtx,
    ValueInvalid,
)
from penstock.schema.table import definition_of
from penstock.store.guest.drivers import answer
from penstock.testing import gate

app = OPENED = App()
MINUTE = timedelta(minutes=1)
AT_ONCE = Retry(max_attempts=5, initial_backoff=0.001, base=1)


class Order(Table):
    status: str = "paid"
    amount: int = 1
    note: str | None = None
    address: dict[str, Any] | None = None


class Watched(Table):
    name: str = ""
    value: dict[str, Any] | None = None
    price: int = 0
    count: int = 0


Step = Callable[[Any], Awaitable[None]]
seen: list[Any] = []
steps: dict[str, list[Step]] = {}


async def play(task: str, ctx: Any) -> None:
    """Do what the test says, the last of it again and again."""
    left = steps.get(task, [])
    if left:
        await (left.pop(0) if len(left) > 1 else left[0])(ctx)


@app.reactive_task(
    Order, filter=lambda o: o.status == "paid", watch=("status", "amount", "address.city"), retry=AT_ONCE
)
async def sync(ctx: TaskCtx[Order]) -> None:
    await play("sync", ctx)


@app.reactive_task(
    Order, filter=lambda o: o.status == "hot", retry=AT_ONCE, reset_retries_on_data_change=False, history=3
)
async def hot(ctx: TaskCtx[Order]) -> None:
    await play("hot", ctx)


@app.reactive_task(Order, filter=lambda o: o.status == "default", watch=("amount",), retry=AT_ONCE)
async def kept(ctx: TaskCtx[Order]) -> None:
    await play("kept", ctx)


@app.reactive_task(Order, filter=lambda o: o.status == "slow", timeout=timedelta(milliseconds=50), retry=None)
async def slow(ctx: TaskCtx[Order]) -> None:
    await play("slow", ctx)


@app.reactive_task(Order, filter=lambda o: o.status == "write", watch=("amount",))
async def raises_amount(ctx: MutationTaskCtx[Order]) -> None:
    """Write a watched field of its own row, until there is enough."""
    order = await ctx.get_document()
    seen.append(order.amount)
    if order.amount < 3:
        await ctx.db.patch(Order, order.id, amount=order.amount + 1)


@app.reactive_task(Order, filter=lambda o: o.status == "own", watch=("amount",))
async def reads_what_it_wrote(ctx: MutationTaskCtx[Order]) -> None:
    await ctx.db.patch(Order, ctx.doc_id, note="of this transaction")
    seen.append((await ctx.get_document()).note)


@app.reactive_task(Watched, watch=("value.a", "name"))
async def watches_part(ctx: TaskCtx[Watched]) -> None:
    seen.append(ctx.watched_values)
    await ctx.get_document()


@app.reactive_task(Watched, watch=(lambda w: w.price * w.count,))
async def watches_product(ctx: TaskCtx[Watched]) -> None:
    seen.append("product")


@app.reactive_task(Watched, watch=("id",))
async def once(ctx: TaskCtx[Watched]) -> None:
    seen.append("once")


@app.mutation
async def place(ctx: MutationCtx, status: str = "paid", amount: int = 1) -> Id[Order]:
    return await ctx.db.insert(Order(status=status, amount=amount))


@app.mutation
async def change(
    ctx: MutationCtx,
    order_id: Id[Order],
    status: str | None = None,
    amount: int | None = None,
    note: str | None = None,
    address: dict[str, Any] | None = None,
) -> None:
    given = {"status": status, "amount": amount, "note": note, "address": address}
    await ctx.db.patch(Order, order_id, **{name: value for name, value in given.items() if value is not None})


@app.mutation
async def drop(ctx: MutationCtx, order_id: Id[Order]) -> None:
    await ctx.db.delete(Order, order_id)


@app.mutation
async def add_watched(ctx: MutationCtx, name: str = "") -> Id[Watched]:
    return await ctx.db.insert(Watched(name=name))


@app.mutation
async def write_watched(
    ctx: MutationCtx, row: Id[Watched], value: dict[str, Any] | None, price: int = 0, count: int = 0
) -> None:
    await ctx.db.patch(Watched, row, value=value, price=price, count=count)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    seen.clear()
    steps.clear()


def story(url: str, tell: Callable[[TaskApp], Awaitable[None]]) -> None:
    async def run() -> None:
        async with TaskApp(app, url) as t:
            await tell(t)

    asyncio.run(run())


async def fails(ctx: Any) -> None:
    seen.append(ctx.attempt)
    raise ConnectionError(f"no {ctx.attempt}")


async def document(ctx: Any) -> None:
    seen.append((await ctx.get_document()).amount)


async def skipped(ctx: Any) -> None:
    """Read the row after somebody has changed it."""
    try:
        await ctx.get_document()
    except TaskConditionFailed as error:
        seen.append(error.facts["reason"])
        raise


# ----- FC: deferring and throttling


def test_fc1_a_run_is_deferred_for_a_time_and_uses_no_attempt(database_url: str) -> None:
    async def defers(ctx: Any) -> None:
        ctx.defer_current(MINUTE)

    async def tell(t: TaskApp) -> None:
        steps["sync"] = [defers, document]
        begun = t.clock.now()
        await t.run_mutation(place)
        await t.settle_down(advance=False)
        job = await t.only_job()
        assert (job.state.value, job.attempt) == ("pending", 0)
        assert job.run_at >= begun + MINUTE
        await t.settle_down()
        assert (await t.only_job()).state.value == "success"
        assert seen == [1]

    story(database_url, tell)


@pytest.mark.parametrize("raises", [False, True])
def test_fc2_a_run_is_deferred_until_a_moment_also_when_it_raises(database_url: str, *, raises: bool) -> None:
    async def tell(t: TaskApp) -> None:
        moment = t.clock.now() + MINUTE

        async def defers(ctx: Any) -> None:
            ctx.defer_current(until=moment)
            if raises:
                raise ConnectionError("busy")

        steps["sync"] = [defers, document]
        await t.run_mutation(place)
        await t.settle_down(advance=False)
        job = await t.only_job()
        assert (job.state.value, job.attempt, job.run_at) == ("pending", 0, moment)
        assert ("busy" in (job.error or "")) is raises
        t.clock.advance(MINUTE - timedelta(microseconds=1))
        await t.settle_down(advance=False)
        assert seen == []
        await t.settle_down()
        assert (await t.only_job()).state.value == "success"
        assert seen == [1]

    story(database_url, tell)


def test_a_change_is_run_in_place_of_a_deferred_run(database_url: str) -> None:
    async def defers(ctx: Any) -> None:
        ctx.defer_current(timedelta(days=1))

    async def tell(t: TaskApp) -> None:
        steps["sync"] = [defers, document]
        order = await t.run_mutation(place)
        await t.settle_down(advance=False)
        await t.run_mutation(change, order, amount=7)
        await t.settle_down(advance=False)
        assert seen == [7]

    story(database_url, tell)


@pytest.mark.parametrize("absolute", [False, True], ids=["fc3", "fc4"])
def test_fc3_fc4_a_throttled_task_starts_no_other_run(database_url: str, *, absolute: bool) -> None:
    async def tell(t: TaskApp) -> None:
        async def throttles(ctx: Any) -> None:
            if absolute:
                ctx.throttle_all(until=t.clock.now() + MINUTE)
            else:
                ctx.throttle_all(MINUTE)

        steps["sync"] = [throttles, document]
        await t.run_mutation(place)
        await t.settle_down(advance=False)
        await t.run_mutation(place, amount=5)
        await t.settle_down(advance=False)
        assert seen == []
        t.clock.advance(MINUTE)
        await t.settle_down(advance=False)
        assert seen == [5]

    story(database_url, tell)


async def test_f17_a_throttle_holds_on_all_machines_though_its_handler_raised(database_url: str) -> None:
    async def throttles(ctx: Any) -> None:
        ctx.throttle_all(MINUTE)
        ctx.defer_current(timedelta(days=1))
        raise ConnectionError("429")

    async with two_on(app, database_url) as (first, second):
        steps["sync"] = [throttles, document]
        await first.run_mutation(place)
        await first.settle_down(advance=False)
        await first.worker.tick()
        await first.run_mutation(place, amount=5)
        await first.plan()
        await second.run_until_idle(advance=False)
        assert seen == []
        async with TaskApp(app, database_url, clock=first.clock) as restarted:
            await restarted.run_until_idle(advance=False)
            assert seen == []
        first.clock.advance(MINUTE)
        await second.run_until_idle(advance=False)
        assert seen == [5]


async def test_a_local_throttle_holds_in_its_own_process_only(database_url: str) -> None:
    async def throttles(ctx: Any) -> None:
        ctx.throttle_all(MINUTE, local=True)

    async with two_on(app, database_url) as (first, second):
        steps["sync"] = [throttles, document]
        await first.run_mutation(place)
        await first.settle_down(advance=False)
        await first.run_mutation(place, amount=5)
        await first.plan()
        await second.run_until_idle(advance=False)
        assert seen == [5]


# ----- WC: the row as it is when the handler asks for it


def test_wc1_the_row_is_read_in_the_transaction_of_a_mutation(database_url: str) -> None:
    async def tell(t: TaskApp) -> None:
        await t.run_mutation(place, "own")
        await t.settle_down()
        assert seen == ["of this transaction"], "what it has written, and nobody else sees yet"

    story(database_url, tell)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"status": "off"}, "left"),
        ({"amount": 9}, "changed"),
        ({"address": {"city": "Brno"}}, "changed"),
        (None, "gone"),
    ],
    ids=["wc2", "wc3", "wc5", "gone"],
)
def test_wc2_wc3_wc5_a_run_whose_row_is_not_as_planned_ends_as_skipped(
    database_url: str, what: dict[str, Any] | None, reason: str
) -> None:
    async def tell(t: TaskApp) -> None:
        order = await t.run_mutation(place)

        async def changed_before(ctx: Any) -> None:
            await (t.run_mutation(drop, order) if what is None else t.run_mutation(change, order, **what))
            await skipped(ctx)

        async def nothing(ctx: Any) -> None:
            seen.append("again")

        steps["sync"] = [changed_before, nothing]
        await t.plan()
        await t.run_until_idle(plan=False)
        job = await t.only_job()
        assert (job.state.value, job.attempt) == ("skipped", 1)
        assert seen == [reason]
        await t.settle_down()
        assert seen == [reason, *(["again"] if reason == "changed" else [])]

    story(database_url, tell)


def test_wc4_watched_paths_give_their_values(database_url: str) -> None:
    async def values(ctx: Any) -> None:
        seen.append(ctx.watched_values)
        seen.append((await ctx.get_document()).address)

    async def tell(t: TaskApp) -> None:
        steps["sync"] = [values]
        order = await t.run_mutation(place)
        await t.run_mutation(change, order, address={"city": "Praha", "zip": "1"})
        await t.settle_down()
        assert seen == [
            {"status": "paid", "amount": 1, "address.city": "Praha"},
            {"city": "Praha", "zip": "1"},
        ]

    story(database_url, tell)


def test_some_fields_are_read_without_the_others(database_url: str) -> None:
    async def part(ctx: Any) -> None:
        order = await ctx.get_document(fields=("note",))
        seen.append(sorted(order.__dict__))
        with pytest.raises(ValueInvalid, match="no column 'nonsense'"):
            await ctx.get_document(fields=("nonsense",))

    async def tell(t: TaskApp) -> None:
        steps["sync"] = [part]
        await t.run_mutation(place)
        await t.settle_down(raise_errors=True)
        assert seen == [["id", "note"]]
        statements = t.engine.statements.of(Order, definition_of(Order))
        sql = statements.part(("id", "note"))[0].sql
        assert "amount" not in sql

    story(database_url, tell)


def test_f8_a_row_that_comes_back_to_what_it_was_is_run_again(database_url: str) -> None:
    async def tell(t: TaskApp) -> None:
        order = await t.run_mutation(place)

        async def there_and_back(ctx: Any) -> None:
            await t.run_mutation(change, order, amount=2)
            await skipped(ctx)

        steps["sync"] = [there_and_back, document]
        await t.plan()
        await t.run_until_idle(plan=False)
        await t.run_mutation(change, order, amount=1)
        await t.settle_down()
        assert seen == ["changed", 1]

    story(database_url, tell)


@pytest.mark.parametrize("text", ["$9.99", "$$ROOT", "$2b$10$abcdef", "{$gt: 1}"])
def test_f9_dollars_are_nothing_special(database_url: str, text: str) -> None:
    async def tell(t: TaskApp) -> None:
        row = await t.run_mutation(add_watched, text)
        await t.run_mutation(write_watched, row, {"a": text})
        await t.settle_down(raise_errors=True)
        assert {"value.a": text, "name": text} in seen
        assert {job.state.value for job in await t.jobs()} == {"success"}

    story(database_url, tell)


def test_a_handler_that_writes_what_it_watches_calls_for_itself(database_url: str) -> None:
    async def tell(t: TaskApp) -> None:
        await t.run_mutation(place, "write", 1)
        await t.settle_down()
        assert seen == [1, 2, 3]

    story(database_url, tell)


# ----- WP: what is watched


def test_wp1_wp2_wp3_a_run_for_each_change_of_what_is_watched(database_url: str) -> None:
    async def tell(t: TaskApp) -> None:
        row = await t.run_mutation(add_watched)
        await t.settle_down()
        for value, expected in (
            (None, 1),
            ({"a": None}, 1),
            ({"a": 0}, 2),
            ({"a": 0, "b": 1}, 2),
            ({"a": [1, {"x": 2}]}, 3),
            ({"a": [1, {"x": 2}]}, 3),
            ({"a": [{"x": 2}, 1]}, 4),
            ({}, 5),
        ):
            await t.run_mutation(write_watched, row, value)
            await t.settle_down(raise_errors=True)
            assert sum(isinstance(one, dict) for one in seen) == expected, value

    story(database_url, tell)


def test_wp4_wp5_wp7_ids_and_computed_values_are_watched(database_url: str) -> None:
    async def tell(t: TaskApp) -> None:
        row = await t.run_mutation(add_watched)
        for price, count in ((2, 6), (3, 4), (12, 1), (5, 1)):
            await t.run_mutation(write_watched, row, None, price, count)
            await t.settle_down()
        assert seen.count("once") == 1
        assert seen.count("product") == 2, "12 three times, and 5"

    story(database_url, tell)


# ----- attempts


def test_f15_attempts_are_kept_over_changes_so_that_a_hot_row_fails_in_the_end(database_url: str) -> None:
    async def tell(t: TaskApp) -> None:
        order = await t.run_mutation(place, "hot")
        amounts = iter(range(10, 100))

        async def hot_and_failing(ctx: Any) -> None:
            if ctx.attempt < 5:
                await t.run_mutation(change, order, amount=next(amounts))
                await t.plan()
            await fails(ctx)

        steps["hot"] = [hot_and_failing]
        await t.settle_down()
        assert seen == [1, 2, 3, 4, 5]
        job = await t.only_job()
        assert (job.state.value, job.error) == ("failed", "ConnectionError: no 5")

    story(database_url, tell)


def test_by_default_a_change_lets_attempts_count_anew(database_url: str) -> None:
    async def tell(t: TaskApp) -> None:
        order = await t.run_mutation(place, "default")

        async def changed_once(ctx: Any) -> None:
            if len(seen) == 2:
                await t.run_mutation(change, order, amount=2)
                await t.plan()
            await fails(ctx)

        steps["kept"] = [changed_once]
        await t.settle_down()
        assert seen == [1, 2, 3, 1, 2, 3, 4, 5]

    story(database_url, tell)


def test_hi1_success_and_failure_are_kept_with_the_row(database_url: str) -> None:
    async def good(ctx: Any) -> None:
        return

    async def tell(t: TaskApp) -> None:
        steps["kept"] = [good, fails]
        order = await t.run_mutation(place, "default")
        await t.settle_down()
        assert (await t.only_job()).state.value == "success"
        await t.run_mutation(change, order, amount=2)
        await t.settle_down()
        job = await t.only_job()
        assert job.state.value == "failed"
        assert [one.what for one in job.attempts] == ["success", *["raised"] * 4, "exhausted"]
        assert all("ConnectionError" in (one.traceback or "") for one in job.attempts[1:])

    story(database_url, tell)


@pytest.mark.parametrize(("task", "status", "most"), [("kept", "default", 5), ("hot", "hot", 3)], ids=["hi2", "hi3"])
def test_hi2_hi3_the_last_runs_are_kept(database_url: str, task: str, status: str, most: int) -> None:
    async def good(ctx: Any) -> None:
        seen.append((await ctx.get_document()).amount)

    async def tell(t: TaskApp) -> None:
        steps[task] = [good]
        order = await t.run_mutation(place, status, 1)
        await t.settle_down()
        for amount in range(2, 10):
            await t.run_mutation(change, order, amount=amount)
            await t.settle_down()
        assert seen == list(range(1, 10))
        assert [one.what for one in (await t.only_job()).attempts] == ["success"] * most

    story(database_url, tell)


# ----- time and cancels


def test_a_run_that_takes_too_long_has_failed(database_url: str) -> None:
    async def forever(ctx: Any) -> None:
        assert ctx.work.deadline is not None
        await asyncio.Event().wait()

    async def tell(t: TaskApp) -> None:
        steps["slow"] = [forever]
        await t.run_mutation(place, "slow")
        await t.settle_down()
        job = await t.only_job()
        assert (job.state.value, job.attempt) == ("failed", 1)
        assert (job.error or "").startswith("CallTimeout")

    story(database_url, tell)


def test_a_run_hears_that_it_is_canceled(database_url: str) -> None:
    async def waits(ctx: Any) -> None:
        assert not ctx.cancelled
        seen.append(await ctx.wait_cancelled())
        assert ctx.cancelled

    async def tell(t: TaskApp) -> None:
        steps["sync"] = [waits]
        await t.run_mutation(place)
        await t.plan()
        with gate("worker.outcome") as ended:
            await t.worker.tick()
            job = await t.only_job()
            await t.scheduler.cancel(job.id)
            await t.worker.tick()
            await ended.arrived()
            ended.open()
        await until(lambda: answer(t.worker.open_outcomes == 1))
        await t.worker.tick()
        assert seen == [True]
        assert (await t.only_job()).state.value == "success", "it had ended by then"

    story(database_url, tell)
