"""A small program of reactive tasks: rows that change, and what was done about each state of them.

The races act on it, in the test's own process and in others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from penstock import App, Id, Index, MutationCtx, MutationTaskCtx, QueryCtx, Retry, Table, TaskCtx
from penstock.app import Backend
from penstock.testing.gates import Gate

patience = Retry(max_attempts=9, initial_backoff=0.05)


class Item(Table):
    """A row that tasks are about while it is open."""

    status: str = "open"
    value: int = 0

    by_status = Index("status")


class Done(Table):
    item: str
    value: int

    by_item = Index("item", "value")


booking, sending, forgetful = App(), App(), App(tables=[Item, Done])


@booking.reactive_task(Item, filter=lambda item: item.status == "open", watch=("value",), retry=patience)
async def book(ctx: MutationTaskCtx[Item]) -> None:
    item = await ctx.get_document()
    await ctx.db.insert(Done(item=str(ctx.doc_id), value=item.value))


sent: list[tuple[str, str, int]] = []
_within: Gate | None = None


@contextmanager
def held_within(most: int = 1) -> Iterator[Gate]:
    """Hold so many runs of `send` before they have looked at their row, for the time of a block."""
    global _within  # noqa: PLW0603 - functions of an app are global, and so is where they are held
    _within = Gate(most)
    try:
        yield _within
    finally:
        _within.open()
        _within = None


@sending.reactive_task(Item, filter=lambda item: item.status == "open", watch=("value",), retry=patience)
async def send(ctx: TaskCtx[Item]) -> None:
    if _within is not None:
        await _within.pass_through()
    item = await ctx.get_document()
    sent.append((str(ctx.doc_id), ctx.change, item.value))


@sending.reactive_task(
    Item, name="late", debounce=timedelta(seconds=5), max_wait=timedelta(seconds=12), watch=("value",), retry=patience
)
async def send_late(ctx: TaskCtx[Item]) -> None:
    item = await ctx.get_document()
    sent.append((str(ctx.doc_id), "late", item.value))


async def _put(ctx: MutationCtx, value: int = 0, status: str = "open") -> Id[Item]:
    return await ctx.db.insert(Item(value=value, status=status))


async def _patch(ctx: MutationCtx, item: Id[Item], value: int | None = None, status: str | None = None) -> None:
    given = {"value": value, "status": status}
    await ctx.db.patch(Item, item, **{name: one for name, one in given.items() if one is not None})


async def _remove(ctx: MutationCtx, item: Id[Item]) -> None:
    await ctx.db.delete(Item, item)


async def _done(ctx: QueryCtx, item: str) -> list[int]:
    return [row.value for row in await ctx.db.query(Done).with_index(Done.by_item, item=item).collect()]


async def _items(ctx: QueryCtx) -> dict[str, int]:
    found = await ctx.db.query(Item).with_index(Item.by_status, status="open").collect()
    return {str(item.id): item.value for item in found}


put, patch, remove = (booking.mutation(one) for one in (_put, _patch, _remove))
done, items = booking.query(_done), booking.query(_items)


async def rows(backend: Backend) -> dict[str, int]:
    found: dict[str, int] = await backend.run_query(items)
    return found
