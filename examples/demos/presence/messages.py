"""Who is in a room, with anything that their pages say of them."""

from pydantic import BaseModel, JsonValue

from penstock import App, Index, MutationCtx, QueryCtx, Table, public

app = App()


class Message(Table):
    author: str
    body: str


class Presence(Table):
    user: str
    room: str
    updated: float
    data: JsonValue

    by_room_updated = Index("room", "updated")
    by_user_room = Index("user", "room", unique=True)


class Seen(BaseModel):
    created: float
    updated: float
    user: str
    data: JsonValue


def milliseconds(ctx: MutationCtx) -> float:
    return ctx.now().timestamp() * 1000


async def presence_of(ctx: QueryCtx, user: str, room: str) -> Presence | None:
    return await ctx.db.query(Presence).with_index(Presence.by_user_room, user=user, room=room).unique()


@app.mutation(name="presence:update", access=public)
async def update(ctx: MutationCtx, room: str, user: str, data: JsonValue) -> None:
    known, now = await presence_of(ctx, user, room), milliseconds(ctx)
    if known is None:
        await ctx.db.insert(Presence(user=user, room=room, data=data, updated=now))
    else:
        await ctx.db.patch(Presence, known.id, data=data, updated=now)


@app.mutation(name="presence:heartbeat", access=public)
async def heartbeat(ctx: MutationCtx, room: str, user: str) -> None:
    known = await presence_of(ctx, user, room)
    if known is not None:
        await ctx.db.patch(Presence, known.id, updated=milliseconds(ctx))


@app.query(name="presence:list", access=public)
async def list_presence(ctx: QueryCtx, room: str) -> list[Seen]:
    found = await ctx.db.query(Presence).with_index(Presence.by_room_updated, room=room).order("desc").take(20)
    return [
        Seen(created=one.creation_time.timestamp() * 1000, updated=one.updated, user=one.user, data=one.data)
        for one in found
    ]


@app.query(name="listMessages:default", access=public)
async def list_messages(ctx: QueryCtx) -> list[Message]:
    return await ctx.db.query(Message).take(1000)


@app.mutation(name="sendMessage:default", access=public)
async def send_message(ctx: MutationCtx, body: str, author: str) -> None:
    await ctx.db.insert(Message(author=author, body=body))
