"""A newsletter in one file, in the manner of a first week."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import socket
import string
from datetime import datetime, timedelta
from typing import Annotated, Any, Awaitable, Callable
from zoneinfo import ZoneInfo

import aiohttp
import boto3
from penstock import (
    ActionCtx,
    App,
    ApplicationError,
    Id,
    Index,
    MutationCtx,
    PaginationOptions,
    Page,
    QueryCtx,
    Retry,
    Table,
    public,
    signed_in,
)
from pydantic import Field

app = App()
log = logging.getLogger(__name__)
s3 = boto3.client("s3")
ALPHABET = string.ascii_letters


class Reader(Table):
    email: str
    name: str = ""
    confirmed: bool = False
    token: str = ""
    joined: datetime

    by_email = Index("email", unique=True)
    by_token = Index("token")
    by_joined = Index("joined")


class Issue(Table):
    title: str
    body: str
    sent_at: datetime | None = None
    author: str = ""

    by_sent = Index("sent_at")
    by_author = Index("author")  # read in the order of creation
    by_author_sent = Index("author", "sent_at")


mailer = app.workpool("mailer", max_parallelism=10, default_retry=Retry(max_attempts=5, initial_backoff=1, base=2))


class Service:
    """What public functions share."""

    def __init__(self, ctx: MutationCtx) -> None:
        self.ctx = ctx
        self.db = ctx.db

    async def reader(self, email: str) -> Reader | None:
        return await self.db.query(Reader).with_index(Reader.by_email, email=email).unique()

    async def confirm(self, reader: Id[Reader]) -> None:
        await self.db.patch(Reader, reader, confirmed=True)
        self.ctx.scheduler.run_after(timedelta(hours=1), greet, reader)  # expect: PEN001

    async def everyone(self) -> list[Reader]:
        return await self.db.query(Reader).collect()  # expect: PEN003

    async def confirmed(self) -> list[Reader]:
        return [reader for reader in await self.everyone() if reader.confirmed]

    async def forget(self, reader: Id[Reader]) -> None:
        await self.db.delete(reader)  # expect: PEN013

    @staticmethod
    def token() -> str:
        return "".join(secrets.choice(ALPHABET) for _ in range(20))  # expect: PEN014

    @classmethod
    def host(cls) -> str:
        return socket.gethostname()  # expect: PEN015

    @property
    def today(self) -> str:
        return datetime.now(ZoneInfo("Europe/Prague")).date().isoformat()  # expect: PEN014


@app.mutation(access=public, rate_limit="sign up")
async def sign_up(ctx: MutationCtx, email: Annotated[str, Field(max_length=200)], name: str = "") -> Id[Reader]:
    service = Service(ctx)
    if await service.reader(email):
        raise ApplicationError("You are a reader already.")
    token = service.token()
    return await ctx.db.insert(Reader(email=email, name=name, token=token, joined=ctx.now()))


@app.mutation(access=public)
async def confirm(ctx: MutationCtx, token: str) -> None:
    reader = await ctx.db.query(Reader).with_index(Reader.by_token, token=token).first()
    if reader is None:
        raise ApplicationError("This link is old.")
    await Service(ctx).confirm(reader.id)


@app.mutation(access=public)
async def leave(ctx: MutationCtx, reader: Id[Reader], email: str) -> None:
    row = await ctx.db.get(Reader, reader)
    match row:
        case Reader(email=known) if known == email:  # missed: PEN007
            await Service(ctx).forget(reader)
        case _:
            raise ApplicationError("This is not you.")


@app.mutation(access=signed_in)
async def send_to_all(ctx: MutationCtx, issue: Id[Issue]) -> int:
    readers = await Service(ctx).confirmed()
    calls = [{"email": reader.email, "issue": issue} for reader in readers]
    await mailer.with_options(retry=True).enqueue_batch(ctx, deliver, calls)
    return len(calls)


@app.mutation(access=signed_in)
async def send_with_everyone(ctx: MutationCtx, issue: Id[Issue]) -> None:
    context: dict[str, Any] = {"issue": issue}
    context["readers"] = [reader.id async for reader in ctx.db.query(Reader)]  # expect: PEN003
    await mailer.with_options(on_complete=delivered, context=context).enqueue(ctx, greet, issue)  # expect: PEN020


@app.internal_mutation
async def delivered(ctx: MutationCtx, work_id: str, result: Any, context: dict[str, Any]) -> None:
    log.info("delivered %s", context)


@app.query(access=signed_in)
async def sent(ctx: QueryCtx, pagination_opts: PaginationOptions) -> Page[Issue]:
    return await ctx.db.query(Issue).with_index(Issue.by_sent).order("desc").paginate(pagination_opts)


@app.query(access=signed_in)
async def by_author(ctx: QueryCtx, author: str) -> Issue | None:
    return await ctx.db.query(Issue).with_index(Issue.by_author, author=author).order("desc").first()


@app.query(access=signed_in)
async def unsent(ctx: QueryCtx) -> list[Issue]:
    drafts = []
    async for issue in ctx.db.query(Issue):  # expect: PEN002
        if issue.sent_at is not None:
            continue
        drafts.append(issue)
    return drafts


@app.query(access=signed_in)
async def named(ctx: QueryCtx, name: str) -> list[Reader]:
    found: list[Reader] = []
    page = await ctx.db.query(Reader).order("desc").take(50)
    found.extend(row for row in page if row.name == name)
    return found


@app.mutation(access=signed_in)
async def publish(ctx: MutationCtx, issue: Id[Issue], options: dict) -> None:  # expect: PEN005
    if options.get("now"):
        await ctx.db.patch(Issue, issue, sent_at=ctx.now())
    s3.put_object(Bucket="news", Key=str(issue), Body=json.dumps(options))  # expect: PEN015


@app.mutation(access=signed_in)
async def publish_later(ctx: MutationCtx, issue: Id[Issue], at: datetime) -> None:
    await ctx.scheduler.run_at(at, publish, issue, {})  # expect: PEN008
    await ctx.scheduler.run_at(at, upload, issue)


async def _in_session(do: Callable[[aiohttp.ClientSession], Awaitable[None]]) -> None:
    async with aiohttp.ClientSession() as session:
        await do(session)


@app.internal_action
async def deliver(ctx: ActionCtx, email: str, issue: str) -> None:
    async def do(session: aiohttp.ClientSession) -> None:
        await session.post("https://mail.example.com", json={"to": email, "issue": issue})  # expect: PEN017

    await _in_session(do)


@app.internal_action
async def greet(ctx: ActionCtx, reader: str) -> None:
    async with aiohttp.ClientSession() as session, session.post("https://mail.example.com", data=reader) as answer:
        answer.raise_for_status()


@app.internal_action
async def upload(ctx: ActionCtx, issue: Id[Issue]) -> None:
    row = await ctx.run_query(read, issue)
    await asyncio.to_thread(s3.put_object, Bucket="news", Key=str(issue), Body=row)
    await ctx.run_mutation(uploaded, issue)


async def _read_and_mark(ctx: ActionCtx, issue: Id[Issue]) -> None:
    body = await ctx.run_query(read, issue)
    if not body.strip():
        raise ApplicationError("empty")
    await ctx.run_mutation(uploaded, issue)  # expect: PEN011


@app.internal_query
async def read(ctx: QueryCtx, issue: Id[Issue]) -> str:
    row = await ctx.db.get(Issue, issue)
    return "" if row is None else row.body


@app.internal_query
async def read_two(ctx: QueryCtx, first: Id[Issue], second: Id[Issue]) -> str:
    return await read(ctx, first) + await ctx.run_query(read, second)  # expect: PEN009


@app.internal_mutation
async def uploaded(ctx: MutationCtx, issue: Id[Issue]) -> None:
    await ctx.db.patch(Issue, issue, sent_at=ctx.now())


@app.internal_action
async def upload_then_tell(ctx: ActionCtx, issue: Id[Issue]) -> None:
    await ctx.run_mutation(uploaded, issue)
    await ctx.outbox.send("uploads", {"issue": issue})  # expect: PEN016
