"""Messages with pictures, whose bytes go through HTTP actions of the program's own."""

from typing import Literal

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock import ActionCtx, App, File, Id, MutationCtx, QueryCtx, Table, public

MIB = 1024 * 1024
app = App()


class Message(Table):
    author: str
    body: str | Id[File]
    format: Literal["text", "image"] = "text"


@app.query(name="messages:list", access=public)
async def list_messages(ctx: QueryCtx) -> list[Message]:
    return await ctx.db.query(Message).take(1000)


@app.mutation(access=public)
async def send(ctx: MutationCtx, body: str, author: str) -> None:
    await ctx.db.insert(Message(author=author, body=body))


@app.internal_mutation
async def send_image(ctx: MutationCtx, picture: Id[File], author: str) -> None:
    await ctx.db.insert(Message(author=author, body=picture, format="image"))


@app.http("POST", "/sendImage", access=public, max_body=20 * MIB)
async def post_image(ctx: ActionCtx, request: Request) -> Response:
    author = request.query_params.get("author")
    if author is None:
        return Response("Name an author.", status_code=400)
    picture = await ctx.storage.store(request.stream(), content_type=request.headers.get("content-type"))
    await ctx.run_mutation(send_image, picture, author)
    return Response()


@app.http("GET", "/getImage", access=public)
async def get_image(ctx: ActionCtx, request: Request) -> Response:
    picture = await ctx.storage.open(request.query_params["storageId"])
    if picture is None:
        return Response("There is no such picture.", status_code=404)
    return StreamingResponse(picture, media_type=picture.file.content_type)
