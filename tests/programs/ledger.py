"""A small program whose sums must be right whatever happens: accounts, entries, and jobs that write them.

The races act on it, in the test's own process and as `python -m programs.ledger` in others. Its callers go on while the
database goes away and comes back, and know what must be true of their calls afterwards.
"""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from stage.waits import SOON, until

from penstock import ActionCtx, App, Id, Index, MutationCtx, QueryCtx, Retry, Table
from penstock.app import Backend
from penstock.clock import SystemClock
from penstock.errors import DatabaseUnavailable, LockLost, TryAgain
from penstock.services.service import ServiceName
from penstock.sync import MutationCtx as SyncMutationCtx
from penstock.testing.gates import Gate

app = App()
patience = Retry(max_attempts=9, initial_backoff=0.05)
crew = app.workpool("crew", max_parallelism=4, default_retry=patience)
tenants = app.workpool("tenants", max_parallelism=9, key_parallelism=2, default_retry=patience)
lender = app.workpool("lender", max_parallelism=2, group="lending", default_retry=patience)
borrower = app.workpool("borrower", max_parallelism=2, group="lending", default_retry=patience)


class Account(Table):
    owner: str
    balance: int = 0

    by_owner = Index("owner", unique=True)


class Entry(Table):
    what: str
    number: int = 0

    by_what = Index("what", "number")


_between: Gate | None = None


@contextmanager
def held_between(most: int) -> Iterator[Gate]:
    """Hold so many functions between what they read and what they write, for the time of a block."""
    global _between  # noqa: PLW0603 - functions of an app are global, and so is where they are held
    _between = Gate(most)
    try:
        yield _between
    finally:
        _between.open()
        _between = None


async def between() -> None:
    if _between is not None:
        await _between.pass_through()


@app.mutation
async def open_account(ctx: MutationCtx, owner: str, balance: int = 0) -> Id[Account]:
    return await ctx.db.insert(Account(owner=owner, balance=balance))


@app.mutation
async def open_once(ctx: MutationCtx, owner: str) -> bool:
    if await ctx.db.query(Account).with_index(Account.by_owner, owner=owner).first():
        return False
    await between()
    await ctx.db.insert(Account(owner=owner))
    return True


@app.mutation
async def add(ctx: MutationCtx, owner: str, amount: int) -> int:
    account = await ctx.db.query(Account).with_index(Account.by_owner, owner=owner).unique()
    assert account is not None
    await between()
    await ctx.db.patch(Account, account.id, balance=account.balance + amount)
    return account.balance + amount


@app.mutation
async def set_balance(ctx: MutationCtx, owner: str, balance: int) -> None:
    account = await ctx.db.query(Account).with_index(Account.by_owner, owner=owner).unique()
    assert account is not None
    await ctx.db.patch(Account, account.id, balance=balance)


@app.mutation
async def withdraw_unless_both_are_empty(ctx: MutationCtx, owner: str, both: list[str]) -> bool:
    """Empty an account if the sum of both stays above zero; whether that was done."""
    accounts = {name: await ctx.db.query(Account).with_index(Account.by_owner, owner=name).unique() for name in both}
    await between()
    total = sum(account.balance for account in accounts.values() if account)
    mine = accounts[owner]
    if mine is None or total - mine.balance <= 0:
        return False
    await ctx.db.patch(Account, mine.id, balance=0)
    return True


runs_of_add_and_enter: list[float] = []


@app.mutation
async def add_and_enter(ctx: MutationCtx, owner: str) -> list[float]:
    """Add one and enter it; the times of all entries."""
    runs_of_add_and_enter.append(ctx.now().timestamp())
    await ctx.db.insert(Entry(what="add_and_enter"))
    await add(ctx, owner=owner, amount=1)  # which is held in between
    found = await ctx.db.query(Entry).with_index(Entry.by_what, what="add_and_enter").collect()
    return [entry.creation_time.timestamp() for entry in found]


meeting: asyncio.Barrier | None = None


@app.mutation
async def add_to_both(ctx: MutationCtx, owners: list[str]) -> None:
    """Add one to two accounts in order, meeting the other who does so in between."""
    global meeting  # noqa: PLW0603 - they meet once; who runs again goes on alone
    await add(ctx, owner=owners[0], amount=1)
    if meeting is not None:
        barrier = meeting
        await barrier.wait()
        meeting = None
    await add(ctx, owner=owners[1], amount=1)


reached = threading.Event()
go_on = threading.Event()
thread_ended: queue.Queue[str] = queue.Queue()


@app.mutation
def add_in_a_thread(ctx: SyncMutationCtx, owner: str) -> None:
    account = ctx.db.query(Account).with_index(Account.by_owner, owner=owner).unique()
    assert account is not None
    try:
        ctx.db.patch(Account, account.id, balance=account.balance + 1)
        reached.set()
        go_on.wait(SOON)
        ctx.db.patch(Account, account.id, balance=account.balance + 2)
    except BaseException as error:
        thread_ended.put(type(error).__name__)
        raise


