"""The work of the help desk. It knows Django's table, and nothing of Django."""

from penstock import ActionCtx, App, ApplicationError, Id, MutationCtx, QueryCtx, TaskCtx, UserTable, public

app = App()
mail = app.workpool("mail")


class Ticket(UserTable, source="desk_ticket", key="id", managed=False):
    id: int
    author: str
    text: str
    closed: bool


@app.internal_action
async def confirm(ctx: ActionCtx, author: str, ticket: int) -> str:
    return f"To {author}: your ticket has the number {ticket}."


@app.mutation(access=public)
async def close(ctx: MutationCtx, ticket: Id[Ticket]) -> None:
    found = await ctx.db.get(Ticket, ticket)
    if found is not None and found.closed:
        raise ApplicationError("It is closed already.", status=409)
    await ctx.db.patch(Ticket, ticket, closed=True)


@app.query(access=public)
async def open_tickets(ctx: QueryCtx) -> list[Ticket]:
    return await ctx.db.query(Ticket).filter(lambda row: not row.closed).take(100)


@app.reactive_task(Ticket, filter=lambda row: row.closed)
async def thank(ctx: TaskCtx[Ticket]) -> None:
    """Runs for each ticket that is closed, whether a view, the admin or a shell has closed it."""
    ticket = await ctx.get_document()
    print(f"To {ticket.author}: was that of use?")
