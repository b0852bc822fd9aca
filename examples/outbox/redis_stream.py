"""Bookings go into a stream of Redis, each once, in the order of the bookings.

A script adds a batch, and writes down beside the stream which ids it has added, in one step. So what is handed over
again is left out, for a day. It refuses a process that was suspended while another one took over. Copy `ADD` and
`to_stream`. Run it with ``python redis_stream.py``, with a Redis on this machine or REDIS_URL, on a SQLite file of its
own, or on an empty database that DATABASE_URL names. It needs ``pip install redis``.
"""

import asyncio
import json
import os
import tempfile
from datetime import timedelta

from redis.asyncio import Redis

from penstock import ActionCtx, App, Message, MutationCtx, Retry, Table, public

BOOKINGS = 40
STREAM = "penstock-bookings"
ADDED = "{penstock-bookings}:added"  # the braces put it beside the stream in a cluster
FENCE = "{penstock-bookings}:fence"
KNOWN_FOR = 86_400  # seconds
PATIENCE = Retry(max_attempts=10, initial_backoff=0.1, max_backoff=10)
AT_MOST = timedelta(seconds=10)  # until an attempt counts as failed

# First the entry and then its id: Redis undoes nothing, so if the entry is refused its id must not be known.
ADD = """
if tonumber(redis.call('GET', KEYS[3]) or 0) > tonumber(ARGV[2]) then
    return redis.error_reply('FENCED another process has taken over')
end
redis.call('SET', KEYS[3], ARGV[2])
local now = tonumber(redis.call('TIME')[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - ARGV[1])
for n = 3, #ARGV, 2 do
    if not redis.call('ZSCORE', KEYS[2], ARGV[n]) then
        redis.call('XADD', KEYS[1], '*', 'id', ARGV[n], 'event', ARGV[n + 1])
        redis.call('ZADD', KEYS[2], now, ARGV[n])
    end
end
"""

app = App()
# One pool of connections for the process, which opens new ones when they are lost.
redis = Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"), decode_responses=True)
add = redis.register_script(ADD)


class Booking(Table):
    customer: str
    seats: int


@app.mutation(access=public)
async def book(ctx: MutationCtx, customer: str, seats: int) -> None:
    await ctx.db.insert(Booking(customer=customer, seats=seats))


@app.outbox(Booking, name="booking-stream", batch=100, retry=PATIENCE, timeout=AT_MOST)
async def to_stream(ctx: ActionCtx, messages: list[Message[Booking]]) -> None:
    entries: list[str] = []
    for message in messages:
        entries += [message.id, json.dumps(message.cloud_event(source="https://shop.example/bookings"))]
    await add(keys=[STREAM, ADDED, FENCE], args=[KNOWN_FOR, messages[0].fence, *entries])


async def main() -> None:
    await redis.delete(STREAM, ADDED, FENCE)  # the example begins anew
    with tempfile.TemporaryDirectory() as folder:
        database = os.environ.get("DATABASE_URL") or f"sqlite:///{folder}/redis_stream.db"
        async with redis, app.open(database, services=["relay"]) as backend:
            for number in range(BOOKINGS):
                await backend.run_mutation(book, f"customer {number % 4}", number)
            async with asyncio.timeout(60):
                while await redis.xlen(STREAM) < BOOKINGS:
                    await asyncio.sleep(0.02)
            events = [json.loads(entry["event"]) for _, entry in await redis.xrange(STREAM) or [] if entry]
    seats = [event["data"]["seats"] for event in events]
    print(f"{len(seats)} bookings are in the stream, {len({event['id'] for event in events})} different ones.")
    print("They are in the order of the bookings." if seats == sorted(seats) else "They are out of order.")


if __name__ == "__main__":
    asyncio.run(main())
