"""Messages with pictures: the page uploads the bytes to a URL of its own, and then sends the id that it got."""

from typing import Annotated, Literal

from pydantic import Field

from penstock import App, File, Id, MutationCtx, QueryCtx, Table, public

app = App()
PictureId = Annotated[Id[File], Field(alias="storageId")]


class Message(Table):
    author: str
    body: str = ""
    format: Literal["text", "image"] = "text"
    picture: Id[File] | None = None


class Shown(Message, stored=False):
    url: str | None


@app.query(name="messages:list", access=public)
async def list_messages(ctx: QueryCtx) -> list[Shown]:
    messages = await ctx.db.query(Message).take(1000)
    return [Shown.from_row(one, url=one.picture and await ctx.storage.get_url(one.picture)) for one in messages]


@app.mutation(name="messages:generateUploadUrl", access=public)
async def generate_upload_url(ctx: MutationCtx) -> str:
    return await ctx.storage.generate_upload_url()


@app.mutation(name="messages:sendImage", access=public)
async def send_image(ctx: MutationCtx, picture: PictureId, author: str) -> None:
    await ctx.db.insert(Message(author=author, format="image", picture=picture))


@app.mutation(name="messages:sendMessage", access=public)
async def send_message(ctx: MutationCtx, body: str, author: str) -> None:
    await ctx.db.insert(Message(author=author, body=body))
