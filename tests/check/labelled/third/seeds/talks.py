"""Messages: internal functions, helpers, run_action, and pools."""

import asyncio
from typing import Any

import httpx

from penstock import (
    ActionCtx,
    App,
    ApplicationError,
    Canceled,
    Failed,
    Id,
    MutationCtx,
    QueryCtx,
    Retry,
    Success,
    Table,
    TaskCtx,
    WorkId,
    WorkResult,
    signed_in,
)

app = App()


class Talk(Table):
    summary: str = ""
    members: list[str]


class Failure(Table):
    kind: str
    body: str


class Counter(Table):
    count: int


class EmailLog(Table):
    user: str
    error: str | None


@app.mutation
async def send_message_spoofed(ctx: MutationCtx, body: str, author: str) -> None:  # expect: PEN006, PEN008
    await ctx.db.insert(Failure(kind=author, body=body))


app.cron("30 17 * * *", name="send daily reminder")(send_message_spoofed)


async def send_message_helper(ctx: MutationCtx, body: str, author: str) -> None:
    await ctx.db.insert(Failure(kind=author, body=body))


@app.mutation
async def send_message(ctx: MutationCtx, body: str) -> None:
    user = await ctx.auth.get_user_identity()
    if user is None:
        raise ApplicationError("Unauthorized")
    await send_message_helper(ctx, body, user.name or "Anonymous")


@app.internal_mutation
async def send_internal_message(ctx: MutationCtx, body: str, author: str) -> None:
    await send_message_helper(ctx, body, author)


app.cron("30 17 * * *", name="send daily message")(send_internal_message)


@app.query
async def get_current_user(ctx: QueryCtx) -> str:
    identity = await ctx.auth.get_user_identity()
    if identity is None:
        raise ApplicationError("Unauthorized")
    return identity.subject


@app.query
async def list_messages_bad(ctx: QueryCtx, talk: Id[Talk]) -> list[str]:
    user = await ctx.run_query(get_current_user)  # expect: PEN008, PEN009
    found = await ctx.db.get(Talk, talk)
    if found is None or user not in found.members:
        raise ApplicationError("Unauthorized")
    return found.members


async def ensure_has_access(ctx: QueryCtx, talk: Id[Talk]) -> Talk:
    user = await get_current_user(ctx)
    found = await ctx.db.get(Talk, talk)
    if found is None or user not in found.members:
        raise ApplicationError("Unauthorized")
    return found


@app.query
async def list_messages(ctx: QueryCtx, talk: Id[Talk]) -> list[str]:
    return (await ensure_has_access(ctx, talk)).members


@app.mutation
async def add_summary(ctx: MutationCtx, talk: Id[Talk], summary: str) -> None:
    await ensure_has_access(ctx, talk)
    await ctx.db.patch(Talk, talk, summary=summary)


@app.action(access=signed_in)
async def summarize_bad(ctx: ActionCtx, talk: Id[Talk]) -> None:
    messages = await ctx.run_query(list_messages, talk)  # expect: PEN008
    summary = await generate_summary(messages)
    await ctx.run_mutation(add_summary, talk, summary)  # expect: PEN008


async def generate_summary(messages: list[str]) -> str:
    async with httpx.AsyncClient() as client:
        return (await client.get("https://llm.example.com", params={"q": messages[0]})).text


@app.internal_query
async def messages_of(ctx: QueryCtx, talk: Id[Talk]) -> list[str]:
    return (await ensure_has_access(ctx, talk)).members


@app.internal_mutation
async def set_summary(ctx: MutationCtx, talk: Id[Talk], summary: str) -> None:
    await ctx.db.patch(Talk, talk, summary=summary)


@app.action(access=signed_in)
async def summarize(ctx: ActionCtx, talk: Id[Talk]) -> None:
    messages = await ctx.run_query(messages_of, talk)
    summary = await generate_summary(messages)
    await ctx.run_mutation(set_summary, talk, summary)


@app.internal_mutation
async def try_send_message(ctx: MutationCtx, body: str, author: str) -> None:
    try:
        await ctx.run_mutation(send_internal_message, body, author)
    except Exception as error:
        await ctx.db.insert(Failure(kind="MessageFailed", body=f"{body}: {error}"))


@app.internal_mutation
async def send_message_nested(ctx: MutationCtx, body: str, author: str) -> None:
    await ctx.run_mutation(send_internal_message, body, author)  # expect: PEN009


@app.internal_action
async def scrape_single_page(ctx: ActionCtx, url: str) -> None:
    async with httpx.AsyncClient() as client:
        page = await client.get(url)
    await ctx.run_mutation(add_page, url, page.text)


async def scrape_page(ctx: ActionCtx, url: str) -> None:
    async with httpx.AsyncClient() as client:
        page = await client.get(url)
    await ctx.run_mutation(add_page, url, page.text)


