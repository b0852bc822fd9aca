"""An outage of a payment provider: charges wait and are retried, within a limit, and each customer pays once.

While the provider is away, charges back off and occupy nothing: other work goes on, and when the provider is back it
is not stampeded. Each attempt names the same payment, so that the provider knows one that it has seen. Run it with
``python payments.py``.
"""

import asyncio
import os
import tempfile
from collections import Counter
from typing import Any

from penstock import (
    ActionCtx,
    App,
    Canceled,
    Failed,
    Id,
    Index,
    MutationCtx,
    QueryCtx,
    Retry,
    Success,
    Table,
    WorkId,
    WorkResult,
    public,
)

app = App()
charges = app.workpool(
    "charges", max_parallelism=4, default_retry=Retry(max_attempts=12, initial_backoff=0.05, base=1.6, max_backoff=1.0)
)


class Order(Table):
    customer: str
    cents: int
    status: str = "new"
    by_status = Index("status")


class Provider:
    """The payment provider, as far as this program sees it."""

    def __init__(self) -> None:
        self.is_away = True
        self.payments: dict[str, int] = {}
        self.requests: Counter[str] = Counter()
        self.at_once = self.most_at_once = 0

    async def charge(self, payment: str, cents: int) -> str:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0.01)
            self.requests[payment] += 1
            if self.is_away:
                raise ConnectionError("503 Service Unavailable")
            self.payments.setdefault(payment, cents)  # the same payment again is the same payment
            return f"receipt for {payment}"
        finally:
            self.at_once -= 1


provider = Provider()


@app.mutation(access=public)
async def place(ctx: MutationCtx, customer: str, cents: int) -> Id[Order]:
    order = await ctx.db.insert(Order(customer=customer, cents=cents))
    pool = charges.with_options(retry=True, on_complete=charged, context={"order": order})
    await pool.enqueue(ctx, charge, order=order, cents=cents)
    return order


@app.internal_action
async def charge(ctx: ActionCtx, order: Id[Order], cents: int) -> str:
    return await provider.charge(payment=order, cents=cents)  # idempotent: the order names the payment


@app.internal_mutation
async def charged(ctx: MutationCtx, work_id: WorkId, result: WorkResult[str], context: dict[str, Any]) -> None:
    match result:
        case Success():
            await ctx.db.patch(Order, context["order"], status="paid")
        case Failed(error):
            await ctx.db.patch(Order, context["order"], status=f"refused: {error}")
        case Canceled():
            await ctx.db.patch(Order, context["order"], status="canceled")


@app.query(access=public)
async def statuses(ctx: QueryCtx) -> dict[str, int]:
    return await ctx.db.query(Order).with_index(Order.by_status).group_by("status").count()


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = os.environ.get("DATABASE_URL") or f"sqlite:///{folder}/payments.db"
        async with app.open(database, services=["worker"]) as backend:
            for number in range(30):
                await backend.run_mutation(place, f"customer {number}", 100 + number)
            await asyncio.sleep(0.3)
            failed = provider.requests.total()
            print(f"The provider is away: {failed} requests failed, {await backend.run_query(statuses)}")
            provider.is_away = False
            while (await backend.run_query(statuses)).get("paid", 0) < 30:
                await asyncio.sleep(0.02)
            print(f"It is back: {await backend.run_query(statuses)}, {len(provider.payments)} payments were made,")
            print(f"and never were more than {provider.most_at_once} requests under way at once.")


if __name__ == "__main__":
    asyncio.run(main())
