"""penstock itself, on either store. How its jobs are stored and run stands here and nowhere else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from benchmarks.databases import load
from benchmarks.peers.protocol import COUNTERS, STEPS, Peer, Ran, serve
from penstock import ActionCtx, App, Backend, Config, Id, MutationCtx, Table
from penstock.calls.workflows.context import WorkflowCtx
from penstock.functions.function import AnyFunction
from penstock.schema.ids import format_id
from penstock.services.service import Group

WORKER_JOBS = 1000

app = App()
pool = app.workpool("bench", max_parallelism=WORKER_JOBS)
_running = Ran()


class Counter(Table):
    """What jobs add to."""

    count: int = 0


@app.internal_action
async def nothing(ctx: ActionCtx, number: int) -> None:  # noqa: ARG001 - every action is given one
    """A job without effect."""
    _running.one(number)


@dataclass(frozen=True)
class Number:
    """What a batch is told of one job."""

    number: int


@app.internal_action(batch=WORKER_JOBS, of=Number)
async def nothing_at_once(ctx: ActionCtx, calls: list[Number]) -> list[None]:  # noqa: ARG001 - as above
    """Many jobs without effect."""
    for call in calls:
        _running.one(call.number)
    return [None] * len(calls)


@app.internal_mutation
async def bump(ctx: MutationCtx, counter: Id[Counter], number: int) -> None:
    """Add one to a row."""
    row = await ctx.db.get(Counter, counter)
    if row is None:
        raise LookupError(counter)
    await ctx.db.patch(Counter, counter, count=row.count + 1)
    _running.one(number)


@app.internal_action
async def nothing_more(ctx: ActionCtx) -> None:
    """A step without effect."""


@app.workflow
async def action_flow(ctx: WorkflowCtx, number: int) -> None:
    """Steps without effect; the first one tells that it has begun."""
    await ctx.run_action(nothing, number)
    for _ in range(STEPS - 1):
        await ctx.run_action(nothing_more)


@app.internal_mutation
async def add(ctx: MutationCtx, counter: Id[Counter]) -> None:
    """Add one to a row; a step."""
    row = await ctx.db.get(Counter, counter)
    if row is None:
        raise LookupError(counter)
    await ctx.db.patch(Counter, counter, count=row.count + 1)


@app.workflow
async def flow(ctx: WorkflowCtx, counter: Id[Counter], number: int) -> None:
    """Add one to a row, in each step."""
    for _ in range(STEPS):
        await ctx.run_mutation(add, counter)
    _running.one(number)


class PenstockPeer(Peer):
    """The worker runs in this process, on the same connections."""

    works = ("drain", "batches", "transactions", "flows", "action_flows")
    _backend: Backend

    @asynccontextmanager
    async def opened(self, *, install: bool) -> AsyncIterator[None]:
        """Connect."""
        config = Config(database=self.url, worker_jobs=WORKER_JOBS)
        async with app.open(config=config, push_schema=install) as self._backend:
            yield

    async def enqueue_one(self, number: int) -> None:
        """Store a job, as a program does."""
        function: Any = action_flow if self.work == "action_flows" else nothing
        await pool.enqueue(self._backend, function, number)

    async def enqueue_many(self, count: int) -> None:
        """Store jobs in one transaction."""
        functions: dict[str, AnyFunction] = {"drain": nothing, "batches": nothing_at_once, "transactions": bump}
        functions |= {"flows": flow, "action_flows": action_flow}
        await pool.enqueue_batch(self._backend, functions[self.work], await self._arguments(count))

    async def _arguments(self, count: int) -> list[dict[str, object]]:
        if self.work not in {"transactions", "flows"}:
            return [{"number": number} for number in range(count)]
        clock, now = self._backend.engine.clock, datetime.now(UTC)
        ids = [format_id("counter", clock.uuid7()) for _ in range(COUNTERS)]
        await load(self.url, "counter", ("id", "creation_time", "count"), [(counter, now, 0) for counter in ids])
        return [{"counter": ids[number % COUNTERS], "number": number} for number in range(count)]

    async def left(self) -> int:
        """Jobs that are ready or running."""
        counts = await self._backend.job_counts()
        return counts["ready"] + counts["running"]

    @asynccontextmanager
    async def worker(self, ran: Ran) -> AsyncIterator[None]:
        """Run jobs."""
        global _running  # noqa: PLW0603 - handlers of an app are functions of a module
        _running = ran
        group = Group([self._backend.make_service("worker")], self._backend.engine.store.signals)
        group.start()
        try:
            yield
        finally:
            await group.stop()


if __name__ == "__main__":
    serve(PenstockPeer)
