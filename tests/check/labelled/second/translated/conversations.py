"""Conversations and pages of a site: helpers instead of calls within calls, and runtimes."""

from __future__ import annotations

import asyncio

import httpx
from penstock import ActionCtx, App, ApplicationError, Id, MutationCtx, QueryCtx, Table, signed_in, sync

app = App()


class Conversation(Table):
    members: list[str]
    summary: str = ""


class Failure(Table):
    kind: str
    error: str


class SitePage(Table):
    url: str
    text: str


async def name_of_user(ctx: QueryCtx) -> str:
    identity = await ctx.auth.get_user_identity()
    if identity is None:
        raise ApplicationError("Unauthorized")
    return identity.subject


async def ensure_access(ctx: QueryCtx, conversation: Id[Conversation]) -> Conversation:
    user = await name_of_user(ctx)
    found = await ctx.db.get(Conversation, conversation)
    if found is None or user not in found.members:
        raise ApplicationError("Unauthorized")
    return found


@app.query
async def current_user(ctx: QueryCtx) -> str:
    return await name_of_user(ctx)


@app.query
async def list_members_by_call(ctx: QueryCtx, conversation: Id[Conversation]) -> list[str]:
    user = await ctx.run_query(current_user)  # expect: PEN008, PEN009
    found = await ctx.db.get(Conversation, conversation)
    await ctx.auth.require()
    return [*found.members, user] if found else []


@app.query
async def list_members(ctx: QueryCtx, conversation: Id[Conversation]) -> list[str]:
    found = await ensure_access(ctx, conversation)
    return [*found.members, await name_of_user(ctx)]


@app.mutation
async def add_summary_by_call(ctx: MutationCtx, conversation: Id[Conversation], summary: str) -> None:
    await name_of_user(ctx)
    await ctx.run_mutation(add_summary, conversation, summary)  # expect: PEN009


@app.internal_mutation
async def add_summary(ctx: MutationCtx, conversation: Id[Conversation], summary: str) -> None:
    await ctx.db.patch(Conversation, conversation, summary=summary)


@app.internal_query
async def texts_of(ctx: QueryCtx, conversation: Id[Conversation]) -> list[str]:
    found = await ctx.db.get(Conversation, conversation)
    return found.members if found else []


async def generate_summary(texts: list[str]) -> str:
    async with httpx.AsyncClient() as client:
        return (await client.post("https://model.example.com", json=texts)).text


@app.action(access=signed_in)
async def summarize(ctx: ActionCtx, conversation: Id[Conversation]) -> None:
    texts = await ctx.run_query(texts_of, conversation)
    summary = await generate_summary(texts)
    await ctx.run_mutation(add_summary, conversation, summary)


@app.action(access=signed_in)
async def summarize_publicly(ctx: ActionCtx, conversation: Id[Conversation]) -> None:
    texts = await ctx.run_query(list_members, conversation)  # expect: PEN008
    summary = await generate_summary(texts)
    await ctx.run_mutation(add_summary_by_call, conversation, summary)  # expect: PEN008


@app.mutation(access=signed_in)
async def try_to_summarize(ctx: MutationCtx, conversation: Id[Conversation], summary: str) -> None:
    try:
        await ctx.run_mutation(add_summary, conversation, summary)
    except ApplicationError as error:
        await ctx.db.insert(Failure(kind="MessageFailed", error=f"Error: {error}"))


@app.internal_mutation
async def add_page(ctx: MutationCtx, url: str, text: str) -> None:
    await ctx.db.insert(SitePage(url=url, text=text))


@app.internal_action
async def scrape_single_page(ctx: ActionCtx, url: str) -> None:
    await scrape_page(ctx, url)


async def scrape_page(ctx: ActionCtx, url: str) -> None:
    async with httpx.AsyncClient() as client:
        text = (await client.get(url)).text
    await ctx.run_mutation(add_page, url, text)


@app.internal_action
def render_page(ctx: sync.ActionCtx, url: str) -> str:
    return httpx.get(url).text


@app.action(access=signed_in)
async def scrape_site_by_actions(ctx: ActionCtx, site_map: str) -> None:
    async with httpx.AsyncClient() as client:
        pages = (await client.get(site_map)).text.split()
    await asyncio.gather(*[ctx.run_action(scrape_single_page, page) for page in pages])  # expect: PEN010


@app.action(access=signed_in)
async def scrape_site(ctx: ActionCtx, site_map: str) -> None:
    async with httpx.AsyncClient() as client:
        pages = (await client.get(site_map)).text.split()
    await asyncio.gather(*[scrape_page(ctx, page) for page in pages])


@app.action(access=signed_in)
async def scrape_in_threads(ctx: ActionCtx, site_map: str) -> None:
    async with httpx.AsyncClient() as client:
        pages = (await client.get(site_map)).text.split()
    await asyncio.gather(*[ctx.run_action(render_page, page) for page in pages])


@app.action(access=signed_in)
async def scrape_one(ctx: ActionCtx, url: str) -> None:
    await ctx.run_action(scrape_single_page, url)  # expect: PEN010