@app.internal_mutation
async def add_page(ctx: MutationCtx, url: str, text: str) -> None:
    await ctx.db.insert(Failure(kind=url, body=text))


@app.action(access=signed_in)
async def scrape_website_bad(ctx: ActionCtx, site_map_url: str) -> None:
    async with httpx.AsyncClient() as client:
        pages = (await client.get(site_map_url)).json()
    await asyncio.gather(
        *[
            ctx.run_action(scrape_single_page, url=page)  # expect: PEN010
            for page in pages
        ]
    )


@app.action(access=signed_in)
async def scrape_website(ctx: ActionCtx, site_map_url: str) -> None:
    async with httpx.AsyncClient() as client:
        pages = (await client.get(site_map_url)).json()
    await asyncio.gather(*(scrape_page(ctx, page) for page in pages))


email_pool = app.workpool(
    "email",
    max_parallelism=10,
    retry_actions_by_default=True,
    default_retry=Retry(max_attempts=3, initial_backoff=1, base=2),
)
scrape_pool = app.workpool("scrape", max_parallelism=5)
counter_pool = app.workpool("counter", max_parallelism=1)


@app.mutation(access=signed_in)
async def user_sign_up(ctx: MutationCtx, email: str) -> None:
    await email_pool.enqueue(ctx, send_email_verification, email)


@app.internal_action
async def send_email_verification(ctx: ActionCtx, email: str) -> None:
    async with httpx.AsyncClient() as client:
        await client.post("https://mail.example.com", json={"to": email})  # expect: PEN017


@app.internal_action
async def send_email_unretried(ctx: ActionCtx, email: str) -> None:
    async with httpx.AsyncClient() as client:
        await client.post("https://mail.example.com", json={"to": email})


@app.internal_mutation
async def download_latest_weather(ctx: MutationCtx, cities: list[str]) -> None:
    for city in cities:
        await scrape_pool.enqueue(ctx, scrape_single_page, city)


@app.internal_mutation
async def send_special_email(ctx: MutationCtx, user: str) -> WorkId:
    pool = email_pool.with_options(on_complete=email_sent, context={"user": user}, retry=False)
    return await pool.enqueue(ctx, send_email_unretried, user)


@app.internal_mutation
async def email_sent(ctx: MutationCtx, work_id: WorkId, result: WorkResult[None], context: dict[str, Any]) -> None:
    match result:
        case Canceled():
            return
        case Success():
            error = None
        case Failed(error=error):
            pass
    ctx.db.insert(EmailLog(user=context["user"], error=str(error)))  # expect: PEN001


@app.internal_action
async def do_something_and_count(ctx: ActionCtx) -> None:
    async with httpx.AsyncClient() as client:
        await client.get("https://example.com")
    await counter_pool.enqueue(ctx, increment)


@app.internal_mutation
async def increment(ctx: MutationCtx) -> None:
    row = await ctx.db.query(Counter).unique()
    if row is not None:
        await ctx.db.patch(Counter, row.id, count=row.count + 1)


class Appointment(Table):
    phone: str
    status: str = "new"


@app.mutation(access=signed_in)
async def book_directly(ctx: MutationCtx, phone: str) -> None:
    await ctx.db.insert(Appointment(phone=phone))
    async with httpx.AsyncClient() as client:  # expect: PEN015
        await client.post("https://sms.example.com", json={"to": phone})


@app.mutation(access=signed_in)
async def book(ctx: MutationCtx, phone: str) -> None:
    await ctx.db.insert(Appointment(phone=phone))


@app.outbox(Appointment)
async def booking_sms(ctx: ActionCtx, appointment: Appointment) -> None:
    async with httpx.AsyncClient() as client:
        await client.post("https://sms.example.com", json={"to": appointment.phone})  # expect: PEN017


@app.outbox(Appointment, name="log and go on")
async def booking_sms_lost(ctx: ActionCtx, appointment: Appointment) -> None:
    try:
        async with httpx.AsyncClient(headers={"Idempotency-Key": appointment.id}) as client:
            await client.post("https://sms.example.com", json={"to": appointment.phone})
    except Exception as error:  # expect: PEN019
        print("not sent", error)


@app.reactive_task(Appointment, filter=lambda a: a.status == "paid", watch=("status",))
async def charge_card(ctx: TaskCtx[Appointment]) -> None:
    appointment = await ctx.get_document()
    async with httpx.AsyncClient() as client:
        await client.post("https://bank.example.com", json={"phone": appointment.phone})  # expect: PEN017


@app.reactive_task(Appointment, name="charged once")
async def charge_card_once(ctx: TaskCtx[Appointment]) -> None:
    appointment = await ctx.get_document()
    async with httpx.AsyncClient() as client:
        await client.post("https://bank.example.com", headers={"Idempotency-Key": appointment.id})
