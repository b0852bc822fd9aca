"""Bookings are confirmed by SMS, in the order in which they were made, though the gateway is down for a while.

The outbox stops at the first message that fails, tries it again, and goes on where it stopped. The gateway knows each
message by its idempotency key, so a message that is handed over twice is one SMS. Run it with ``python sms.py``, on a
SQLite file of its own, or on an empty database that DATABASE_URL names. It needs httpx: ``pip install
'penstock-backend[client]'``; and gateway.py and loopback.py beside it.
"""

import asyncio
import os
import tempfile
from datetime import UTC, datetime, timedelta

import httpx
from gateway import Gateway

from penstock import ActionCtx, App, Id, Message, MutationCtx, Retry, Table, public

BOOKINGS, DOWN_AFTER, REFUSED = 40, 10, 3

app = App()


class Booking(Table):
    customer: str
    phone: str
    starts_at: datetime


gateway = Gateway(down_after=DOWN_AFTER, refuses=REFUSED)
clients: list[httpx.AsyncClient] = []


@app.mutation(access=public)
async def book(ctx: MutationCtx, customer: str, phone: str, starts_at: datetime) -> Id[Booking]:
    return await ctx.db.insert(Booking(customer=customer, phone=phone, starts_at=starts_at))


@app.outbox(Booking, name="booking-sms", retry=Retry.fixed(0.05, max_attempts=5))
async def confirm(ctx: ActionCtx, message: Message[Booking]) -> None:
    if (booking := message.row) is None:
        return
    answer = await clients[0].post(
        "/sms",
        headers={"idempotency-key": message.id},
        json={"to": booking.phone, "text": f"{booking.customer}: {booking.starts_at:%d %b %H:%M}"},
    )
    answer.raise_for_status()


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = os.environ.get("DATABASE_URL") or f"sqlite:///{folder}/sms.db"
        async with (
            gateway.served() as client,
            app.open(database, services=["relay"]) as backend,
        ):
            clients.append(client)
            when = datetime(2030, 5, 1, 9, tzinfo=UTC)
            names = [f"customer {number}" for number in range(BOOKINGS)]
            for number, name in enumerate(names):
                await backend.run_mutation(book, name, f"+420 {number}", when + timedelta(minutes=number))
            async with asyncio.timeout(60):
                while len(gateway.texts) < BOOKINGS:
                    await asyncio.sleep(0.02)
            sent = [text.partition(":")[0] for text in gateway.texts.values()]
            print(f"{len(sent)} SMS were sent, each once; {gateway.refused} calls were refused.")
            print("They came in the order of the bookings." if sent == names else "They came out of order.")


if __name__ == "__main__":
    asyncio.run(main())
