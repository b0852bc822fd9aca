"""A singleton counter: one row that everything counts in, without conflicts.

Mutations that read and write the same row conflict with each other, and run again. In a pool with a parallelism of 1
they run one after another. Run it with ``python counter.py``.
"""

import asyncio
import os
import tempfile

from penstock import ActionCtx, App, MutationCtx, QueryCtx, Table, public

app = App()
counting = app.workpool("counting", max_parallelism=1)


class Counter(Table):
    count: int = 0


@app.action(access=public)
async def do_something_and_count(ctx: ActionCtx) -> None:
    await asyncio.sleep(0.01)  # something out in the world
    await counting.enqueue(ctx, increment)


@app.internal_mutation
async def increment(ctx: MutationCtx) -> None:
    counter = await ctx.db.query(Counter).unique()
    if counter is None:
        await ctx.db.insert(Counter(count=1))
    else:
        await ctx.db.patch(Counter, counter.id, count=counter.count + 1)


@app.query(access=public)
async def count(ctx: QueryCtx) -> int:
    counter = await ctx.db.query(Counter).unique()
    return 0 if counter is None else counter.count


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = os.environ.get("DATABASE_URL") or f"sqlite:///{folder}/counter.db"
        async with app.open(database, services=["worker"]) as backend:
            await asyncio.gather(*(backend.run_action(do_something_and_count) for _ in range(200)))
            while await backend.run_query(count) < 200:
                await asyncio.sleep(0.02)
            jobs = await backend.jobs("success", 1000)
            print(
                f"The counter stands at {await backend.run_query(count)}; {len(jobs)} jobs counted, one after another."
            )


if __name__ == "__main__":
    asyncio.run(main())
