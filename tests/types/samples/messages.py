"""Messages: from where one may be sent, and what is to be awaited there."""

from typing import Any

import psycopg
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from penstock import ActionCtx, App, Backend, MutationCtx, QueryCtx, sync

app = App()


async def awaited(
    ctx: MutationCtx,
    action: ActionCtx,
    query: QueryCtx,
    backend: Backend,
    modern: psycopg.AsyncConnection[Any],
    orm: AsyncSession,
) -> None:
    await ctx.outbox.send("topic", {"to": "Ada"}, key="Ada")
    await action.outbox.send("topic", 5)
    await app.outboxes.send(ctx, "topic", 5)
    await app.outboxes.send(backend, "topic", 5)
    await app.outboxes.send(modern, "topic", 5, key="k")
    await app.outboxes.send(orm, "topic", 5)
    ctx.outbox.send("topic", 5)  # refused: unused-coroutine
    await ctx.outbox.send("topic", 5, key=5)  # refused: arg-type
    await query.outbox.send("topic", 5)  # refused: attr-defined
    await app.outboxes.send(query, "topic", 5)  # refused: call-overload


def waiting(
    ctx: sync.MutationCtx,
    action: sync.ActionCtx,
    backend: sync.Backend,
    modern: psycopg.Connection[Any],
    orm: Session,
) -> None:
    action.outbox.send("topic", 5, key="k")
    app.outboxes.send(ctx, "topic", 5)
    app.outboxes.send(backend, "topic", 5)
    app.outboxes.send(app.sync, "topic", 5)
    app.outboxes.send(modern, "topic", 5)
    app.outboxes.send(orm, "topic", 5)
