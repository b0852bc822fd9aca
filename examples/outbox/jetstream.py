"""Bookings go into a stream of NATS JetStream, each once, in the order of the bookings.

A batch is published at once. JetStream leaves out an id that it has seen within its window, and takes a message only
behind the one that comes before it in the batch: if one is refused, so are those after it. Copy `Stream` and
`to_jetstream`. Run it with ``python jetstream.py``, with a ``nats-server -js`` on this machine or NATS_URL, on a SQLite
file of its own, or on an empty database that DATABASE_URL names. It needs ``pip install nats-py``.
"""

import asyncio
import contextlib
import json
import os
import tempfile
from datetime import timedelta

import nats
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import Header
from nats.js.errors import NotFoundError

from penstock import ActionCtx, App, Message, MutationCtx, Retry, Table, public

BOOKINGS = 40
STREAM, SUBJECT = "penstock-bookings", "penstock.bookings"
KNOWN_FOR = 3600.0  # seconds; JetStream holds the ids in memory
PATIENCE = Retry(max_attempts=10, initial_backoff=0.1, max_backoff=10)
AT_MOST = timedelta(seconds=10)  # until an attempt counts as failed

app = App()


class Booking(Table):
    customer: str
    seats: int


@app.mutation(access=public)
async def book(ctx: MutationCtx, customer: str, seats: int) -> None:
    await ctx.db.insert(Booking(customer=customer, seats=seats))


class Stream:
    """One connection for the process, made when it is needed, and again when it was lost.

    The outbox tries again, so the client is not to: it would keep what it could not send, and send it later.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._client: Client | None = None
        self._connecting = asyncio.Lock()

    async def connected(self) -> JetStreamContext:
        async with self._connecting:
            if self._client is None or not self._client.is_connected:
                self._client = await nats.connect(
                    self.url, allow_reconnect=False, max_reconnect_attempts=1, reconnect_time_wait=0, connect_timeout=5
                )
            return self._client.jetstream()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


stream = Stream(os.environ.get("NATS_URL", "nats://127.0.0.1:4222"))


@app.outbox(Booking, name="booking-jetstream", batch=100, retry=PATIENCE, timeout=AT_MOST)
async def to_jetstream(ctx: ActionCtx, messages: list[Message[Booking]]) -> None:
    jetstream = await stream.connected()
    acks, before = [], ""  # publishing begins in the order of the calls, and none waits for the one before it
    for message in messages:
        event = message.cloud_event(source="https://shop.example/bookings")
        headers = {Header.MSG_ID: message.id, "Content-Type": "application/cloudevents+json"}
        if before:
            headers[Header.EXPECTED_LAST_MSG_ID] = before
        acks.append(jetstream.publish(SUBJECT, json.dumps(event).encode(), headers=headers))
        before = message.id
    await asyncio.gather(*acks)


async def set_up(jetstream: JetStreamContext) -> None:
    """Make the stream, as whoever looks after NATS does once."""
    await jetstream.add_stream(name=STREAM, subjects=[SUBJECT], duplicate_window=KNOWN_FOR)


async def main() -> None:
    jetstream = await stream.connected()
    with contextlib.suppress(NotFoundError):
        await jetstream.delete_stream(STREAM)  # the example begins anew
    await set_up(jetstream)
    with tempfile.TemporaryDirectory() as folder:
        database = os.environ.get("DATABASE_URL") or f"sqlite:///{folder}/jetstream.db"
        async with app.open(database, services=["relay"]) as backend:
            for number in range(BOOKINGS):
                await backend.run_mutation(book, f"customer {number % 4}", number)
            reader = await jetstream.subscribe(SUBJECT, ordered_consumer=True)
            events = [json.loads((await reader.next_msg(timeout=60)).data) for _ in range(BOOKINGS)]
        stored = (await jetstream.stream_info(STREAM)).state.messages
    await stream.close()
    seats = [event["data"]["seats"] for event in events]
    print(f"{stored} bookings are in the stream, {len({event['id'] for event in events})} different ones.")
    print("They are in the order of the bookings." if seats == sorted(seats) else "They are out of order.")


if __name__ == "__main__":
    asyncio.run(main())
