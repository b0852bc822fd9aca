"""Webhooks to a receiver that says 429 when it is called too often: then nobody calls it for as long as it asks.

``throttle_all`` holds all runs of the task, on all machines; ``defer_current`` puts this one off, and no attempt is
used. Meanwhile rows go on changing, and what is sent in the end is how they are then. Run it with ``python
webhook.py``, on a SQLite file of its own, or on an empty database that DATABASE_URL names.
"""

import asyncio
import os
import tempfile
import time
from datetime import timedelta

import httpx
from service import served
from starlette.requests import Request
from starlette.responses import Response

from penstock import App, Id, MutationCtx, Table, TaskCtx, public

ROWS, ALLOWED, EVERY = 25, 10, 0.6  # so many calls in so many seconds

app = App()
hooks = app.workpool("hooks", max_parallelism=4)


class Subscription(Table):
    plan: str


class Receiver:
    """Takes so many calls in a time."""

    def __init__(self) -> None:
        self.plans: dict[str, str] = {}
        self.refused = 0
        self._taken: list[float] = []

    async def take(self, request: Request) -> Response:
        now = time.monotonic()
        self._taken = [moment for moment in self._taken if now - moment < EVERY]
        if len(self._taken) >= ALLOWED:
            self.refused += 1
            return Response(status_code=429, headers={"retry-after": f"{self._taken[0] + EVERY - now:.3f}"})
        self._taken.append(now)
        self.plans[request.path_params["id"]] = (await request.json())["plan"]
        return Response(status_code=204)


receiver = Receiver()
clients: list[httpx.AsyncClient] = []


@app.reactive_task(Subscription, watch=("plan",), pool=hooks)
async def tell(ctx: TaskCtx[Subscription]) -> None:
    subscription = await ctx.get_document()
    answer = await clients[0].post(f"/hooks/{ctx.doc_id}", json={"plan": subscription.plan})
    if answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
        wait = timedelta(seconds=float(answer.headers["retry-after"]))
        ctx.throttle_all(wait)
        ctx.defer_current(wait)
        return
    answer.raise_for_status()


@app.mutation(access=public)
async def subscribe(ctx: MutationCtx) -> Id[Subscription]:
    return await ctx.db.insert(Subscription(plan="free"))


@app.mutation(access=public)
async def upgrade(ctx: MutationCtx, subscription: Id[Subscription]) -> None:
    await ctx.db.patch(Subscription, subscription, plan="paid")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = os.environ.get("DATABASE_URL") or f"sqlite:///{folder}/webhook.db"
        async with (
            served(hooks=receiver.take) as client,
            app.open(database, services=["worker", "planner"]) as backend,
        ):
            clients.append(client)
            rows = [await backend.run_mutation(subscribe) for _ in range(ROWS)]
            for row in rows:
                await backend.run_mutation(upgrade, row)
            async with asyncio.timeout(60):
                while [*receiver.plans.values()].count("paid") < ROWS:
                    await asyncio.sleep(0.02)
            failed = await backend.jobs("failed")
            print(f"All {ROWS} subscriptions were told as they are, {receiver.refused} calls were refused,")
            print(f"and {len(failed)} runs have failed.")


if __name__ == "__main__":
    asyncio.run(main())
