"""A chat with pictures, as Convex's upload example has it: the same functions, and the same calls of its page."""

from __future__ import annotations

from typing import Any

from penstock import App, File, Id, MutationCtx, QueryCtx, Table, public

app = App()


class Message(Table, name="message_of_album"):
    author: str
    picture: Id[File]


@app.mutation(name="messages:generateUploadUrl", access=public)
async def generate_upload_url(ctx: MutationCtx) -> str:
    return await ctx.storage.generate_upload_url()


@app.mutation(name="messages:sendImage", access=public)
async def send_image(ctx: MutationCtx, storageId: Id[File], author: str) -> None:  # noqa: N803 - as the page says
    await ctx.db.insert(Message(author=author, picture=storageId))


@app.mutation(name="messages:deleteImage", access=public)
async def delete_image(ctx: MutationCtx, storageId: Id[File]) -> None:  # noqa: N803 - as the page says
    await ctx.storage.delete(storageId)


@app.query(name="messages:list", access=public)
async def list_messages(ctx: QueryCtx) -> list[dict[str, Any]]:
    rows = await ctx.db.query(Message).collect()
    return [{"author": row.author, "url": await ctx.storage.get_url(row.picture)} for row in rows]


@app.query(name="messages:metadata", access=public)
async def metadata(ctx: QueryCtx, storageId: Id[File]) -> File | None:  # noqa: N803 - as the page says
    return await ctx.storage.get_metadata(storageId)
