"""A read model of a ledger, kept by an outbox, as the command line finds it: what each account holds.

Its reset waits in the middle if the environment names a file, `HELD_UNTIL`, until that is there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from penstock import App, Index, MutationCtx, QueryCtx, Table
from penstock.clock import SystemClock

app = App()
held_until = Path(os.environ.get("HELD_UNTIL", ""))


class Entry(Table):
    """What is written."""

    account: str
    cents: int


class Balance(Table):
    """What follows of it."""

    account: str
    cents: int
    entries: int

    by_account = Index("account", unique=True)


async def clear(ctx: MutationCtx) -> None:
    """Forget what was counted."""
    async for one in ctx.db.query(Balance):
        await ctx.db.delete(Balance, one.id)
    if held_until.name:
        sys.stdout.write("held\n")
        sys.stdout.flush()
        while not _may_go_on():
            await SystemClock().sleep(0.01)


def _may_go_on() -> bool:
    return held_until.exists()


@app.outbox(Entry, name="balances", reset=clear)
async def count(ctx: MutationCtx, entry: Entry) -> None:
    """Add an entry to what its account holds."""
    known = await ctx.db.query(Balance).with_index(Balance.by_account, account=entry.account).first()
    if known is None:
        await ctx.db.insert(Balance(account=entry.account, cents=entry.cents, entries=1))
    else:
        await ctx.db.patch(Balance, known.id, cents=known.cents + entry.cents, entries=known.entries + 1)


@app.mutation
async def enter(ctx: MutationCtx, first: int, last: int) -> None:
    """Write entries."""
    for number in range(first, last):
        await ctx.db.insert(Entry(account=f"account {number % 7}", cents=number))


@app.mutation
async def spoil(ctx: MutationCtx) -> None:
    """Have the read model tell something else than the entries do."""
    async for one in ctx.db.query(Balance):
        await ctx.db.patch(Balance, one.id, cents=one.cents + 1)


@app.query
async def balances(ctx: QueryCtx) -> dict[str, tuple[int, int]]:
    """What accounts hold by the read model."""
    return {one.account: (one.cents, one.entries) for one in await ctx.db.query(Balance).collect()}


@app.query
async def sums(ctx: QueryCtx) -> dict[str, tuple[int, int]]:
    """What they hold by their entries."""
    found: dict[str, tuple[int, int]] = {}
    for one in await ctx.db.query(Entry).collect():
        cents, entries = found.get(one.account, (0, 0))
        found[one.account] = cents + one.cents, entries + 1
    return found
