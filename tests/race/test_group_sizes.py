"""How much shares a transaction follows from jobs, statements and rows: no clock, load or network changes it."""

from __future__ import annotations

import sqlite3
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from stage.outboxes import drain
from stage.proxy import Proxy

from penstock import App, Id, Index, MutationCtx, MutationTaskCtx, Table
from penstock.calls.jobs import group
from penstock.clock import SystemClock
from penstock.services.relay.cursor import Cursor
from penstock.services.relay.state import Write
from penstock.testing import TestApp
from penstock.transaction.commit import commit_shared

MANY = 60
FAR = 80_000.0  # seconds, which a clock that is fast does not end
_CREATE = (
    "create table invoice (number bigint primary key, state text not null, amount bigint not null)",
    "create index invoice_amount on invoice (amount)",
)


class Account(Table, name="sized_account"):
    owner: int
    count: int = 0

    by_owner = Index("owner")


class Invoice(Table, source="invoice", key="number", managed=False):
    """Rows that another program writes."""

    number: int
    state: str
    amount: int

    by_amount = Index("amount")


app = App(tables=[Account, Invoice])


@app.internal_mutation
async def enter(ctx: MutationCtx, number: int) -> None:
    await ctx.db.insert(Account(owner=number))


@app.internal_mutation
async def bump(ctx: MutationCtx, number: int) -> None:
    row = await ctx.db.query(Account).with_index(Account.by_owner, owner=number).unique()
    assert row is not None
    await ctx.db.patch(Account, row.id, count=row.count + 1)


@app.internal_mutation
async def bill(ctx: MutationCtx, number: int) -> None:
    await ctx.db.insert(Invoice(number=number, state="open", amount=number))


@app.internal_mutation
async def pay(ctx: MutationCtx, number: int) -> None:
    row = await ctx.db.query(Invoice).with_index(Invoice.by_amount, amount=number).unique()
    assert row is not None
    await ctx.db.patch(Invoice, Id(row.number), state="paid")


@app.internal_mutation
async def pay_and_enter(ctx: MutationCtx, number: int) -> None:
    for state in ("paid", "booked"):
        await ctx.db.patch(Invoice, Id(number), state=state)
        await ctx.db.insert(Account(owner=MANY + number))


@app.reactive_task(Invoice, filter=lambda row: row.state == "booked")
async def close(ctx: MutationTaskCtx[Invoice]) -> None:
    row = await ctx.get_document()
    await ctx.db.patch(Invoice, Id(row.number), state="closed")


@app.outbox(Account, name="entered")
async def entered(ctx: MutationCtx, row: Account) -> None:
    await ctx.db.patch(Account, row.id, count=row.count + 1)


JOBS = {enter: 3, bump: 4, bill: 4, pay: 4, pay_and_enter: 7}  # with the most transactions for MANY of them


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """How many jobs, or messages, committed together."""
    found: dict[str, list[int]] = {"jobs": [], "messages": []}
    commit, written = commit_shared, Cursor.apply

    async def has_committed(shared: Any, transactions: Any, *rest: Any) -> None:
        await commit(shared, transactions, *rest)
        found["jobs"].append(len(transactions))

    def has_written(cursor: Cursor, write: Write) -> None:
        found["messages"] += [write.step.delivered] if write.step.delivered else []
        written(cursor, write)

    monkeypatch.setattr(group, "commit_shared", has_committed)
    monkeypatch.setattr(Cursor, "apply", has_written)
    return found


async def create(url: str) -> None:
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
            for statement in _CREATE:
                file.execute(statement)
        file.close()
        return
    connection = await asyncpg.connect(url)
    await connection.execute(";".join(_CREATE))
    await connection.close()


def lie(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Have each monotonic clock of penstock run a hundred times too fast, or stand still."""
    real = SystemClock.monotonic
    monkeypatch.setattr(SystemClock, "monotonic", lambda self: 100 * real(self) if how == "fast" else 1.0)


@pytest.mark.long
@pytest.mark.parametrize("how", ["true", "fast", "still", "far"])
async def test_the_same_jobs_and_messages_share_a_transaction_by_any_clock_and_over_any_network(
    empty_database_url: str, sizes: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    await create(empty_database_url)
    if how in {"fast", "still"}:
        lie(monkeypatch, how)
    async with AsyncExitStack() as stack:
        url = empty_database_url
        if how == "far" and not url.startswith("sqlite"):
            proxy = await stack.enter_async_context(Proxy(url).running())
            url, proxy.delay = proxy.url, 0.01
        test = await stack.enter_async_context(TestApp(app, url, lease=FAR, database_wait=FAR, statement_timeout=FAR))
        await test.run_until_idle()
        for job, most in JOBS.items():
            for number in range(MANY):
                await test.scheduler.run_after(timedelta(0), job, number=number)
            sizes["jobs"].clear()
            await test.run_until_idle(plan=False)
            assert sum(sizes["jobs"]) == MANY, job.name
            assert len(sizes["jobs"]) <= most, job.name
        sizes["jobs"].clear()
        await test.plan()
        await test.run_until_idle(plan=False)
        assert sum(sizes["jobs"]) == MANY, "runs of the task"
        assert len(sizes["jobs"]) <= 4, "runs of the task"
        await drain(test)
        assert sum(sizes["messages"]) == 3 * MANY
        assert len(sizes["messages"]) <= 5
