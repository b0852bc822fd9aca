"""Teams: indexes, access, and transactions one after another."""

import httpx
from pydantic import BaseModel

import penstock
from penstock import ActionCtx, App, ApplicationError, Id, Index, MutationCtx, QueryCtx, Table, public

app = App()


class User(Table):
    name: str
    email: str


class Team(Table):
    name: str
    owner: Id[User]


class TeamMember(Table):
    team: Id[Team]
    user: Id[User]
    email: str
    by_team = Index("team")  # expect: PEN004
    by_team_and_user = Index("team", "user")


class ChannelMessage(Table):
    channel: str
    author: str
    by_channel = Index("channel")
    by_channel_and_author = Index("channel", "author")


@app.internal_query
async def newest(ctx: QueryCtx, channel: str) -> list[ChannelMessage]:
    query = ctx.db.query(ChannelMessage).with_index(ChannelMessage.by_channel, channel=channel)
    return await query.order("desc").take(10)


@app.internal_query
async def members(ctx: QueryCtx, team: Id[Team], user: Id[User]) -> tuple[int, TeamMember | None]:
    everyone = await ctx.db.query(TeamMember).with_index(TeamMember.by_team, team=team).collect()  # expect: PEN003
    pair = ctx.db.query(TeamMember).with_index(TeamMember.by_team_and_user, team=team, user=user)
    return len(everyone), await pair.unique()


class Update(BaseModel):
    name: str | None = None


@app.mutation
async def update_team_unchecked(ctx: MutationCtx, id: Id[Team], update: Update) -> None:  # expect: PEN006
    await ctx.db.patch(Team, id, **update.model_dump())


@app.mutation(access=public)
async def update_team_spoofed(ctx: MutationCtx, id: Id[Team], update: Update, email: str) -> None:
    team_members = await ctx.db.query(TeamMember).with_index(TeamMember.by_team_and_user, team=id).collect()
    if not any(m.email == email for m in team_members):  # expect: PEN007
        raise ApplicationError("Unauthorized")
    await ctx.db.patch(Team, id, **update.model_dump())


@app.mutation
async def update_team(ctx: MutationCtx, id: Id[Team], update: Update) -> None:
    user = await ctx.auth.get_user_identity()
    if user is None:
        raise ApplicationError("Unauthorized")
    is_team_member = await ctx.db.query(TeamMember).with_index(TeamMember.by_team_and_user, team=id).first()
    if not is_team_member:
        raise ApplicationError("Unauthorized")
    await ctx.db.patch(Team, id, **update.model_dump())


@app.mutation
async def set_team_owner(ctx: MutationCtx, id: Id[Team], owner: Id[User]) -> None:
    user = await ctx.auth.get_user_identity()
    if user is None:
        raise ApplicationError("Unauthorized")
    team = await ctx.db.get(Team, id)
    if team is None or team.owner != user.subject:
        raise ApplicationError("Unauthorized")
    await ctx.db.patch(Team, id, owner=owner)


class Teams:
    @staticmethod
    async def load(ctx: QueryCtx, team: Id[Team]) -> Team:
        found = await ctx.db.get(Team, team)
        if found is None:
            raise ApplicationError("No team.")
        return found

    @classmethod
    async def owner(cls, ctx: QueryCtx, team: Id[Team]) -> User | None:
        return await ctx.db.get(User, (await cls.load(ctx, team)).owner)

    @staticmethod
    async def touch(ctx: MutationCtx, team: Id[Team]) -> None:
        await ctx.db.patch(Team, team, name="")


@app.internal_query
async def get_team(ctx: QueryCtx, team: Id[Team]) -> Team:
    return await Teams.load(ctx, team)


@app.internal_query
async def get_team_owner(ctx: QueryCtx, team: Id[Team]) -> User | None:
    return await Teams.owner(ctx, team)


@app.internal_query
async def get_team_and_owner(ctx: QueryCtx, team: Id[Team]) -> tuple[Team, User | None]:
    return await Teams.load(ctx, team), await Teams.owner(ctx, team)


@app.internal_mutation
async def touch_team(ctx: MutationCtx, team: Id[Team]) -> None:
    Teams.touch(ctx, team)  # expect: PEN001


@app.internal_action
async def send_billing_reminder_bad(ctx: ActionCtx, team_id: Id[Team]) -> None:
    team = await ctx.run_query(get_team, team_id)
    team_owner = await ctx.run_query(get_team_owner, team_id)  # expect: PEN011
    assert team_owner is None or team.owner == team_owner.id


@app.internal_action
async def send_billing_reminder(ctx: ActionCtx, team_id: Id[Team]) -> None:
    team, team_owner = await ctx.run_query(get_team_and_owner, team_id)
    assert team_owner is None or team.owner == team_owner.id


async def fetch_team_member_data(team: Id[Team]) -> list[str]:
    async with httpx.AsyncClient() as client:
        return (await client.get(f"https://teams.example.com/{team}")).json()


@app.internal_action
async def import_teams_bad(ctx: ActionCtx, team: Id[Team]) -> None:
    team_members = await fetch_team_member_data(team)
    for member in team_members:
        await ctx.run_mutation(insert_user, name=member, email="")  # expect: PEN012


@app.internal_action
async def import_teams(ctx: ActionCtx, team: Id[Team]) -> None:
    team_members = await fetch_team_member_data(team)
    await ctx.run_mutation(insert_users, team_members)


@app.internal_mutation
async def insert_user(ctx: MutationCtx, name: str, email: str) -> None:
    await ctx.db.insert(User(name=name, email=email))


@app.internal_mutation
async def insert_users(ctx: MutationCtx, users: list[str]) -> None:
    for name in users:
        await ctx.db.insert(User(name=name, email=""))


@app.internal_action
async def migrate(ctx: penstock.ActionCtx) -> None:
    cursor: str | None = None
    while True:
        cursor = await ctx.run_mutation(migrate_page, cursor)
        if cursor is None:
            break


@app.internal_mutation
async def migrate_page(ctx: penstock.MutationCtx, cursor: str | None) -> str | None:
    page = await ctx.db.query(User).paginate(cursor=cursor, num_items=100)
    for user in page.page:
        await ctx.db.patch(User, user.id, email=user.email.lower())
    return None if page.is_done else page.continue_cursor
