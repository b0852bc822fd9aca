"""Channels and their messages: two tables, of which one refers to the other."""

from typing import Annotated

from pydantic import Field

from penstock import App, Id, Index, MutationCtx, QueryCtx, Table, public

app = App()


class Channel(Table):
    name: str


class Message(Table):
    channel: Id[Channel]
    author: str
    body: str

    by_channel = Index("channel")


@app.query(name="channels:list", access=public)
async def list_channels(ctx: QueryCtx) -> list[Channel]:
    return await ctx.db.query(Channel).take(1000)


@app.mutation(name="channels:add", access=public)
async def add_channel(ctx: MutationCtx, name: str) -> Id[Channel]:
    return await ctx.db.insert(Channel(name=name))


@app.query(name="messages:list", access=public)
async def list_messages(ctx: QueryCtx, channel: Annotated[Id[Channel], Field(alias="channelId")]) -> list[Message]:
    return await ctx.db.query(Message).with_index(Message.by_channel, channel=channel).collect()


@app.mutation(access=public)
async def send(ctx: MutationCtx, channel: Id[Channel], body: str, author: str) -> None:
    await ctx.db.insert(Message(channel=channel, author=author, body=body))
