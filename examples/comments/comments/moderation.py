"""The component: its table, its functions, and the task that moderates each comment."""

from datetime import timedelta
from typing import Literal

from penstock import App, Id, Index, MutationCtx, QueryCtx, Retry, Table, TaskCtx, public, signed_in

app = App()
reviews = app.workpool("reviews", max_parallelism=4)


class Comment(Table):
    page: str
    author: str
    text: str
    status: Literal["waiting", "shown", "hidden"] = "waiting"

    by_page = Index("page", "status")
    by_status = Index("status")


class Moderator(Table):
    handle: str  # of an action of the program: (ctx, text: str) -> bool


@app.internal_mutation
async def moderate_with(ctx: MutationCtx, handle: str) -> None:
    """Ask this action whether a comment may be shown. Without one, all are."""
    async for old in ctx.db.query(Moderator):
        await ctx.db.delete(Moderator, old.id)
    await ctx.db.insert(Moderator(handle=handle))


@app.mutation(access=signed_in)
async def add(ctx: MutationCtx, page: str, text: str) -> Id[Comment]:
    """Write a comment as the caller. It is shown once it has been reviewed."""
    author = await ctx.auth.require()
    return await ctx.db.insert(Comment(page=page, author=author.name or author.subject, text=text))


@app.query(access=public)
async def thread(ctx: QueryCtx, page: str) -> list[Comment]:
    """The comments of a page that are shown, the oldest first."""
    return await ctx.db.query(Comment).with_index(Comment.by_page, page=page, status="shown").take(200)


@app.internal_query
async def latest(ctx: QueryCtx, status: Literal["waiting", "shown", "hidden"]) -> list[Comment]:
    """The newest comments of all pages, for moderators."""
    return await ctx.db.query(Comment).with_index(Comment.by_status, status=status).order("desc").take(50)


@app.internal_mutation
async def hide(ctx: MutationCtx, comment: Id[Comment]) -> None:
    """Hide a comment."""
    await ctx.db.patch(Comment, comment, status="hidden")


@app.reactive_task(
    Comment,
    filter=lambda comment: comment.status == "waiting",
    pool=reviews,
    retry=Retry(max_attempts=5, initial_backoff=1),
    timeout=timedelta(seconds=30),
)
async def review(ctx: TaskCtx[Comment]) -> None:
    comment, handle = await ctx.get_document(), await ctx.run_query(moderator)
    fine = handle is None or await ctx.run_action(ctx.function(handle), comment.text)
    await ctx.run_mutation(decide, comment.id, shown=fine)


@app.internal_query
async def moderator(ctx: QueryCtx) -> str | None:
    found = await ctx.db.query(Moderator).first()
    return None if found is None else found.handle


@app.internal_mutation
async def decide(ctx: MutationCtx, comment: Id[Comment], *, shown: bool) -> None:
    found = await ctx.db.get(Comment, comment)
    if found is not None and found.status == "waiting":
        await ctx.db.patch(Comment, comment, status="shown" if shown else "hidden")
