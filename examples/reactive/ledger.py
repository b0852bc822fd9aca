"""Transfers that a bank carries out, and a ledger that has each of them exactly once.

The bank is called outside of any transaction, and knows a transfer that it has seen. What it says is entered in a
ledger that is a plain table, on a connection of the program's own; and with the same commit the run is completed. If
the program dies between the two, or its transaction is rolled back, neither counts, and the run is made again. Run it
with ``python ledger.py``, on a SQLite file of its own, or on an empty database that DATABASE_URL names.
"""

import asyncio
import os
import random
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
from service import served
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock import App, Id, MutationCtx, Retry, Table, TaskCtx, public

TRANSFERS = 20

app = App()


class Transfer(Table):
    account: str
    amount: int
    status: str = "ordered"


bank: dict[str, str] = {}  # receipts by transfer
clients: list[httpx.AsyncClient] = []
chance = random.Random(7)
undone: list[str] = []


async def carry_out(request: Request) -> Response:
    transfer = request.path_params["id"]
    return JSONResponse({"receipt": bank.setdefault(transfer, f"receipt {len(bank) + 1}")})


@asynccontextmanager
async def own_connection() -> AsyncIterator[Any]:
    """A connection of the program's own, as it has them anyway."""
    url = os.environ["DATABASE_URL"]
    if url.startswith("sqlite"):
        import aiosqlite  # noqa: PLC0415 - whichever is needed

        async with aiosqlite.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=30) as connection:
            yield connection
        return
    import asyncpg  # noqa: PLC0415 - as above

    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def enter(connection: Any, *values: object) -> None:
    if os.environ["DATABASE_URL"].startswith("sqlite"):
        await connection.execute("insert into ledger (transfer, amount, receipt) values (?, ?, ?)", values)
    else:
        await connection.execute("insert into ledger (transfer, amount, receipt) values ($1, $2, $3)", *values)


@app.reactive_task(
    Transfer,
    filter=lambda transfer: transfer.status == "ordered",
    watch=("status",),
    retry=Retry.fixed(timedelta(milliseconds=50), max_attempts=20),
)
async def settle(ctx: TaskCtx[Transfer]) -> None:
    transfer = await ctx.get_document()
    answer = (await clients[0].post(f"/transfers/{ctx.doc_id}")).json()
    async with own_connection() as connection:
        await connection.execute("begin")
        await enter(connection, ctx.doc_id, transfer.amount, answer["receipt"])
        await ctx.mark_completed(connection)  # this run has ended if, and only if, the ledger has the transfer
        if chance.random() < 0.3:
            undone.append(ctx.doc_id)
            await connection.execute("rollback")
            raise ConnectionError("something went wrong just before the commit")
        await connection.execute("commit")


@app.mutation(access=public)
async def order(ctx: MutationCtx, account: str, amount: int) -> Id[Transfer]:
    return await ctx.db.insert(Transfer(account=account, amount=amount))


async def entries() -> list[str]:
    async with own_connection() as connection:
        if os.environ["DATABASE_URL"].startswith("sqlite"):
            return [row[0] for row in await connection.execute_fetchall("select transfer from ledger")]
        return [row[0] for row in await connection.fetch("select transfer from ledger")]


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("DATABASE_URL", f"sqlite:///{folder}/ledger.db")
        async with (
            served(transfers=carry_out) as client,
            app.open(os.environ["DATABASE_URL"], services=["worker", "planner"]) as backend,
        ):
            clients.append(client)
            async with own_connection() as connection:
                await connection.execute("create table ledger (transfer text, amount integer, receipt text)")
            for number in range(TRANSFERS):
                await backend.run_mutation(order, f"account {number}", 100 + number)
            async with asyncio.timeout(60):
                while (
                    len(await entries()) < TRANSFERS or await backend.jobs("pending") or await backend.jobs("running")
                ):
                    await asyncio.sleep(0.05)
            found = await entries()
            print(f"{len(undone)} times a transaction was undone at its end; the ledger has {len(found)} entries")
            print(f"for {len(set(found))} transfers, and the bank carried out {len(bank)}.")


if __name__ == "__main__":
    asyncio.run(main())
