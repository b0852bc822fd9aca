"""Bookings whose customers get an SMS.

A booking and the sending of its confirmation are committed together. Sending is an action: it calls a provider over
HTTP, and if its process dies it is not run again, as nobody knows how far it came. So each attempt has a check: a
mutation, scheduled with it. Mutations run exactly once, whatever dies, and the check of a lost attempt makes another.
The provider knows a message by its id, and takes it once however often it is sent.
"""

from __future__ import annotations

import os
import re
import ssl
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

import httpx
from pydantic import AfterValidator, BaseModel, StringConstraints

from penstock import ActionCtx, App, ApplicationError, Id, Index, JobId, MutationCtx, Page, QueryCtx, Table, gte, public

PROVIDER = os.environ.get("SMS_PROVIDER", "http://127.0.0.1:8025")
LOST_AFTER = timedelta(seconds=float(os.environ.get("SMS_LOST_AFTER", "60")))
FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=0.5), timedelta(minutes=5)
REMIND_BEFORE = timedelta(days=1)
CERTIFICATES = ssl.create_default_context()

app = App()


# ----- tables


class Booking(Table):
    source: str  # who sent it: a web shop, a phone desk, the name of an import
    request: str  # the source's own key
    customer: str
    phone: str
    starts_at: datetime
    status: Literal["booked", "confirmed", "cancelled"] = "booked"  # confirmed: the provider took the confirmation
    reminder: JobId | None = None

    by_request = Index("source", "request", unique=True)
    by_customer = Index("customer", "starts_at")
    by_status = Index("status")


MessageState = Literal["sending", "retrying", "accepted", "refused"]


class Message(Table):
    booking: Id[Booking]
    text: str
    state: MessageState = "sending"
    attempt: int = 0
    check_job: JobId | None = None  # looks after the attempt
    receipt: str | None = None
    error: str | None = None

    by_booking = Index("booking")
    by_state = Index("state")


UNSENT = {"sending", "retrying"}


# ----- booking


def normal_phone(text: str) -> str:
    """A phone number in its one form: +420601234567."""
    number = re.sub(r"[\s()./-]", "", text)
    number = "+" + number[2:] if number.startswith("00") else number
    if not re.fullmatch(r"\+[1-9]\d{7,14}", number):
        raise ValueError(f"{text!r} is no phone number; write it like +420 601 234 567")
    return number


Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=80)]
Phone = Annotated[str, AfterValidator(normal_phone)]


@app.mutation(access=public)
async def book(
    ctx: MutationCtx, source: str, request: str, customer: Name, phone: Phone, starts_at: datetime
) -> Id[Booking]:
    """Book, and let the customer know. Safe to repeat: the same request gives the same booking."""
    known = await ctx.db.query(Booking).with_index(Booking.by_request, source=source, request=request).unique()
    if known is not None:
        if (known.customer, known.phone, known.starts_at) != (customer, phone, starts_at):
            raise ApplicationError(f"Request {request} was used for another booking.")
        return known.id
    if starts_at <= ctx.now():
        raise ApplicationError(f"{starts_at:%d %B %Y, %H:%M} is over.")
    booking_id = await ctx.db.insert(
        Booking(source=source, request=request, customer=customer, phone=phone, starts_at=starts_at)
    )
    when = f"{starts_at.day} {starts_at:%B, %H:%M}"
    await notify(ctx, booking_id, f"Dear {customer}, your booking on {when} is confirmed.")
    if starts_at - ctx.now() > REMIND_BEFORE:
        remind_at, text = starts_at - REMIND_BEFORE, f"Dear {customer}, we see you tomorrow, {when}."
        reminder = await ctx.scheduler.run_at(remind_at, notify, booking_id, text)
        await ctx.db.patch(Booking, booking_id, reminder=reminder)
    return booking_id


@app.mutation(access=public)
async def cancel(ctx: MutationCtx, booking_id: Id[Booking]) -> None:
    """Cancel a booking and its reminder, and let the customer know. Safe to repeat."""
    booking = await ctx.db.get(Booking, booking_id)
    if booking is None:
        raise ApplicationError("There is no such booking.")
    if booking.status == "cancelled":
        return
    await ctx.db.patch(Booking, booking_id, status="cancelled")
    if booking.reminder is not None:
        await ctx.scheduler.cancel(booking.reminder)
    await notify(ctx, booking_id, f"Dear {booking.customer}, your booking is cancelled.")


# ----- sending


@app.internal_mutation
async def notify(ctx: MutationCtx, booking_id: Id[Booking], text: str) -> None:
    """Send an SMS to the customer of a booking."""
    message_id = await ctx.db.insert(Message(booking=booking_id, text=text))
    await start_attempt(ctx, message_id, 1, timedelta(0))


