"""Teams: redundant indexes, access control, internal functions, consistent reads, whole loops."""

from __future__ import annotations

from datetime import timedelta

import httpx
from penstock import ActionCtx, App, ApplicationError, Id, Index, MutationCtx, QueryCtx, Table, public, signed_in
from pydantic import BaseModel

app = App()


class User(Table):
    name: str
    email: str
    by_email = Index("email", unique=True)


class Team(Table):
    name: str
    owner: Id[User]


class TeamMember(Table):
    team: Id[Team]
    user: Id[User]
    by_team = Index("team")  # expect: PEN004
    by_team_and_user = Index("team", "user")


class ChannelMessage(Table):
    channel: str
    author: str
    body: str
    by_channel = Index("channel")
    by_channel_and_author = Index("channel", "author")


class TeamUpdate(BaseModel):
    name: str | None = None
    owner: Id[User] | None = None


class NewUser(BaseModel):
    name: str
    email: str


@app.query(access=public)
async def latest_of_channel(ctx: QueryCtx, channel: str) -> list[ChannelMessage]:
    found = ctx.db.query(ChannelMessage).with_index(ChannelMessage.by_channel, channel=channel)
    return await found.order("desc").take(10)


async def members(ctx: QueryCtx, team: Id[Team]) -> list[TeamMember]:
    return await ctx.db.query(TeamMember).with_index(TeamMember.by_team_and_user, team=team).collect()


async def current_user(ctx: QueryCtx) -> User:
    identity = await ctx.auth.get_user_identity()
    if identity is None:
        raise ApplicationError("Unauthorized")
    user = await ctx.db.query(User).with_index(User.by_email, email=identity.email).unique()
    if user is None:
        raise ApplicationError("Unauthorized")
    return user


@app.mutation
async def update_team_unchecked(ctx: MutationCtx, id: Id[Team], update: TeamUpdate) -> None:  # expect: PEN006
    await ctx.db.patch(Team, id, **update.model_dump(exclude_unset=True))


@app.mutation(access=public)
async def update_team_by_email(ctx: MutationCtx, id: Id[Team], update: TeamUpdate, email: str) -> None:
    users = [await ctx.db.get(User, one.user) for one in await members(ctx, id)]
    if not any(user is not None and user.email == email for user in users):  # expect: PEN007
        raise ApplicationError("Unauthorized")
    await ctx.db.patch(Team, id, **update.model_dump(exclude_unset=True))


@app.mutation
async def update_team(ctx: MutationCtx, id: Id[Team], update: TeamUpdate) -> None:
    user = await current_user(ctx)
    if not any(one.user == user.id for one in await members(ctx, id)):
        raise ApplicationError("Unauthorized")
    await ctx.db.patch(Team, id, **update.model_dump(exclude_unset=True))


@app.mutation
async def set_team_owner(ctx: MutationCtx, id: Id[Team], owner: Id[User]) -> None:
    user = await current_user(ctx)
    team = await ctx.db.get(Team, id)
    if team is None or team.owner != user.id:
        raise ApplicationError("Unauthorized")
    await ctx.db.patch(Team, id, owner=owner)


@app.mutation(access=signed_in)
async def send_message(ctx: MutationCtx, body: str, author: str) -> None:
    await ctx.db.insert(ChannelMessage(channel="all", author=author, body=body))


@app.cron("0 17 * * *", name="reminder to everybody")
async def daily_reminder(ctx: MutationCtx) -> None:
    await ctx.scheduler.run_after(timedelta(0), send_message, "Share your daily update!", "System")  # expect: PEN008


async def _send(ctx: MutationCtx, body: str, author: str) -> None:
    await ctx.db.insert(ChannelMessage(channel="all", author=author, body=body))


@app.mutation
async def send_own_message(ctx: MutationCtx, body: str) -> None:
    user = await current_user(ctx)
    await _send(ctx, body, user.name)


@app.internal_mutation
async def send_internal_message(ctx: MutationCtx, body: str, author: str) -> None:
    await _send(ctx, body, author)


@app.cron("0 18 * * *", name="internal reminder")
async def internal_reminder(ctx: MutationCtx) -> None:
    await ctx.scheduler.run_after(timedelta(0), send_internal_message, "Share your daily update!", "System")


@app.internal_query
async def get_team(ctx: QueryCtx, team: Id[Team]) -> Team | None:
    return await ctx.db.get(Team, team)


@app.internal_query
async def get_team_owner(ctx: QueryCtx, team: Id[Team]) -> User | None:
    found = await ctx.db.get(Team, team)
    return await ctx.db.get(User, found.owner) if found else None


@app.internal_query
async def get_team_and_owner(ctx: QueryCtx, team: Id[Team]) -> tuple[Team | None, User | None]:
    return await get_team(ctx, team), await get_team_owner(ctx, team)


@app.internal_action
async def billing_reminder_torn(ctx: ActionCtx, team: Id[Team]) -> None:
    found = await ctx.run_query(get_team, team)
    owner = await ctx.run_query(get_team_owner, team)  # expect: PEN011
    assert found and owner and found.owner == owner.id


@app.internal_action
async def billing_reminder(ctx: ActionCtx, team: Id[Team]) -> None:
    found, owner = await ctx.run_query(get_team_and_owner, team)
    assert found and owner and found.owner == owner.id
    httpx.post("https://mail.example.com", json={"to": owner.email})  # expect: PEN022


async def fetch_members(team: Id[Team]) -> list[NewUser]:
    async with httpx.AsyncClient() as client:
        return [NewUser(**one) for one in (await client.get(f"https://hr.example.com/{team}")).json()]


@app.internal_mutation
async def insert_user(ctx: MutationCtx, user: NewUser) -> None:
    await ctx.db.insert(User(name=user.name, email=user.email))


@app.internal_mutation
async def insert_users(ctx: MutationCtx, users: list[NewUser]) -> None:
    for user in users:
        await ctx.db.insert(User(name=user.name, email=user.email))


@app.internal_action
async def import_members_one_by_one(ctx: ActionCtx, team: Id[Team]) -> None:
    found = await fetch_members(team)
    for member in found:
        await ctx.run_mutation(insert_user, member)  # expect: PEN012


@app.internal_action
async def import_members(ctx: ActionCtx, team: Id[Team]) -> None:
    found = await fetch_members(team)
    await ctx.run_mutation(insert_users, found)
