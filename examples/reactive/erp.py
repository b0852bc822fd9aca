"""Orders that are paid go to an ERP system, and go again when something of them changes that it keeps.

Nobody calls the ERP when an order is written: the task says which orders it is about, and what of them matters. It is
the same whether this program writes them, an old one, or somebody in psql. The ERP is called after the commit, with the
order as it is then; many changes in a short time are one call. Run it with ``python erp.py``, on a SQLite file of its
own, or on an empty database that DATABASE_URL names.
"""

import asyncio
import os
import tempfile
from collections import Counter
from datetime import timedelta
from typing import Any

import httpx
from service import served
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock import App, Id, MutationCtx, Retry, Table, TaskCtx, public

ORDERS, CHANGES = 20, 5

app = App()


class Order(Table):
    customer: str
    amount: int
    status: str = "new"
    note: str = ""


erp: dict[str, dict[str, Any]] = {}  # what the ERP keeps
calls: Counter[str] = Counter()
clients: list[httpx.AsyncClient] = []


async def keep(request: Request) -> Response:
    order = request.path_params["id"]
    calls[order] += 1
    erp[order] = await request.json()
    return JSONResponse({"kept": order})


@app.reactive_task(
    Order,
    filter=lambda order: order.status == "paid",
    watch=("status", "amount"),
    debounce=timedelta(milliseconds=50),
    max_wait=timedelta(seconds=1),
    retry=Retry(max_attempts=8, initial_backoff=0.2),
)
async def to_erp(ctx: TaskCtx[Order]) -> None:
    order = await ctx.get_document()  # as it is now; if it is not paid any more, this run is skipped
    answer = await clients[0].put(f"/orders/{ctx.doc_id}", json={"customer": order.customer, "amount": order.amount})
    answer.raise_for_status()  # what raises is tried again


@app.mutation(access=public)
async def place(ctx: MutationCtx, customer: str, amount: int) -> Id[Order]:
    return await ctx.db.insert(Order(customer=customer, amount=amount))


@app.mutation(access=public)
async def change(ctx: MutationCtx, order: Id[Order], status: str, amount: int) -> None:
    await ctx.db.patch(Order, order, status=status, amount=amount)


@app.mutation(access=public)
async def annotate(ctx: MutationCtx, order: Id[Order], note: str) -> None:
    await ctx.db.patch(Order, order, note=note)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = os.environ.get("DATABASE_URL") or f"sqlite:///{folder}/erp.db"
        async with (
            served(orders=keep) as client,
            app.open(database, services=["worker", "planner"]) as backend,
        ):
            clients.append(client)
            orders = [await backend.run_mutation(place, f"customer {number}", 100) for number in range(ORDERS)]
            for order in orders[: ORDERS // 2]:
                for step in range(CHANGES):
                    await backend.run_mutation(change, order, "paid", 100 + step)
            async with asyncio.timeout(60):
                while sorted(kept["amount"] for kept in erp.values()) != [100 + CHANGES - 1] * (ORDERS // 2):
                    await asyncio.sleep(0.02)
            before = calls.total()
            for order in orders:
                await backend.run_mutation(annotate, order, "the ERP keeps no notes")
            await asyncio.sleep(0.5)
            print(f"{ORDERS // 2} of {ORDERS} orders were paid, and changed {CHANGES} times; the ERP has {len(erp)},")
            print(f"each with its last amount, {100 + CHANGES - 1}, after {before} calls.")
            print(f"Notes are nothing to it: {calls.total() - before} more calls.")


if __name__ == "__main__":
    asyncio.run(main())
