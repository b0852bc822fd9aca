"""Jobs that share transactions: each leaves what it did, and some do what they should not."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from programs.ledger import Account, Entry, app, between, crew, enter

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


async def _cancel_itself(ctx: MutationCtx) -> None:
    _cancel_own_task()
    await SystemClock().sleep(0)


async def _cancel_what_follows(ctx: MutationCtx) -> None:
    _cancel_own_task()


def _cancel_own_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


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
    "cancel": _cancel_itself,
    "cancel what follows": _cancel_what_follows,
}
left_behind: list[asyncio.Future[object]] = []


@app.mutation
async def bump_and_fail(ctx: MutationCtx, account: Id[Account], number: int, how: str) -> int:
    balance = await bump(ctx, account, number)
    await ctx.scheduler.run_after(timedelta(0), enter, what="left by one that failed")
    await crew.enqueue(ctx, enter, what="left by one that failed")
    await WAYS[how](ctx)
    if how.endswith("at once"):
        raise NonRetryableError("as asked")
    return balance


@app.mutation
async def take_seat(ctx: MutationCtx, number: int) -> str:
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


class Sample(Table):
    text: str
    amount: float
    yes: bool
    raw: bytes
    at: datetime
    day: date
    lasted: timedelta
    price: Decimal
    token: UUID
    tags: list[str]
    note: str | None = None


def sample(number: int) -> dict[str, Any]:
    """Values of a row, those at the ends of their kinds among them."""
    return {
        "text": f"{number} {{,}}\\ \" ' žluť NULL",
        "amount": [1.5, 0.0, 1e300, -1e-300][number % 4],
        "yes": number % 2 == 0,
        "raw": bytes([0, 92, number]),
        "at": [datetime.max.replace(tzinfo=UTC), datetime(2026, 3, 29, 1, 30, 0, number, UTC)][number % 2],
        "day": date(2024, 2, 29) + timedelta(days=number),
        "lasted": timedelta(days=-number, microseconds=1),
        "price": Decimal(number) / Decimal(1000),
        "token": UUID(int=number),
        "tags": ["a", "{b}", 'c"'][: number % 4],
        "note": None if number % 3 else f"note {number}",
    }


@app.mutation
async def take_samples(ctx: MutationCtx, count: int) -> list[Id[Sample]]:
    return [await ctx.db.insert(Sample(**sample(0))) for _ in range(count)]


@app.mutation
async def change_sample(ctx: MutationCtx, of: Id[Sample], number: int) -> None:
    await ctx.db.patch(Sample, of, **sample(number))


@app.query
async def samples(ctx: QueryCtx, ids: list[Id[Sample]]) -> list[Sample]:
    found = [await ctx.db.get(Sample, one) for one in ids]
    return [one for one in found if one is not None]
