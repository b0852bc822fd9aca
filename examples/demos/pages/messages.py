"""A list that is read page by page, the newest first, and stays live."""

from penstock import App, Index, MutationCtx, Page, PaginationOptions, QueryCtx, Table, public

app = App()


class Message(Table):
    author: str
    body: str

    by_author = Index("author")


@app.query(name="messages:list", access=public)
async def list_messages(ctx: QueryCtx, pagination_opts: PaginationOptions) -> Page[Message]:
    return await ctx.db.query(Message).order("desc").paginate(pagination_opts)


@app.query(name="messages:listWithExtraArg", access=public)
async def of_author(ctx: QueryCtx, pagination_opts: PaginationOptions, author: str) -> Page[Message]:
    query = ctx.db.query(Message).with_index(Message.by_author, author=author)
    return await query.order("desc").paginate(pagination_opts)


@app.mutation(access=public)
async def send(ctx: MutationCtx, body: str, author: str) -> None:
    await ctx.db.insert(Message(author=author, body=body))
