"""Parts of tests as functions: each runs a story with its ctx, so that a test can be told in one place."""

from __future__ import annotations

from typing import Any

from penstock import ActionCtx, App, MutationCtx, QueryCtx


def tell_in(app: App) -> tuple[Any, Any, Any]:
    """A mutation, a query and an action of an app, each of which runs the story that it is given."""

    @app.internal_mutation
    async def write(ctx: MutationCtx, story: Any) -> Any:
        """Run a part of a test in a transaction."""
        return await story(ctx)

    @app.internal_query
    async def read(ctx: QueryCtx, story: Any) -> Any:
        """Run a part of a test in a snapshot."""
        return await story(ctx)

    @app.internal_action
    async def act(ctx: ActionCtx, story: Any) -> Any:
        """Run a part of a test as an action."""
        return await story(ctx)

    return write, read, act
