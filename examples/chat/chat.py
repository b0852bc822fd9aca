"""A chat: channels, and their messages, which every page, script and program that looks at them shows as they come.

``make chat`` builds the page and serves it with this program. Anything that writes to the tables is seen at once:
``penstock run send``, psql, another program.
"""

from dataclasses import dataclass

from penstock import App, ApplicationError, Id, Index, MutationCtx, Page, PaginationOptions, QueryCtx, Table, public

LONGEST = 2000
app = App()


class Channel(Table):
    name: str

    by_name = Index("name", unique=True)


class Message(Table):
    channel: Id[Channel]
    author: str
    text: str

    by_channel = Index("channel")


@dataclass
class Listed:
    id: Id[Channel]
    name: str
    messages: int


@app.query(access=public)
async def channels(ctx: QueryCtx) -> list[Listed]:
    """All channels, and how many messages each has."""
    found = []
    for channel in await ctx.db.query(Channel).with_index(Channel.by_name).take(50):
        messages = await ctx.db.query(Message).with_index(Message.by_channel, channel=channel.id).count()
        found.append(Listed(channel.id, channel.name, messages))
    return found


@app.query(access=public)
async def history(ctx: QueryCtx, channel: Id[Channel], pagination_opts: PaginationOptions) -> Page[Message]:
    """The messages of a channel page by page, the newest first."""
    return (
        await ctx.db.query(Message)
        .with_index(Message.by_channel, channel=channel)
        .order("desc")
        .paginate(pagination_opts)
    )


@app.query(access=public)
async def latest(ctx: QueryCtx, channel: str, count: int = 20) -> list[Message]:
    """The newest messages of a channel, the oldest of them first; for scripts, which know it by its name."""
    known = await ctx.db.query(Channel).with_index(Channel.by_name, name=channel).unique()
    if known is None:
        return []
    query = ctx.db.query(Message).with_index(Message.by_channel, channel=known.id)
    return (await query.order("desc").take(count))[::-1]


@app.mutation(access=public)
async def open_channel(ctx: MutationCtx, name: str) -> Id[Channel]:
    """The channel of a name, a new one if there is none."""
    name = name.strip().lower().replace(" ", "-")
    if not name:
        raise ApplicationError({"kind": "empty", "what": "name"})
    known = await ctx.db.query(Channel).with_index(Channel.by_name, name=name).unique()
    return known.id if known else await ctx.db.insert(Channel(name=name))


@app.mutation(access=public)
async def send(ctx: MutationCtx, channel: str, author: str, text: str) -> Id[Message]:
    """Send a message to the channel of a name."""
    text = text.strip()
    if not text:
        raise ApplicationError({"kind": "empty", "what": "text"})
    if len(text) > LONGEST:
        raise ApplicationError({"kind": "too long", "most": LONGEST})
    known = await open_channel(ctx, channel)
    return await ctx.db.insert(Message(channel=known, author=author.strip() or "somebody", text=text))