async def start_attempt(ctx: MutationCtx, message_id: Id[Message], attempt: int, wait: timedelta) -> None:
    await ctx.scheduler.run_after(wait, send, message_id, attempt)
    check = await ctx.scheduler.run_after(wait + LOST_AFTER, check_attempt, message_id, attempt)
    await ctx.db.patch(Message, message_id, attempt=attempt, check_job=check)


class Sms(BaseModel):
    phone: str
    text: str


@app.internal_query
async def sms_to_send(ctx: QueryCtx, message_id: Id[Message]) -> Sms | None:
    message = await ctx.db.get(Message, message_id)
    if message is None or message.state not in UNSENT:
        return None
    booking = await ctx.db.get(Booking, message.booking)
    return Sms(phone=booking.phone, text=message.text) if booking else None


@app.internal_action
async def send(ctx: ActionCtx, message_id: Id[Message], attempt: int) -> None:
    """One attempt to hand a message to the provider."""
    sms = await ctx.run_query(sms_to_send, message_id)
    if sms is None:
        return
    try:
        async with connect() as provider:
            answer = await provider.post("/sms", json=sms.model_dump(), headers={"Idempotency-Key": message_id})
    except httpx.HTTPError as error:
        await ctx.run_mutation(record_failure, message_id, attempt, f"{type(error).__name__}: {error}")
        return
    if answer.is_success:
        await ctx.run_mutation(record_accepted, message_id, answer.json()["receipt"])
    else:
        final = answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY  # it will never take this one
        await ctx.run_mutation(record_failure, message_id, attempt, f"{answer.status_code}: {answer.text}", final)


def connect() -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=PROVIDER, timeout=5, verify=CERTIFICATES)


@app.internal_mutation
async def record_accepted(ctx: MutationCtx, message_id: Id[Message], receipt: str) -> None:
    message = await ctx.db.get(Message, message_id)
    if message is None or message.state == "accepted":
        return
    await end_attempt(ctx, message, state="accepted", receipt=receipt)
    booking = await ctx.db.get(Booking, message.booking)
    if booking is not None and booking.status == "booked":
        await ctx.db.patch(Booking, booking.id, status="confirmed")


@app.internal_mutation
async def record_failure(
    ctx: MutationCtx, message_id: Id[Message], attempt: int, error: str, final: bool = False
) -> None:
    message = await ctx.db.get(Message, message_id)
    if message is None or message.state not in UNSENT or message.attempt != attempt:
        return
    await end_attempt(ctx, message, state="refused" if final else "retrying", error=error)
    if not final:
        wait = min(FIRST_WAIT * 2 ** min(attempt - 1, 20), LONGEST_WAIT)
        await start_attempt(ctx, message_id, attempt + 1, wait * ctx.random.uniform(0.5, 1.5))


@app.internal_mutation
async def check_attempt(ctx: MutationCtx, message_id: Id[Message], attempt: int) -> None:
    """Start another attempt if nothing was heard of this one."""
    message = await ctx.db.get(Message, message_id)
    if message is not None and message.state in UNSENT and message.attempt == attempt:
        await start_attempt(ctx, message_id, attempt + 1, timedelta(0))


async def end_attempt(ctx: MutationCtx, message: Message, **changes: Any) -> None:
    if message.check_job is not None:
        await ctx.scheduler.cancel(message.check_job)
    await ctx.db.patch(Message, message.id, check_job=None, **changes)


# ----- looking


@app.query(access=public)
async def upcoming(ctx: QueryCtx, customer: str) -> list[Booking]:
    """The next bookings of a customer."""
    bookings = ctx.db.query(Booking).with_index(Booking.by_customer, customer=customer, starts_at=gte(ctx.now()))
    return await bookings.take(20)


@app.query(access=public)
async def from_source(ctx: QueryCtx, source: str, cursor: str | None = None, num_items: int = 100) -> Page[Booking]:
    """Bookings of one source, page by page."""
    bookings = ctx.db.query(Booking).with_index(Booking.by_request, source=source)
    return await bookings.paginate(cursor=cursor, num_items=num_items)


@app.query(access=public)
async def messages(ctx: QueryCtx, booking_id: Id[Booking]) -> list[Message]:
    """What a customer was told about a booking."""
    return await ctx.db.query(Message).with_index(Message.by_booking, booking=booking_id).take(20)


@app.query(access=public)
async def messages_in(
    ctx: QueryCtx, state: MessageState, cursor: str | None = None, num_items: int = 100
) -> Page[Message]:
    """Messages in one state, page by page."""
    found = ctx.db.query(Message).with_index(Message.by_state, state=state)
    return await found.paginate(cursor=cursor, num_items=num_items)


class Summary(BaseModel):
    bookings: dict[str, int]
    messages: dict[str, int]


@app.query(access=public)
async def summary(ctx: QueryCtx) -> Summary:
    """How many bookings and messages are in each state."""
    return Summary(
        bookings=await ctx.db.query(Booking).with_index(Booking.by_status).group_by("status").count(),
        messages=await ctx.db.query(Message).with_index(Message.by_state).group_by("state").count(),
    )
