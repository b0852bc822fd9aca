"""Messages that other programs send and read over HTTP, such as with curl."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock import ActionCtx, App, Index, MutationCtx, QueryCtx, Table, public

app = App()


class Message(Table):
    author: str
    body: str

    by_author = Index("author")


@app.query(name="messages:list", access=public)
async def list_messages(ctx: QueryCtx) -> list[Message]:
    return await ctx.db.query(Message).take(1000)


@app.mutation(access=public)
async def send(ctx: MutationCtx, body: str, author: str) -> None:
    await ctx.db.insert(Message(author=author, body=body))


@app.internal_mutation
async def store(ctx: MutationCtx, body: str, author: str) -> None:
    await send(ctx, f"Over HTTP: {body}", author)


@app.internal_query
async def of_author(ctx: QueryCtx, author: str) -> list[Message]:
    return await ctx.db.query(Message).with_index(Message.by_author, author=author).collect()


@app.http("POST", "/postMessage", access=public)
async def post_message(ctx: ActionCtx, request: Request) -> Response:
    given = await request.json()
    await ctx.run_mutation(store, given["body"], given["author"])
    return Response()


@app.http("GET", "/getMessagesByAuthor", access=public)
async def get_messages_by_author(ctx: ActionCtx, request: Request) -> Response:
    number = request.query_params.get("authorNumber") or request.headers.get("authorNumber")
    if number is None:
        return Response("Name an authorNumber, as a query parameter or a header.", status_code=400)
    return await answer(ctx, number)


@app.http("GET", "/getAuthorMessages/{number:path}", access=public)
async def get_author_messages(ctx: ActionCtx, request: Request) -> Response:
    return await answer(ctx, request.path_params["number"])


async def answer(ctx: ActionCtx, number: str) -> Response:
    messages = await ctx.run_query(of_author, f"User {number}")
    return JSONResponse([{"author": message.author, "body": message.body} for message in messages])
