"""Payments to accounts that a bank keeps: a reactive task makes each, and of one account one at a time.

The bank is a service without transactions (`bank.py` beside this file): who wants to change an account reads its
balance, and writes a new one. So two payments at once would each write over what the other has written. A lock for each
account keeps them apart, on all machines; different accounts do not wait for each other. Which lock it takes, a run
knows from what is watched; the payment is read once it has the lock, as it is then. The lock's number goes to the bank
too, which refuses one that is lower than what it has seen: whoever has lost the lock, and does not know it yet, changes
nothing. Run it with ``python accounts.py``, on a SQLite file of its own, or on an empty database that DATABASE_URL
names. It needs httpx: ``pip install 'penstock-backend[client]'``.
"""

import asyncio
import os
import tempfile
from datetime import timedelta

import httpx
from bank import served

from penstock import App, Id, LockLost, MutationCtx, QueryCtx, Table, TaskCtx, public

ACCOUNTS, PAYMENTS = 3, 30


class Payment(Table):
    account: str
    amount: int
    status: str = "new"


app = App()
banks: list[httpx.AsyncClient] = []
transfers = app.workpool("transfers", max_parallelism=10)


async def balance_of(account: str) -> int:
    answer = await banks[0].get(f"/accounts/{account}")
    balance: int = answer.raise_for_status().json()["balance"]
    return balance


async def set_balance(account: str, balance: int, fence: int) -> None:
    answer = await banks[0].put(f"/accounts/{account}", json={"balance": balance, "fence": fence})
    if answer.status_code == httpx.codes.CONFLICT:
        raise PermissionError(answer.json()["error"])
    answer.raise_for_status()


@app.mutation(access=public)
async def order(ctx: MutationCtx, account: str, amount: int) -> Id[Payment]:
    return await ctx.db.insert(Payment(account=account, amount=amount))


@app.reactive_task(
    Payment,
    filter=lambda payment: payment.status == "new",
    watch=("account", "amount"),
    pool=transfers,
)
async def pay(ctx: TaskCtx[Payment]) -> None:
    account = ctx.watched_values["account"]
    async with ctx.with_lock(f"account:{account}", wait=timedelta(minutes=1)) as lock:
        payment = await ctx.get_document()  # as it is now; if it was changed meanwhile, another run makes it
        balance = await balance_of(account)
        await set_balance(account, balance + payment.amount, lock.fence)
        await ctx.run_mutation(mark_paid, payment.id, lock.key, lock.fence)


@app.internal_mutation
async def mark_paid(ctx: MutationCtx, payment: Id[Payment], key: str, fence: int) -> None:
    await ctx.check_fence(key, fence)
    await ctx.db.patch(Payment, payment, status="paid")


@app.query(access=public)
async def are_paid(ctx: QueryCtx, payments: list[Id[Payment]]) -> bool:
    found = [await ctx.db.get(Payment, payment) for payment in payments]
    return all(payment is not None and payment.status == "paid" for payment in found)


@app.internal_mutation
async def mark_late(ctx: MutationCtx, key: str, fence: int) -> None:
    await ctx.check_fence(key, fence)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = os.environ.get("DATABASE_URL") or f"sqlite:///{folder}/accounts.db"
        async with (
            served() as client,
            app.open(database, services=["worker", "planner"]) as backend,
            app.open(database) as elsewhere,
        ):
            banks.append(client)
            ordered = [
                await backend.run_mutation(order, f"account {number % ACCOUNTS}", 10) for number in range(PAYMENTS)
            ]
            async with asyncio.timeout(60):
                while not await backend.run_query(are_paid, ordered):
                    await asyncio.sleep(0.02)
            balances = {f"account {number}": await balance_of(f"account {number}") for number in range(ACCOUNTS)}
            print(f"{PAYMENTS} payments of 10 were made: {balances}.")

            async with backend.with_lock("account:account 0") as held:
                late = held.fence
            async with elsewhere.with_lock("account:account 0") as lock:
                await set_balance("account 0", 0, lock.fence)
            try:
                await set_balance("account 0", 1_000_000, late)
            except PermissionError as error:
                print(f"The bank refuses who comes late: {error}.")
            try:
                await backend.run_mutation(mark_late, "account:account 0", late)
            except LockLost:
                print("So does the database.")


if __name__ == "__main__":
    asyncio.run(main())
