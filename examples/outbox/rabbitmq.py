"""Bookings go into a queue of RabbitMQ, those of each customer in their order; who takes them keeps each once.

A message counts as handed over when RabbitMQ has confirmed it, which it does once it is on the disk. Bookings of many
customers are under way at once, of one customer one at a time: so if RabbitMQ refuses one, none goes past it. Copy
`Publisher` and `to_queue`. Run it with ``python rabbitmq.py``, with a RabbitMQ on this machine or AMQP_URL, on a SQLite
file of its own, or on an empty database that DATABASE_URL names. It needs ``pip install aio-pika``.
"""

import asyncio
import json
import os
import tempfile
from datetime import timedelta
from typing import Any

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractQueue

from penstock import ActionCtx, App, Message, MutationCtx, Retry, Table, public

BOOKINGS = 40
QUEUE = "penstock-bookings"
PATIENCE = Retry(max_attempts=10, initial_backoff=0.1, max_backoff=10)
AT_MOST = timedelta(seconds=10)  # until an attempt counts as failed

app = App()


class Booking(Table):
    customer: str
    seats: int


@app.mutation(access=public)
async def book(ctx: MutationCtx, customer: str, seats: int) -> None:
    await ctx.db.insert(Booking(customer=customer, seats=seats))


class Publisher:
    """One channel for the process, opened when it is needed, and again when it was lost."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._opening = asyncio.Lock()

    async def channel(self) -> AbstractChannel:
        async with self._opening:
            if self._channel is None or self._channel.is_closed:
                await self.close()
                self._connection = await aio_pika.connect(self.url)
                channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
                await queue_of(channel)
                self._channel = channel
            return self._channel

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


async def queue_of(channel: AbstractChannel) -> AbstractQueue:
    """The queue, which is made if it is not there: kept on the disk, and read by one consumer at a time."""
    wanted: dict[str, Any] = {"x-queue-type": "quorum", "x-single-active-consumer": True}
    return await channel.declare_queue(QUEUE, durable=True, arguments=wanted)


publisher = Publisher(os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/"))


@app.outbox(Booking, name="booking-queue", partition_by="customer", parallelism=20, retry=PATIENCE, timeout=AT_MOST)
async def to_queue(ctx: ActionCtx, message: Message[Booking]) -> None:
    event = message.cloud_event(source="https://shop.example/bookings")
    sent = aio_pika.Message(
        json.dumps(event).encode(),
        message_id=message.id,
        content_type="application/cloudevents+json",
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
    )
    channel = await publisher.channel()
    await channel.default_exchange.publish(sent, QUEUE, mandatory=True)  # until it is confirmed


async def main() -> None:
    kept: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        database = os.environ.get("DATABASE_URL") or f"sqlite:///{folder}/rabbitmq.db"
        async with app.open(database, services=["relay"]) as backend:
            queue = await queue_of(await publisher.channel())
            await queue.purge()  # the example begins anew
            for number in range(BOOKINGS):
                await backend.run_mutation(book, f"customer {number % 4}", number)
            async with asyncio.timeout(60), queue.iterator() as messages:
                async for message in messages:
                    kept.setdefault(message.message_id or "", json.loads(message.body))  # what comes again is known
                    await message.ack()
                    if len(kept) == BOOKINGS:
                        break
    await publisher.close()
    of: dict[str, list[int]] = {}
    for event in kept.values():
        of.setdefault(event["data"]["customer"], []).append(event["data"]["seats"])
    in_order = all(seats == sorted(seats) for seats in of.values())
    print(f"{len(kept)} bookings of {len(of)} customers came, each kept once.")
    print("Those of each came in their order." if in_order else "Some came out of order.")


if __name__ == "__main__":
    asyncio.run(main())
