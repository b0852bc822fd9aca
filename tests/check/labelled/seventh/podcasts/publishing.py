"""Feeds, transcripts, crons, tasks and outboxes."""

import asyncio
import logging
from contextlib import suppress
from datetime import timedelta

import aiohttp
import httpx
import penstock as ps
from penstock import ActionCtx, Id, MutationCtx, Retry, TaskCtx

from podcasts import studio
from podcasts.studio import app, count, latest, new_show, published
from podcasts.tables_of_shows import Episode, Show, Subscription

log = logging.getLogger(__name__)
transcripts = app.workpool("transcripts", max_parallelism=2, retry_actions_by_default=True)
feeds = app.workpool("feeds", max_parallelism=1, default_retry=Retry.series([5, 60, 600]))  # expect: PEN018
mails = app.workpool("mails")
HOSTS = ("https://a.example.com", "https://b.example.com")


async def ping(host: str, episode: Id[Episode], key: str | None = None) -> None:
    async with aiohttp.ClientSession() as session:
        await session.post(host, json={"episode": episode}, headers={"Idempotency-Key": key or episode})


async def ping_bare(host: str, episode: Id[Episode]) -> None:
    async with aiohttp.ClientSession() as session:
        await session.post(host, json={"episode": episode})  # expect: PEN017


async def ping_quietly(host: str, episode: Id[Episode]) -> bool:
    try:
        await ping(host, episode)
    except Exception:
        return False
    return True


@app.internal_action
async def download(ctx: ActionCtx, episode: Id[Episode]) -> bytes:
    async with httpx.AsyncClient() as client:
        return (await client.get(f"{HOSTS[0]}/{episode}")).content


@app.internal_action(runtime="process")
def recognize(ctx: ps.sync.ActionCtx, sound: bytes) -> str:
    return sound.hex()


@app.internal_action
async def transcribe(ctx: ActionCtx, episode: Id[Episode]) -> str:
    sound = await ctx.run_action(download, episode)  # expect: PEN010
    return await ctx.run_action(recognize, sound)


@app.internal_action
async def transcribe_directly(ctx: ActionCtx, episode: Id[Episode]) -> str:
    return await ctx.run_action(recognize, await download(ctx, episode))


@app.internal_action
async def submit(ctx: ActionCtx, episode: Id[Episode]) -> None:
    async with httpx.AsyncClient(base_url=HOSTS[1]) as client:
        await client.post("/transcripts", json={"episode": episode})  # expect: PEN017


@app.internal_action
async def submit_safely(ctx: ActionCtx, episode: Id[Episode]) -> None:
    headers = {"Idempotency-Key": f"transcript-{episode}", "Accept": "application/json"}
    async with httpx.AsyncClient(base_url=HOSTS[1], headers=headers) as client:
        await client.post("/transcripts", json={"episode": episode})


@app.internal_mutation
async def add_transcript(ctx: MutationCtx, episode: Id[Episode]) -> None:
    await transcripts.enqueue(ctx, submit, episode)
    await transcripts.enqueue(ctx, submit_safely, episode)
    await mails.enqueue(ctx, transcribe, episode)


@app.internal_mutation
async def done(ctx: MutationCtx, work_id: ps.WorkId, result: ps.WorkResult[None], context: dict) -> None:
    log.info("done: %s", context)


@app.internal_mutation
async def mail_all(ctx: MutationCtx, show: Id[Show]) -> None:
    rows = [one async for one in ctx.db.query(Subscription).with_index(Subscription.by_show, show=show)]
    context = {"show": show, "to": [one.listener for one in rows]}
    pool = mails.with_options(on_complete=done, context=context)  # expect: PEN020
    await pool.enqueue_batch(ctx, mail, [{"subscription": one.id} for one in rows])
    small = mails.with_options(on_complete=done, context={"show": show, "count": len(rows)})
    await small.enqueue(ctx, mail, rows[0].id)


@app.internal_action
async def mail(ctx: ActionCtx, subscription: Id[Subscription]) -> None:
    log.info("mailed %s", subscription)


@app.internal_action
async def refresh(ctx: ActionCtx, show: Id[Show]) -> None:
    newest = await ctx.run_query(latest, show)  # expect: PEN008
    await ctx.run_mutation(count, newest.id)  # expect: PEN011


@app.internal_action
async def import_feed(ctx: ActionCtx, show: Id[Show]) -> None:
    episodes = await ctx.run_query(known_urls, show)
    async with httpx.AsyncClient() as client:
        for host in HOSTS:
            await client.get(f"{host}/feed")
    await ctx.run_mutation(count_all, show)
    log.info("imported %d", len(episodes))
    await mails.enqueue(ctx, mail_everyone, show)  # expect: PEN016