@app.query
async def balance(ctx: QueryCtx, owner: str) -> int | None:
    account = await ctx.db.query(Account).with_index(Account.by_owner, owner=owner).unique()
    return account.balance if account else None


@app.query
async def balance_twice(ctx: QueryCtx, owner: str) -> list[int | None]:
    before = await balance(ctx, owner=owner)
    await between()
    return [before, await balance_anew(ctx, owner=owner)]


@app.query
async def balance_twice_or_nothing(ctx: QueryCtx, owner: str) -> list[int | None]:
    """What it is told of a failure it takes for an answer."""
    try:
        return await ctx.run_query(balance_twice, owner)
    except TryAgain:
        return []


@app.query
async def balance_anew(ctx: QueryCtx, owner: str) -> int | None:
    return await balance(ctx, owner=owner)


@app.query
async def sleep_in_the_database(ctx: QueryCtx, seconds: float) -> None:
    """PostgreSQL only."""
    await ctx.sql("select pg_sleep(:seconds)", seconds=seconds)


@app.internal_mutation
async def enter_slowly(ctx: MutationCtx, what: str, seconds: float) -> None:
    """PostgreSQL only."""
    await ctx.db.insert(Entry(what=what))
    await ctx.sql("select pg_sleep(:seconds)", seconds=seconds)


@app.query
async def accounts(ctx: QueryCtx) -> int:
    return await ctx.db.query(Account).count()


@app.mutation
async def enter(ctx: MutationCtx, what: str, number: int = 0) -> None:
    await ctx.db.insert(Entry(what=what, number=number))


@app.mutation
async def enter_under_lock(ctx: MutationCtx, what: str, key: str, fence: int) -> None:
    await ctx.check_fence(key, fence)
    await ctx.db.insert(Entry(what=what, number=fence))


@app.internal_mutation
async def enter_planned_second(ctx: MutationCtx, planned_at: datetime) -> None:
    """Enter for which second a cron has planned it."""
    await ctx.db.insert(Entry(what="planned", number=int(planned_at.timestamp())))


@app.mutation
async def enter_after_looking(ctx: MutationCtx, what: str) -> None:
    found = await ctx.db.query(Entry).with_index(Entry.by_what, what=what).collect()
    await ctx.db.insert(Entry(what=what, number=len(found)))


@app.mutation
async def enter_many(ctx: MutationCtx, what: str, count: int) -> None:
    for number in range(count):
        await ctx.db.insert(Entry(what=what, number=number))


@app.mutation
async def enter_whatever_happens(ctx: MutationCtx, what: str, count: int) -> None:
    for number in range(count):
        with suppress(Exception):
            await ctx.db.insert(Entry(what=what, number=number))


@app.mutation
async def transfer(ctx: MutationCtx, source: str, target: str, amount: int) -> None:
    await add(ctx, owner=source, amount=-amount)
    await add(ctx, owner=target, amount=amount)


@app.query
async def entries(ctx: QueryCtx, what: str) -> list[int]:
    return [entry.number for entry in await ctx.db.query(Entry).with_index(Entry.by_what, what=what).collect()]


@app.mutation
async def schedule_entries(ctx: MutationCtx, what: str, first: int, count: int) -> None:
    for number in range(first, first + count):
        await ctx.scheduler.run_after(timedelta(0), enter, what=what, number=number)


@app.action
async def act(ctx: ActionCtx, folder: str, number: int) -> None:
    """Leave a trace in the outside world, and take long."""
    with (Path(folder) / f"act-{number}").open("a") as trace:
        trace.write("x")
    await SystemClock().sleep(600)


@app.action
async def act_shortly(ctx: ActionCtx, folder: str) -> str:
    """Leave a trace, and end when the test says so."""
    with (Path(folder) / "shortly").open("a") as trace:
        trace.write("x")
    while not (Path(folder) / "go on").exists():
        await SystemClock().sleep(0.01)
    return "done"


deaf_may_end = asyncio.Event()


@app.action
async def act_and_be_deaf(ctx: ActionCtx) -> str:
    while not deaf_may_end.is_set():
        with suppress(asyncio.CancelledError):
            await deaf_may_end.wait()
    return "done"


@app.mutation
async def dies_in_its_transaction(ctx: MutationCtx, folder: str) -> None:
    """Take the process down with its transaction open, the first time."""
    await ctx.db.insert(Entry(what="died"))
    if _first(folder, "mutation"):
        os.kill(os.getpid(), signal.SIGKILL)


@app.action
async def dies(ctx: ActionCtx, folder: str) -> None:
    with (Path(folder) / "dies").open("a") as trace:
        trace.write("x")
    os.kill(os.getpid(), signal.SIGKILL)


@app.internal_action
async def occupy(ctx: ActionCtx, history: str, seconds: float) -> None:
    """Be one of those that run at once in the pool, and write down when that began and ended."""
    machine = SystemClock()
    _write_down(history, "begins", machine)
    try:
        await machine.sleep(seconds)
    finally:
        _write_down(history, "ends", machine)


