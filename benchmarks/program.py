"""The program that is measured: two tables and a few functions, as a user would write them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock import ActionCtx, App, Id, Index, MutationCtx, QueryCtx, Table
from penstock.clock import SystemClock
from penstock.schema.ids import format_id

app = App()
forty = app.workpool("forty", max_parallelism=40)
plenty = app.workpool("plenty", max_parallelism=1000)

TAKE = 20
NOTE_SECONDS = 0.02
PURCHASES_OF_A_CUSTOMER = 25


class Counter(Table):
    """A row that is read, changed and written back."""

    name: str
    count: int = 0


class Purchase(Table):
    """Rows that are read by their customer."""

    customer: str
    product: str
    amount: int
    placed_at: datetime

    by_customer = Index("customer")


@app.mutation
async def add_one(ctx: MutationCtx, counter: Id[Counter]) -> int:
    """Read a row by its id, and change one of its columns."""
    row = await ctx.db.get(Counter, counter)
    if row is None:
        raise LookupError(counter)
    await ctx.db.patch(Counter, counter, count=row.count + 1)
    return row.count + 1


@app.query
async def purchases_of(ctx: QueryCtx, customer: str) -> list[Purchase]:
    """Read twenty rows through an index."""
    return await ctx.db.query(Purchase).with_index(Purchase.by_customer, customer=customer).take(TAKE)


@app.mutation
async def add_one_and_schedule(ctx: MutationCtx, counter: Id[Counter], jobs: int) -> None:
    """Change a row, and schedule some jobs in the same transaction."""
    row = await ctx.db.get(Counter, counter)
    if row is None:
        raise LookupError(counter)
    await ctx.db.patch(Counter, counter, count=row.count + 1)
    for place in range(jobs):
        await ctx.scheduler.run_after(timedelta(hours=place), nothing)


@app.internal_mutation
async def nothing(ctx: MutationCtx) -> None:
    """A job that leaves nothing behind but its status."""


@app.internal_action
async def nothing_outside(ctx: ActionCtx) -> None:
    """The same as an action."""


COUNTER_COLUMNS = ("id", "creation_time", "name", "count")
PURCHASE_COLUMNS = ("id", "creation_time", "customer", "product", "amount", "placed_at")


def counters(count: int) -> Iterator[tuple[Any, ...]]:
    """Rows of `Counter`, as they are stored."""
    clock, now = SystemClock(), datetime.now(UTC)
    for number in range(count):
        yield format_id("counter", clock.uuid7()), now, f"counter number {number}", 0


def purchases(count: int) -> Iterator[tuple[Any, ...]]:
    """Rows of `Purchase`, as they are stored; those of a customer lie apart from each other."""
    clock, now = SystemClock(), datetime.now(UTC)
    customers = max(1, count // PURCHASES_OF_A_CUSTOMER)
    for number in range(count):
        yield (
            format_id("purchase", clock.uuid7()),
            now,
            customer(number % customers),
            f"product {number}",
            number,
            now,
        )


def customer(number: int) -> str:
    """The name of a customer."""
    return f"customer-{number:06d}"


@app.internal_action
async def note_in(ctx: ActionCtx, file: str, number: int) -> None:  # noqa: ARG001 - every action is given one
    """Write into a file that this job ran."""
    await SystemClock().sleep(NOTE_SECONDS)
    with Path(file).open("a", encoding="utf-8") as notes:  # noqa: ASYNC230 - a few bytes
        notes.write(f"{number}\n")
