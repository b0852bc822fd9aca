"""What handlers of reactive tasks see and ask for: rows, watched values, deferring, throttling, retries, history."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from stage.stories import TaskApp, two_on
from stage.waits import until

from penstock import App, Id, MutationCtx, MutationTaskCtx, Retry, Table, TaskConditionFailed, TaskCtx, ValueInvalid
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


@app.reactive_task(Order, filter=lambda o: o.status == "hot", retry=AT_ONCE, history=3)
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


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    seen.clear()
    steps.clear()


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


def doing(what: Callable[[Any], None], error: Exception | None = None) -> Step:
    """A handler that asks for something, and may fail."""

    async def step(ctx: Any) -> None:
        what(ctx)
        if error is not None:
            raise error

    return step


async def test_fc1_fc2_a_run_is_deferred_and_uses_no_attempt_also_when_it_raises(database_url: str) -> None:
    async with TaskApp(app, database_url) as t:
        for amount, step in enumerate(
            (
                doing(lambda ctx: ctx.defer_current(MINUTE)),
                doing(lambda ctx: ctx.defer_current(until=t.clock.now() + MINUTE)),
                doing(lambda ctx: ctx.defer_current(until=t.clock.now() + MINUTE), ConnectionError("busy")),
            )
        ):
            moment = t.clock.now() + MINUTE
            steps["sync"] = [step, document]
            await t.run_mutation(place, amount=amount)
            await t.settle_down(advance=False)
            (job,) = await t.jobs("pending")
            assert (job.attempt, job.run_at) == (0, moment)
            assert ("busy" in (job.error or "")) is (amount == 2)
            t.clock.advance(MINUTE - timedelta(microseconds=1))
            await t.settle_down(advance=False)
            assert amount not in seen
            await t.settle_down()
            assert seen[-1] == amount
        assert {job.state.value for job in await t.jobs()} == {"success"}


async def test_fc3_fc4_a_throttled_task_starts_no_other_run(database_url: str) -> None:
    async with TaskApp(app, database_url) as t:
        for amount, step in (
            (5, doing(lambda ctx: ctx.throttle_all(MINUTE))),
            (6, doing(lambda ctx: ctx.throttle_all(until=t.clock.now() + MINUTE))),
        ):
            steps["sync"] = [step, document]
            await t.run_mutation(place)
            await t.settle_down(advance=False)
            await t.run_mutation(place, amount=amount)
            t.clock.advance(MINUTE - timedelta(microseconds=1))
            await t.settle_down(advance=False)
            assert amount not in seen
            t.clock.advance(timedelta(seconds=1))
            await t.settle_down(advance=False)
            assert seen[-1] == amount


async def test_a_change_is_run_in_place_of_a_deferred_run(database_url: str) -> None:
    async with TaskApp(app, database_url) as t:
        steps["sync"] = [doing(lambda ctx: ctx.defer_current(timedelta(days=1))), document]
        order = await t.run_mutation(place)
        await t.settle_down(advance=False)
        await t.run_mutation(change, order, amount=7)
        await t.settle_down(advance=False)
        assert seen == [7]


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


async def test_wc1_the_row_is_read_in_the_transaction_of_a_mutation(database_url: str) -> None:
    async with TaskApp(app, database_url) as t:
        await t.run_mutation(place, "own")
        await t.settle_down()
        assert seen == ["of this transaction"], "what it has written, and nobody else sees yet"


async def test_wc2_wc3_wc5_a_run_whose_row_is_not_as_planned_ends_as_skipped(database_url: str) -> None:
    async def nothing(ctx: Any) -> None:
        seen.append("again")

    async with TaskApp(app, database_url) as t:

        def changed_before(order: Id[Order], what: dict[str, Any] | None) -> Step:
            async def step(ctx: Any) -> None:
                await (t.run_mutation(drop, order) if what is None else t.run_mutation(change, order, **what))
                await skipped(ctx)

            return step

        cases: list[tuple[dict[str, Any] | None, str]] = [
            ({"status": "off"}, "left"),
            ({"amount": 9}, "changed"),
            ({"address": {"city": "Brno"}}, "changed"),
            (None, "gone"),
        ]
        for what, reason in cases:
            order = await t.run_mutation(place)
            steps["sync"] = [changed_before(order, what), nothing]
            await t.plan()
            await t.run_until_idle(plan=False)
            (job,) = [job for job in await t.jobs() if str(order) in job.args["key"]]
            assert (job.state.value, job.attempt) == ("skipped", 1), reason
            assert seen == [reason]
            await t.settle_down()
            assert seen == [reason, *(["again"] if reason == "changed" else [])]
            seen.clear()


async def test_f9_wc4_watched_paths_give_their_values_and_dollars_are_nothing_special(database_url: str) -> None:
    async def values(ctx: Any) -> None:
        seen.append(ctx.watched_values["address.city"])
        await ctx.get_document()

    async with TaskApp(app, database_url) as t:
        steps["sync"] = [values]
        order = await t.run_mutation(place)
        for text in ("$9.99", "$$ROOT", "$2b$10$abcdef", "{$gt: 1}"):
            await t.run_mutation(change, order, address={"city": text, "note": text})
            await t.settle_down(raise_errors=True)
            assert seen[-1] == text
        assert {job.state.value for job in await t.jobs()} == {"success"}


async def test_hi1_hi2_hi3_the_last_runs_are_kept(database_url: str) -> None:
    async with TaskApp(app, database_url) as t:
        steps.update(kept=[document], hot=[document])
        orders: list[Id[Order]] = []
        for status, most in (("default", 5), ("hot", 3)):
            orders.append(order := await t.run_mutation(place, status, 1))
            await t.settle_down()
            for amount in range(2, 10):
                await t.run_mutation(change, order, amount=amount)
                await t.settle_down()
            assert seen == list(range(1, 10))
            seen.clear()
            (job,) = [job for job in await t.jobs() if str(order) in job.args["key"]]
            assert [one.what for one in job.attempts] == ["success"] * most
        steps["hot"] = [fails]
        await t.run_mutation(change, orders[-1], amount=10)
        await t.settle_down()
        (job,) = await t.jobs("failed")
        assert [one.what for one in job.attempts] == ["success"] * 3 + ["raised"] * 4 + ["exhausted"]
        assert all("ConnectionError" in (one.traceback or "") for one in job.attempts[3:])


# ----- WC: the row as it is when the handler asks for it


async def test_some_fields_are_read_without_the_others(database_url: str) -> None:
    async def part(ctx: Any) -> None:
        order = await ctx.get_document(fields=("note",))
        seen.append(sorted(order.__dict__))
        with pytest.raises(ValueInvalid, match="no column 'nonsense'"):
            await ctx.get_document(fields=("nonsense",))

    async with TaskApp(app, database_url) as t:
        steps["sync"] = [part]
        await t.run_mutation(place)
        await t.settle_down(raise_errors=True)
        assert seen == [["id", "note"]]
        statements = t.engine.statements.of(Order, definition_of(Order))
        sql = statements.part(("id", "note"))[0].sql
        assert "amount" not in sql


async def test_a_handler_that_writes_what_it_watches_calls_for_itself(database_url: str) -> None:
    async with TaskApp(app, database_url) as t:
        await t.run_mutation(place, "write", 1)
        await t.settle_down()
        assert seen == [1, 2, 3]


# ----- time and cancels


async def test_a_run_that_takes_too_long_has_failed(database_url: str) -> None:
    async def forever(ctx: Any) -> None:
        assert ctx.work.deadline is not None
        await asyncio.Event().wait()

    async with TaskApp(app, database_url) as t:
        steps["slow"] = [forever]
        await t.run_mutation(place, "slow")
        await t.settle_down()
        job = await t.only_job()
        assert (job.state.value, job.attempt) == ("failed", 1)
        assert (job.error or "").startswith("CallTimeout")


async def test_a_run_hears_that_it_is_canceled(database_url: str) -> None:
    async def waits(ctx: Any) -> None:
        assert not ctx.cancelled
        seen.append(await ctx.wait_cancelled())
        assert ctx.cancelled

    async with TaskApp(app, database_url) as t:
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
