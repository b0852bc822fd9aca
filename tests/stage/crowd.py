"""Jobs that share transactions: each leaves what it did, and some do what they should not."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

from stage.ledger import Account, Entry, app, between, crew, enter

from penstock import Id, Index, MutationCtx, NonRetryableError, QueryCtx, Table
from penstock.clock import SystemClock


class Seat(Table):
    """Of each number there is one."""

    number: int

    by_number = Index("number", unique=True)


@app.query
async def balances(ctx: QueryCtx) -> list[int]:
    found = await ctx.db.query(Account).with_index(Account.by_owner).collect()
    return [account.balance for account in found]


@app.query
async def seats(ctx: QueryCtx) -> list[int]:
    return [seat.number for seat in await ctx.db.query(Seat).with_index(Seat.by_number).collect()]


times: dict[int, list[tuple[float, int]]] = {}


@app.mutation
async def bump(ctx: MutationCtx, account: Id[Account], number: int, wait: bool = False) -> int:
    """Add one to an account, and enter a number; what the account holds then."""
    times.setdefault(number, []).append((ctx.now().timestamp(), ctx.random.getrandbits(32)))
    row = await ctx.db.get(Account, account)
    assert row is not None
    if wait:
        await between()
    row = await ctx.db.patch(Account, account, balance=row.balance + 1)
    await ctx.db.insert(Entry(what="bump", number=number))
    return row.balance


async def _collide(ctx: MutationCtx) -> None:
    await ctx.db.insert(Seat(number=6))


async def _enqueue_at_once(ctx: MutationCtx) -> None:
    await crew.enqueue_batch(ctx, enter, [{"what": "left by one that failed"}])


async def _write_too_much(ctx: MutationCtx) -> None:
    for place in range(20):
        await ctx.db.insert(Entry(what="too many", number=place))


async def _swallow_the_limit(ctx: MutationCtx) -> None:
    with suppress(Exception):  # as no program should
        await _write_too_much(ctx)


async def _forget_await(ctx: MutationCtx) -> None:
    ctx.db.insert(Entry(what="never"))  # type: ignore[unused-coroutine]  # that is what it tries


async def _leave_a_call_behind(ctx: MutationCtx) -> None:
    left_behind.append(asyncio.ensure_future(ctx.db.query(Entry).collect()))
    await SystemClock().sleep(0)  # it has begun


async def _ask_nonsense(ctx: MutationCtx) -> None:
    await ctx.sql("select nonsense from nowhere")


async def _exit(ctx: MutationCtx) -> None:
    raise SystemExit


async def _raise(ctx: MutationCtx) -> None:
    raise NonRetryableError("as asked")


async def _raise_after_looking(ctx: MutationCtx) -> None:
    await ctx.db.query(Entry).with_index(Entry.by_what, what="bump").collect()  # it sees what it has done
    raise NonRetryableError("as asked")


WAYS = {
    "raise": _raise,
    "raise after looking": _raise_after_looking,
    "raise after enqueuing at once": _enqueue_at_once,
    "unique": _collide,
    "limit": _write_too_much,
    "swallowed limit": _swallow_the_limit,
    "unawaited": _forget_await,
    "left behind": _leave_a_call_behind,
    "sql": _ask_nonsense,
    "exit": _exit,
}
left_behind: list[asyncio.Future[object]] = []


@app.mutation
async def bump_and_fail(ctx: MutationCtx, account: Id[Account], number: int, how: str) -> int:
    """Do what `bump` does, and more, and then fail."""
    balance = await bump(ctx, account, number)
    await ctx.scheduler.run_after(timedelta(0), enter, what="left by one that failed")
    await crew.enqueue(ctx, enter, what="left by one that failed")
    await WAYS[how](ctx)
    if how.endswith("at once"):
        raise NonRetryableError("as asked")
    return balance


@app.mutation
async def take_seat(ctx: MutationCtx, number: int) -> str:
    """Take a seat in a sub-transaction; if it is taken, say so."""
    try:
        await ctx.run_mutation(sit, number)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
        await ctx.db.insert(Entry(what="refused", number=number))
        return type(error).__name__
    return "taken"


@app.mutation
async def sit(ctx: MutationCtx, number: int) -> None:
    await ctx.db.insert(Entry(what="sat", number=number))
    await ctx.db.insert(Seat(number=number))


@app.mutation
async def pass_on(ctx: MutationCtx, number: int) -> None:
    """Enqueue two more."""
    await ctx.scheduler.run_after(timedelta(0), enter, what="passed on", number=number)
    await crew.enqueue_batch(ctx, enter, [{"what": "passed on", "number": -number}])


@app.mutation
async def count_entries(ctx: MutationCtx, number: int) -> int:
    """How many entries there are; then one more. Read by an index, by SQL and by counting."""
    found = len(await ctx.db.query(Entry).with_index(Entry.by_what, what="counted").collect())
    assert found == await ctx.db.query(Entry).with_index(Entry.by_what, what="counted").count()
    entry = await ctx.db.insert(Entry(what="counted", number=number))
    await ctx.db.patch(Entry, entry, number=found)
    if number % 3 == 0:
        await ctx.db.delete(Entry, entry)
        assert await ctx.db.get(Entry, entry) is None
        await ctx.db.insert(Entry(what="counted", number=found))
    return found
