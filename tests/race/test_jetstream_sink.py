"""The sink for NATS JetStream: relay and server are killed, what comes again is left out, nothing passes another."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

import jetstream
import nats
import pytest
from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from nats.js.errors import NotFoundError
from stage import brokers
from stage.brokers import Broker, running
from stage.programs import run_example
from stage.sinks import ALL, Event, Sink

from penstock.testing import TestApp


@pytest.fixture(scope="module")
def server() -> Iterator[Broker]:
    """A NATS with JetStream."""
    with running(brokers.Nats) as own:
        yield own


@pytest.fixture
def broker(server: Broker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """The same, known to the example."""
    asyncio.run(server.revive())
    monkeypatch.setenv("NATS_URL", server.url)
    monkeypatch.setattr(jetstream, "stream", jetstream.Stream(server.url))
    return server


@asynccontextmanager
async def connected(broker: Broker) -> AsyncIterator[JetStreamContext]:
    """A client of it."""
    client = await nats.connect(broker.url, allow_reconnect=False)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def arrived(broker: Broker) -> list[Event]:
    """What is in the stream."""
    async with connected(broker) as client:
        count = (await client.stream_info(jetstream.STREAM)).state.messages
        found = [await client.get_msg(jetstream.STREAM, number) for number in range(1, count + 1)]
        return [Event.parse(message.data or b"") for message in found]


async def begin_anew(broker: Broker) -> None:
    """A stream with nothing in it."""
    async with connected(broker) as client:
        with contextlib.suppress(NotFoundError):
            await client.delete_stream(jetstream.STREAM)
        await jetstream.set_up(client)


def test_the_example_fills_a_stream(database_url: str, broker: Broker) -> None:
    said = run_example("outbox/jetstream", database_url)
    assert "40 bookings are in the stream, 40 different ones." in said
    assert "They are in the order of the bookings." in said


async def test_each_booking_is_in_the_stream_once_though_relay_and_server_were_killed(
    database_url: str, broker: Broker
) -> None:
    await begin_anew(broker)
    events = await Sink("jetstream", broker, lambda: arrived(broker)).suffer(database_url)
    assert [event.number for event in events] == list(range(ALL))


async def test_nothing_passes_what_jetstream_refuses(database_url: str, broker: Broker) -> None:
    await begin_anew(broker)
    plan = StreamConfig(name=jetstream.STREAM, subjects=[jetstream.SUBJECT], duplicate_window=jetstream.KNOWN_FOR)
    async with TestApp(jetstream.app, database_url) as test, connected(broker) as client, AsyncExitStack() as stack:
        stack.push_async_callback(jetstream.stream.close)
        await client.update_stream(plan, max_msg_size=1000)
        for number, customer in enumerate(["ada", "a long name " * 90, "bob"]):
            await test.run_mutation(jetstream.book, customer, number)
        await test.relay.drain()
        assert [event.number for event in await arrived(broker)] == [0]
        (outbox,) = await jetstream.app.outboxes.list(test)
        assert "message size exceeds" in (outbox.error or "")
        await client.update_stream(plan, max_msg_size=-1)
        test.clock.advance(timedelta(seconds=1))
        await test.relay.drain()
        assert [event.number for event in await arrived(broker)] == [0, 1, 2]
