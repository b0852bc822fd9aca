"""A board that is live. ``uvicorn board:web --workers 4`` or ``gunicorn -k asgi -w 4 board:web`` serve it."""

import os
from datetime import timedelta

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock import ActionCtx, App, MutationCtx, QueryCtx, Table, TokenBucket, asgi_app, public

app = App()
app.rate_limit("posts", TokenBucket(rate=60, period=timedelta(minutes=1)))


class Post(Table):
    text: str


@app.mutation(access=public, rate_limit="posts")
async def write(ctx: MutationCtx, text: str) -> None:
    await ctx.db.insert(Post(text=text))


@app.query(access=public)
async def read(ctx: QueryCtx) -> list[str]:
    return [post.text for post in await ctx.db.query(Post).order("desc").take(20)]


@app.http("POST", "/who", access=public)
async def who(ctx: ActionCtx, request: Request) -> Response:
    client = request.client
    return JSONResponse({"from": client and client.host, "scheme": request.url.scheme, "pid": os.getpid()})


web = asgi_app(app)
