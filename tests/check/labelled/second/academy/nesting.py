"""Functions within functions, and tests of the program."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from penstock import ActionCtx, Id, MutationCtx, TaskBatchCtx

from .catalogue import open_course
from .enrolling import welcome
from .loading import add_course
from .setting import academy, mails
from .tables import Course


@academy.internal_action
async def one_of(ctx: ActionCtx, way: str) -> None:
    ways: dict[str, Callable[[], Awaitable[object]]] = {
        "add": lambda: ctx.run_mutation(add_course, "one"),
        "tell": lambda: mails.enqueue(ctx, welcome, "ada"),
        "add another": lambda: ctx.run_mutation(add_course, "two"),
    }
    await ways[way]()


@academy.internal_action
async def callback(ctx: ActionCtx) -> None:
    async def add() -> None:
        await ctx.run_mutation(add_course, "one")
        await mails.enqueue(ctx, welcome, "ada")  # expect: PEN016

    await add()


@academy.internal_mutation
async def test_nothing_stays(ctx: MutationCtx) -> None:
    with pytest.raises(ValueError, match="no"):
        await ctx.run_mutation(add_course, "one")


@academy.mutation
async def hide_course(ctx: MutationCtx, course: Id[Course]) -> None:
    await ctx.check_access(open_course, course)
    await ctx.db.patch(Course, course, published=False)


@academy.internal_action
async def reading(ctx: ActionCtx, pages: int) -> None:
    for page in range(pages):
        ctx.work.progress(page, pages)  # expect: PEN001


@academy.reactive_task(Course, name="read-many", batch=10)
async def read_many(ctx: TaskBatchCtx[Course]) -> None:
    ctx.get_documents()  # expect: PEN001
