"""A read model: what each account holds, kept by an outbox of the entries of a ledger, in the order of their commits.

The handler is a mutation, so each entry counts exactly once: what it adds, and how far the outbox has come, are one
transaction. Entries that were written before the outbox was declared are counted first. What was counted is then made
wrong by a mistake, and anew with ``penstock outbox rebuild``, while entries are still written. Run it with ``python
readmodel.py``, on a SQLite file of its own, or on an empty database that DATABASE_URL names.
"""

import asyncio
import os
import random
import sys
import tempfile

from penstock import App, Index, Message, MutationCtx, QueryCtx, Table, public

ACCOUNTS, BEFORE, AFTER, MEANWHILE = 7, 300, 300, 100

ledger, app = App(), App()


class Entry(Table):
    account: str
    cents: int


class Balance(Table):
    account: str
    cents: int
    entries: int

    by_account = Index("account", unique=True)


@ledger.mutation(access=public)
async def write(ctx: MutationCtx, account: str, cents: int) -> None:
    await ctx.db.insert(Entry(account=account, cents=cents))


async def clear(ctx: MutationCtx) -> None:
    async for one in ctx.db.query(Balance):
        await ctx.db.delete(Balance, one.id)


@app.outbox(Entry, name="balances", batch=50, reset=clear)
async def count(ctx: MutationCtx, messages: list[Message[Entry]]) -> None:
    added: dict[str, list[int]] = {}
    for message in messages:
        if message.row is not None:
            added.setdefault(message.row.account, []).append(message.row.cents)
    for account, cents in added.items():
        found = await ctx.db.query(Balance).with_index(Balance.by_account, account=account).first()
        if found is None:
            await ctx.db.insert(Balance(account=account, cents=sum(cents), entries=len(cents)))
        else:
            await ctx.db.patch(Balance, found.id, cents=found.cents + sum(cents), entries=found.entries + len(cents))


@app.query(access=public)
async def balances(ctx: QueryCtx) -> dict[str, tuple[int, int]]:
    return {one.account: (one.cents, one.entries) for one in await ctx.db.query(Balance).take(ACCOUNTS)}


@app.mutation(access=public)
async def forget_cents(ctx: MutationCtx) -> None:
    async for one in ctx.db.query(Balance):
        await ctx.db.patch(Balance, one.id, cents=one.cents // 100 * 100)


async def rebuild(database: str) -> None:
    """What one says in a shell: penstock --app readmodel.py:app --database … outbox rebuild balances --yes."""
    words = ["--app", f"{__file__}:app", "--database", database, "outbox", "rebuild", "balances", "--yes"]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "penstock", *words)
    if await process.wait() != 0:
        raise SystemExit("It was not rebuilt.")


async def main() -> None:
    expected: dict[str, tuple[int, int]] = {}
    chance = random.Random(7)

    def entry() -> tuple[str, int]:
        account, cents = f"account {chance.randrange(ACCOUNTS)}", chance.randrange(-500, 1000)
        held, entries = expected.get(account, (0, 0))
        expected[account] = held + cents, entries + 1
        return account, cents

    with tempfile.TemporaryDirectory() as folder:
        database = os.environ.get("DATABASE_URL") or f"sqlite:///{folder}/readmodel.db"
        async with ledger.open(database) as writer:
            for _ in range(BEFORE):
                await writer.run_mutation(write, *entry())
            async with app.open(database, services=["relay"]) as backend:
                for _ in range(AFTER):
                    await writer.run_mutation(write, *entry())

                async def counted() -> int:
                    async with asyncio.timeout(60):
                        while (found := await backend.run_query(balances)) != expected:
                            await asyncio.sleep(0.05)
                    return sum(number for _cents, number in found.values())

                print(f"{await counted()} entries were counted, each once: {BEFORE} of them were there before.")
                await backend.run_mutation(forget_cents)
                rebuilding = asyncio.create_task(rebuild(database))
                for _ in range(MEANWHILE):
                    await writer.run_mutation(write, *entry())
                await rebuilding
                print(f"{await counted()} entries were counted anew, {MEANWHILE} of them written meanwhile.")


if __name__ == "__main__":
    asyncio.run(main())