@app.internal_action
async def import_then_tell(ctx: ActionCtx, show: Id[Show]) -> None:
    await ctx.run_mutation(count_all, show)
    await ctx.outbox.send("imports", {"show": show}, key=show)  # expect: PEN016


@app.internal_action
async def import_and_fetch(ctx: ActionCtx, show: Id[Show]) -> None:
    await ctx.run_mutation(count_all, show)
    answer = httpx.get(f"{HOSTS[0]}/status")  # expect: PEN022
    if answer.status_code == 200:
        await mails.enqueue(ctx, mail_everyone, show)


@app.internal_action
async def mail_everyone(ctx: ActionCtx, show: Id[Show]) -> None:
    await ctx.run_mutation(mail_all, show)


@app.internal_query
async def known_urls(ctx: ps.QueryCtx, show: Id[Show]) -> list[str]:
    return [one.url for one in await published(ctx, show)]


@app.internal_mutation
async def count_all(ctx: MutationCtx, show: Id[Show]) -> None:
    await asyncio.gather(*(count(ctx, one.id) for one in await published(ctx, show)))


@app.internal_mutation
async def move_pages(ctx: MutationCtx, cursor: str | None = None) -> str | None:
    page = await ctx.db.query(Episode).paginate(cursor=cursor, num_items=200)
    for one in page.page:
        await ctx.db.patch(Episode, one.id, plays=0)
    return None if page.is_done else page.continue_cursor


@app.internal_action
async def move_everything(ctx: ActionCtx) -> None:
    cursor = await ctx.run_mutation(move_pages)
    while cursor:
        cursor = await ctx.run_mutation(move_pages, cursor)


@app.internal_action
async def count_each(ctx: ActionCtx, episodes: list[Id[Episode]]) -> None:
    await asyncio.gather(*[ctx.run_mutation(count, one) for one in episodes])  # expect: PEN012


@app.cron("0 4 * * *", timezone="Europe/Prague")
@app.mutation(access=ps.signed_in)
async def nightly(ctx: MutationCtx) -> None:  # expect: PEN008
    await ctx.auth.require()


@app.cron(timedelta(hours=1), name="hosts", retry=Retry(max_attempts=3))
async def tell_hosts(ctx: ActionCtx) -> None:
    for host in HOSTS:
        httpx.post(host, json={"hello": True})  # expect: PEN017, PEN022


@app.cron(timedelta(hours=1), name="once")
async def tell_hosts_once(ctx: ActionCtx) -> None:
    for host in HOSTS:
        httpx.post(host, json={"hello": True})  # expect: PEN022


@app.reactive_task(Episode, filter=lambda e: e.state == "public", watch=("title",))
async def announce(ctx: TaskCtx[Episode]) -> None:
    episode = await ctx.get_document()
    await ping_bare(HOSTS[0], episode.id)


@app.reactive_task(Episode, filter=lambda e: e.state == "public", name="with a key")
async def announce_with_key(ctx: TaskCtx[Episode]) -> None:
    episode = await ctx.get_document()
    await ping(HOSTS[0], episode.id, key=f"{episode.id}-{episode.title}")


@app.outbox(Episode, on=("update",))
async def to_partner(ctx: ActionCtx, episode: Episode) -> None:
    with suppress(Exception):  # expect: PEN019
        await ping(HOSTS[1], episode.id)


@app.outbox(Episode, on=("delete",), name="deletes")
async def to_partner_deletes(ctx: ActionCtx, episode: Episode) -> None:
    with suppress(FileNotFoundError):
        await ping(HOSTS[1], episode.id)


@app.outbox(Show)
async def to_search(ctx: ActionCtx, show: Show) -> None:
    try:
        await ping(HOSTS[1], show.id)
    except BaseException as error:  # expect: PEN019
        log.error("lost %s: %s", show.id, error)


@app.outbox(Show, name="checked")
async def to_search_checked(ctx: ActionCtx, show: Show) -> None:
    if not await ping_quietly(HOSTS[1], show.id):
        raise ConnectionError(show.id)


@app.mutation(access=ps.signed_in)
async def start_nightly(ctx: MutationCtx, slug: str) -> None:
    await app.crons.create(ctx, slug, ps.daily(slug, hour=3), nightly)  # expect: PEN008
    await ctx.scheduler.run_after(timedelta(0), count_all, slug)
    ctx.scheduler.run_after(timedelta(minutes=5), studio.count, slug)  # expect: PEN001


@app.action(access=ps.signed_in)
async def create_shows(ctx: ActionCtx, slugs: list[str]) -> None:
    for slug in slugs:
        await ctx.run_mutation(new_show, slug, slug)  # expect: PEN008, PEN012