@app.internal_action
async def wait_outside(ctx: ActionCtx, history: str) -> None:
    """Be one of those that run at once in the pool until somebody outside brings a token, and write it down."""
    token = await ctx.work.complete_later()
    _write_down(history, token, SystemClock())


def _write_down(history: str, what: str, machine: SystemClock) -> None:
    line = f"{machine.monotonic():.6f} {os.getpid()} {what}\n"
    file = os.open(history, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def _first(folder: str, name: str) -> bool:
    try:
        (Path(folder) / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


# ----- as a process of its own: python -m programs.ledger <role> <database> <arguments…>


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def work(backend: Backend) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    say("ready")
    await stop.wait()


async def lock(backend: Backend, key: str, seconds: str) -> None:
    """Hold a lock until the process is told to go on, and then write something under it."""
    async with backend.with_lock(key, lease=timedelta(seconds=float(seconds)), on_lost="signal") as held:
        say("ready")
        await asyncio.to_thread(sys.stdin.readline)
        say("lost" if held.lost else "held")
        try:
            await backend.run_mutation(enter_under_lock, what="locked", key=key, fence=held.fence)
        except LockLost:
            say("refused")
        else:
            say("written")


async def hammer(backend: Backend, owner: str, count: str, at_once: str) -> None:
    left = int(count)

    async def add_all() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await backend.run_mutation(add, owner=owner, amount=1)

    say("ready")
    sys.stdin.readline()
    await asyncio.gather(*(add_all() for _ in range(int(at_once))))
    say("done")


async def main(role: str, database: str, *arguments: str, **settings: str) -> None:
    roles: dict[str, tuple[ServiceName, ...]] = {"work": ("worker",), "keep": ("worker", "scheduler")}
    services = roles.get(role, ())
    config = app.config(database=database, **settings)
    async with app.open(services=services, config=config) as backend:
        if services:
            await work(backend)
        elif role == "lock":
            await lock(backend, *arguments)
        else:
            await hammer(backend, *arguments)


async def answer(true: bool) -> bool:
    return true


async def finished(backend: Backend, count: int) -> None:
    async def all_have() -> bool:
        return (await backend.job_counts()).get("success", 0) == count

    await until(all_have)


class Callers:
    """Call one mutation after the other, and remember what became of each call."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.acknowledged: dict[str, set[int]] = {"direct": set(), "job": set()}
        self.uncertain: dict[str, set[int]] = {"direct": set(), "job": set()}
        self.stopped = False

    async def call(self, numbers: range) -> None:
        """Enter numbers, at once and by jobs, until it is enough."""
        for number in numbers:
            if self.stopped:
                return
            await self._noted("direct", number, self.backend.run_mutation(enter, what="direct", number=number))
            job = self.backend.run_mutation(schedule_entries, what="job", first=number, count=1)
            await self._noted("job", number, job)

    async def _noted(self, what: str, number: int, call: Coroutine[Any, Any, None]) -> None:
        try:
            await call
        except DatabaseUnavailable as error:
            if not error.facts.get("uncertain"):
                raise
            self.uncertain[what].add(number)
        else:
            self.acknowledged[what].add(number)

    async def more(self, count: int) -> None:
        before = len(self.acknowledged["direct"])
        await until(lambda: answer(len(self.acknowledged["direct"]) >= before + count))


async def no_job_is_left(backend: Backend) -> bool:
    counts = await backend.job_counts()
    return not any(count for place, count in counts.items() if place != "success")


async def calls_are_kept(front: Backend, disturb: Callable[[], Awaitable[None]], times: int = 2) -> None:
    """Disturb callers and workers while they are busy: what was acknowledged is done once, and all of it is done."""
    callers = Callers(front)
    calls = [asyncio.create_task(callers.call(range(n * 100_000, (n + 1) * 100_000))) for n in range(4)]
    for _ in range(times):
        await callers.more(50)
        await disturb()
    await callers.more(50)
    callers.stopped = True
    await asyncio.gather(*calls)
    await until(lambda: no_job_is_left(front))
    for what, acknowledged in callers.acknowledged.items():
        found = await front.run_query(entries, what=what)
        assert len(found) == len(set(found)), "nothing happened twice"
        assert acknowledged <= set(found) <= acknowledged | callers.uncertain[what]


async def hear_again(front: Backend, *deaf: Backend) -> None:
    """A job starts although the workers would look by themselves in an hour only."""
    await until(lambda: answer(all(listens(backend) for backend in deaf)))
    for backend in deaf:
        for service in backend.services.services:
            service._poll = 3600.0  # type: ignore[attr-defined]
            service.wake.set()  # it may be waiting by the poll that it had before
    counts = await front.job_counts()
    await front.run_mutation(schedule_entries, what="heard", first=0, count=1)
    await finished(front, counts.get("success", 0) + 1)


def listens(backend: Backend) -> bool:
    return bool(backend.engine.store.signals.listening)  # type: ignore[attr-defined]


if __name__ == "__main__":
    from programs import ledger  # so that its functions have the names by which others know them

    given = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    options = dict(argument[2:].split("=", 1) for argument in sys.argv[1:] if argument.startswith("--"))
    asyncio.run(ledger.main(*given, **options))
