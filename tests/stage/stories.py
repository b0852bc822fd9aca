"""Parts of tests as functions: each runs a story with its ctx, so that a test can be told in one place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock import ActionCtx, App, MutationCtx, QueryCtx
from penstock.testing import TestApp

Tell = Callable[[Callable[[TestApp], Awaitable[None]]], None]


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


@contextmanager
def one_backend(app: App, database: str, **settings: Any) -> Iterator[Tell]:
    """Tell many stories on one backend, such as all examples of a property: it is opened once for all of them."""
    with asyncio.Runner() as runner:
        backend = TestApp(app, database, **settings)
        runner.run(backend.__aenter__())

        async def tell(story: Callable[[TestApp], Awaitable[None]]) -> None:
            await story(backend)

        try:
            yield lambda story: runner.run(tell(story))
        finally:
            runner.run(backend.__aexit__(None, None, None))
