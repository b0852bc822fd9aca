"""The sink for a Redis stream: relay and server are killed, what comes again is left out, what is refused is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis_stream
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from stage import brokers
from stage.brokers import Broker, running
from stage.programs import run_example
from stage.sinks import ALL, Event, Sink


@pytest.fixture(scope="module")
def server() -> Iterator[Broker]:
    """A Redis."""
    with running(brokers.Redis) as own:
        yield own


@pytest.fixture
def broker(server: Broker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """The same, known to the example."""
    asyncio.run(server.revive())
    monkeypatch.setenv("REDIS_URL", server.url)
    return server


@asynccontextmanager
async def connected(broker: Broker) -> AsyncIterator[Any]:
    """A client of it."""
    async with Redis.from_url(broker.url, decode_responses=True) as client:
        yield client


async def arrived(broker: Broker) -> list[Event]:
    """What is in the stream."""
    async with connected(broker) as client:
        return [Event.parse(entry["event"]) for _, entry in await client.xrange(redis_stream.STREAM)]


async def forget(broker: Broker) -> None:
    """Begin anew."""
    async with connected(broker) as client:
        await client.flushall()


def test_the_example_fills_a_stream(database_url: str, broker: Broker) -> None:
    said = run_example("outbox/redis_stream", database_url)
    assert "40 bookings are in the stream, 40 different ones." in said
    assert "They are in the order of the bookings." in said


async def test_each_booking_is_in_the_stream_once_though_relay_and_server_were_killed(
    database_url: str, broker: Broker
) -> None:
    await forget(broker)
    events = await Sink("redis_stream", broker, lambda: arrived(broker)).suffer(database_url)
    assert [event.number for event in events] == list(range(ALL))


async def test_a_booking_that_redis_refused_does_not_count_as_added(broker: Broker) -> None:
    await forget(broker)
    keys = [redis_stream.STREAM, redis_stream.ADDED, redis_stream.FENCE]
    entry = [redis_stream.KNOWN_FOR, 1, "an id", "an event"]
    async with connected(broker) as client:
        add = client.register_script(redis_stream.ADD)
        await client.set(redis_stream.STREAM, "no stream")
        with pytest.raises(ResponseError):
            await add(keys=keys, args=entry)
        await client.delete(redis_stream.STREAM)
        for _ in range(2):
            await add(keys=keys, args=entry)
        assert [entry for _, entry in await client.xrange(redis_stream.STREAM)] == [
            {"id": "an id", "event": "an event"}
        ]


async def test_ids_are_forgotten_after_their_time(broker: Broker) -> None:
    await forget(broker)
    keys, already = [redis_stream.STREAM, redis_stream.ADDED, redis_stream.FENCE], -60
    async with connected(broker) as client:
        add = client.register_script(redis_stream.ADD)
        for known_for in (redis_stream.KNOWN_FOR, redis_stream.KNOWN_FOR, already):
            await add(keys=keys, args=[known_for, 1, "an id", "an event"])
        assert await client.xlen(redis_stream.STREAM) == 2
        assert await client.zrange(redis_stream.ADDED, 0, -1) == ["an id"]


async def test_a_process_that_was_overtaken_adds_nothing(broker: Broker) -> None:
    await forget(broker)
    keys = [redis_stream.STREAM, redis_stream.ADDED, redis_stream.FENCE]
    async with connected(broker) as client:
        add = client.register_script(redis_stream.ADD)
        for fence, message in ((7, "a"), (7, "b"), (8, "c")):
            await add(keys=keys, args=[redis_stream.KNOWN_FOR, fence, message, "an event"])
        with pytest.raises(ResponseError, match="FENCED"):
            await add(keys=keys, args=[redis_stream.KNOWN_FOR, 7, "d", "an event"])
        assert await client.zrange(redis_stream.ADDED, 0, -1) == ["a", "b", "c"]
