"""Messages that count down and then delete themselves: each step is a job that the step before has scheduled."""

from datetime import timedelta

from penstock import App, Id, MutationCtx, QueryCtx, Table, public

SECOND = timedelta(seconds=1)
app = App()


class Message(Table):
    author: str
    body: str


def counted(body: str, seconds: int) -> str:
    return f"{body} (gone in {seconds} s)"


@app.query(name="messages:list", access=public)
async def list_messages(ctx: QueryCtx) -> list[Message]:
    return await ctx.db.query(Message).take(1000)


@app.mutation(access=public)
async def send(ctx: MutationCtx, body: str, author: str) -> None:
    await ctx.db.insert(Message(author=author, body=body))


@app.mutation(name="messages:sendExpiringMessage", access=public)
async def send_expiring_message(ctx: MutationCtx, body: str, author: str) -> None:
    message = await ctx.db.insert(Message(author=author, body=counted(body, 5)))
    await ctx.scheduler.run_after(SECOND, count_down, message, body, 4)


@app.internal_mutation
async def count_down(ctx: MutationCtx, message: Id[Message], body: str, seconds: int) -> None:
    if seconds == 0:
        await ctx.db.delete(Message, message)
        return
    await ctx.db.patch(Message, message, body=counted(body, seconds))
    await ctx.scheduler.run_after(SECOND, count_down, message, body, seconds - 1)
