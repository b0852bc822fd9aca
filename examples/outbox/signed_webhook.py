"""Bookings are told to a webhook, in order and signed, in the way of the Standard Webhooks specification.

What the receiver cannot take now is tried again; if it asks to be left alone, it is; what it will never take halts the
outbox until somebody looks. Copy `Webhook` and `tell`; webhook_receiver.py is the other end. Run it with ``python
signed_webhook.py``, on a SQLite file of its own, or on an empty database that DATABASE_URL names. It needs httpx: ``pip
install 'penstock-backend[client]'``; and loopback.py and webhook_receiver.py beside it.
"""

import asyncio
import base64
import hmac
import json
import os
import tempfile
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import httpx
from loopback import served
from webhook_receiver import Receiver

from penstock import ActionCtx, App, Message, MutationCtx, NonRetryableError, Retry, Snooze, Table, public

BOOKINGS = 40
NEVER = {400, 405, 410, 413, 415, 422}  # answers that the same event will get each time
PATIENCE = Retry(max_attempts=10, initial_backoff=0.1, max_backoff=60)
AT_MOST = timedelta(seconds=20)  # until an attempt counts as failed
SHORTEST_PAUSE, LONGEST_PAUSE = timedelta(seconds=1), timedelta(hours=1)  # whatever the receiver asks for

app = App()


class Booking(Table):
    customer: str
    seats: int


@app.mutation(access=public)
async def book(ctx: MutationCtx, customer: str, seats: int) -> None:
    await ctx.db.insert(Booking(customer=customer, seats=seats))


class Webhook:
    """Where events are told, and the secret that both ends know: ``whsec_`` and at least 24 random bytes in base64."""

    def __init__(self, url: str, secret: str) -> None:
        self.url, self.secret = url, secret
        self.client = httpx.AsyncClient(timeout=15)  # one for the process; it keeps connections, and opens new ones

    async def post(self, message: str, body: bytes, now: datetime) -> httpx.Response:
        """Tell an event; the answer."""
        if not (key := base64.b64decode(self.secret.removeprefix("whsec_"))):
            raise ValueError("There is no secret to sign with. Set WEBHOOK_SECRET.")
        timestamp = str(int(now.timestamp()))  # of this attempt, so that what is old can be refused
        digest = hmac.digest(key, f"{message}.{timestamp}.".encode() + body, "sha256")
        headers = {
            "content-type": "application/cloudevents+json",
            "idempotency-key": message,
            "webhook-id": message,
            "webhook-timestamp": timestamp,
            "webhook-signature": "v1," + base64.b64encode(digest).decode(),
        }
        return await self.client.post(self.url, content=body, headers=headers)


webhook = Webhook(os.environ.get("WEBHOOK_URL", ""), os.environ.get("WEBHOOK_SECRET", ""))


@app.outbox(Booking, name="booking-webhook", retry=PATIENCE, timeout=AT_MOST)
async def tell(ctx: ActionCtx, message: Message[Booking]) -> None:
    event = message.cloud_event(source="https://shop.example/bookings") | {"fence": str(message.fence)}
    answer = await webhook.post(message.id, json.dumps(event).encode(), ctx.now())
    if answer.status_code in {429, 503} and (pause := pause_of(answer, ctx.now())) is not None:
        raise Snooze(pause, reason=f"the webhook answers {answer.status_code}")
    if answer.status_code in NEVER:
        raise NonRetryableError(f"The webhook answers {answer.status_code}: {answer.text[:500]}")
    answer.raise_for_status()


def pause_of(answer: httpx.Response, now: datetime) -> timedelta | None:
    """How long the receiver asks to be left alone, in seconds or until a date; None if it does not say."""
    asked = answer.headers.get("retry-after", "")
    try:
        if asked.isdecimal():
            pause = timedelta(seconds=min(int(asked), 10**6))
        else:
            until = parsedate_to_datetime(asked)
            pause = until.replace(tzinfo=until.tzinfo or UTC) - now
    except ValueError:
        return None
    return min(max(pause, SHORTEST_PAUSE), LONGEST_PAUSE)


async def main() -> None:
    webhook.secret = "whsec_" + base64.b64encode(os.urandom(32)).decode()
    receiver = Receiver(webhook.secret, fails_every=9, pauses_at=13)
    with tempfile.TemporaryDirectory() as folder:
        database = os.environ.get("DATABASE_URL") or f"sqlite:///{folder}/signed_webhook.db"
        async with (
            webhook.client,
            served("/hooks", receiver.receive) as webhook.url,
            app.open(database, services=["relay"]) as backend,
        ):
            for number in range(BOOKINGS):
                await backend.run_mutation(book, f"customer {number % 4}", number)
            async with asyncio.timeout(60):
                while len(receiver.events) < BOOKINGS:
                    await asyncio.sleep(0.02)
    seats = [event["data"]["seats"] for event in receiver.events.values()]
    print(f"{len(seats)} events were told, each kept once; {receiver.again} came again.")
    print("They came in the order of the bookings." if seats == sorted(seats) else "They came out of order.")


if __name__ == "__main__":
    asyncio.run(main())
