"""A search that shows its best hits while somebody types, and follows new messages."""

from penstock import App, MutationCtx, QueryCtx, SearchIndex, Table, public

app = App()


class Message(Table):
    author: str
    body: str

    search_body = SearchIndex("body")


@app.query(name="messages:list", access=public)
async def list_messages(ctx: QueryCtx) -> list[Message]:
    return await ctx.db.query(Message).take(1000)


@app.query(access=public)
async def search(ctx: QueryCtx, query: str) -> list[Message]:
    return await ctx.db.query(Message).with_search_index(Message.search_body, query).take(10)


@app.mutation(access=public)
async def send(ctx: MutationCtx, body: str, author: str) -> None:
    await ctx.db.insert(Message(author=author, body=body))
