"""Effects of workflows: rows that steps write, and a look at them."""

from __future__ import annotations

from typing import Any

from penstock import App, MutationCtx, QueryCtx, Table


class Effect(Table):
    what: str


def effects_in(app: App) -> tuple[Any, Any]:
    """A mutation of an app that writes an effect, and a query that lists all."""

    @app.internal_mutation
    async def do(ctx: MutationCtx, what: str) -> str:
        await ctx.db.insert(Effect(what=what))
        return what

    @app.internal_query
    async def effects(ctx: QueryCtx) -> list[str]:
        return [one.what for one in await ctx.db.query(Effect).collect()]

    return do, effects
