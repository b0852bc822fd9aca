"""Messages of users who have signed in.

The tokens would come from a provider, such as Auth0 by `OIDC(…)`. Here the program signs them itself, for anybody who
gives a name.
"""

import os
from datetime import timedelta

import jwt
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from penstock import ActionCtx, App, CustomJWT, Id, Index, MutationCtx, NotSignedIn, QueryCtx, Table, public, signed_in

SECRET = os.environ.get("TOKEN_SECRET", "a secret that only this demo may have")
app = App(auth=[CustomJWT(issuer="demo", secret=SECRET, algorithm="HS256")])


class User(Table):
    name: str
    token_identifier: str

    by_token = Index("token_identifier", unique=True)


class Message(Table):
    body: str
    user: Id[User]


class Shown(Message, stored=False):
    author: str


async def current_user(ctx: QueryCtx) -> User | None:
    token = (await ctx.auth.require()).token_identifier
    return await ctx.db.query(User).with_index(User.by_token, token_identifier=token).unique()


@app.mutation(name="users:store", access=signed_in)
async def store(ctx: MutationCtx) -> Id[User]:
    identity, user = await ctx.auth.require(), await current_user(ctx)
    name = identity.name or "somebody"
    if user is None:
        return await ctx.db.insert(User(name=name, token_identifier=identity.token_identifier))
    if user.name != name:
        await ctx.db.patch(User, user.id, name=name)
    return user.id


@app.query(name="messages:list", access=public)
async def list_messages(ctx: QueryCtx) -> list[Shown]:
    messages = await ctx.db.query(Message).take(1000)
    users = {user: await ctx.db.get(User, user) for user in {message.user for message in messages}}
    return [Shown.from_row(one, author=user.name) for one in messages if (user := users[one.user])]


@app.mutation(access=signed_in)
async def send(ctx: MutationCtx, body: str) -> None:
    user = await current_user(ctx)
    if user is None:
        raise NotSignedIn
    await ctx.db.insert(Message(body=body, user=user.id))


@app.http("POST", "/token", access=public)
async def token(ctx: ActionCtx, request: Request) -> Response:
    name, now = (await request.body()).decode(), ctx.now()
    claims = {"iss": "demo", "sub": name.lower(), "name": name, "iat": now, "exp": now + timedelta(hours=1)}
    return PlainTextResponse(jwt.encode(claims, SECRET, "HS256"))
