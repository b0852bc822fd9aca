"""A CRM that is down for a while: customers go on changing, and when it is back it gets each as it is then, once.

A run that fails waits longer each time. A change of its row lets it begin anew: what is sent is the row as it is, not
what it was. Customers who leave are told as well, with what was known of them. Run it with ``python crm.py``, on a
SQLite file of its own, or on an empty database that DATABASE_URL names.
"""

import asyncio
import os
import tempfile
from typing import Any

import httpx
from service import served
from starlette.requests import Request
from starlette.responses import Response

from penstock import App, Id, MutationCtx, Retry, Table, TaskCtx, public

CUSTOMERS, CHANGES = 15, 4

app = App()


class Customer(Table):
    name: str
    city: str
    is_active: bool = True


class Crm:
    """Keeps customers, when it is not down."""

    def __init__(self) -> None:
        self.is_down = True
        self.customers: dict[str, dict[str, Any]] = {}
        self.left: list[str] = []
        self.refused = self.taken = 0

    async def take(self, request: Request) -> Response:
        if self.is_down:
            self.refused += 1
            return Response(status_code=503)
        self.taken += 1
        customer = await request.json()
        if customer.get("left"):
            self.left.append(customer["name"])
            self.customers.pop(request.path_params["id"], None)
        else:
            self.customers[request.path_params["id"]] = customer
        return Response(status_code=204)


crm = Crm()
clients: list[httpx.AsyncClient] = []


@app.reactive_task(
    Customer,
    filter=lambda customer: customer.is_active == True,  # noqa: E712 - it becomes SQL
    watch=("name", "city"),
    on=("enter", "change", "leave", "delete"),
    retry=Retry(max_attempts=20, initial_backoff=0.05, base=1.5, max_backoff=0.5),
)
async def to_crm(ctx: TaskCtx[Customer]) -> None:
    if ctx.change in {"leave", "delete"}:
        gone = ctx.previous
        body: dict[str, Any] = {"name": gone.name if gone else "", "left": True}
    else:
        customer = await ctx.get_document(fields=("name", "city"))
        body = {"name": customer.name, "city": customer.city}
    answer = await clients[0].put(f"/customers/{ctx.doc_id}", json=body)
    answer.raise_for_status()


@app.mutation(access=public)
async def register(ctx: MutationCtx, name: str) -> Id[Customer]:
    return await ctx.db.insert(Customer(name=name, city="Praha"))


@app.mutation(access=public)
async def move(ctx: MutationCtx, customer: Id[Customer], city: str) -> None:
    await ctx.db.patch(Customer, customer, city=city)


@app.mutation(access=public)
async def close(ctx: MutationCtx, customer: Id[Customer]) -> None:
    await ctx.db.patch(Customer, customer, is_active=False)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = os.environ.get("DATABASE_URL") or f"sqlite:///{folder}/crm.db"
        async with (
            served(customers=crm.take) as client,
            app.open(database, services=["worker", "planner"]) as backend,
        ):
            clients.append(client)
            customers = [await backend.run_mutation(register, f"customer {number}") for number in range(CUSTOMERS)]
            for step in range(CHANGES):
                for customer in customers:
                    await backend.run_mutation(move, customer, f"city {step}")
            async with asyncio.timeout(60):
                while crm.refused < CUSTOMERS:
                    await asyncio.sleep(0.02)
                print(f"The CRM is down: it refused {crm.refused} calls, and has {len(crm.customers)} customers.")
                crm.is_down = False
                last = f"city {CHANGES - 1}"
                while [one["city"] for one in crm.customers.values()].count(last) < CUSTOMERS:
                    await asyncio.sleep(0.02)
                print(f"It is back: it took {crm.taken} calls, and has {len(crm.customers)} customers as they are now.")
                await backend.run_mutation(close, customers[0])
                while not crm.left:
                    await asyncio.sleep(0.02)
            print(f"It was told that {crm.left[0]} has left; {len(crm.customers)} are there.")


if __name__ == "__main__":
    asyncio.run(main())
