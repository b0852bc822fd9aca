"""A list that is read page by page, the newest first, and stays live."""

from dataclasses import dataclass

from penstock import App, Index, MutationCtx, Page, PaginationOptions, QueryCtx, Table, public

app = App()


@dataclass
class Short:
    author: str
    body: str


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


@app.query(name="messages:listWithTransformation", access=public)
async def in_short(ctx: QueryCtx, pagination_opts: PaginationOptions) -> Page[Short]:
    messages = await list_messages(ctx, pagination_opts)
    return messages.replace_rows([Short(author=one.author[:1], body=one.body.upper()) for one in messages.page])


@app.mutation(access=public)
async def send(ctx: MutationCtx, body: str, author: str) -> None:
    await ctx.db.insert(Message(author=author, body=body))
