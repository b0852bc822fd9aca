"""The sink for RabbitMQ: relay and server are killed, what comes again has the same id, each customer has an order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

import aio_pika
import pytest
import rabbitmq
from aio_pika.abc import AbstractChannel
from stage import brokers
from stage.brokers import Broker, running
from stage.programs import run_example
from stage.sinks import ALL, Event, Sink, check_each
from stage.waits import until

from penstock.testing import TestApp


@pytest.fixture(scope="module")
def server() -> Iterator[Broker]:
    """A RabbitMQ."""
    with running(brokers.RabbitMQ) as own:
        yield own


@pytest.fixture
def broker(server: Broker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """The same, known to the example."""
    asyncio.run(server.revive())
    monkeypatch.setenv("AMQP_URL", server.url)
    monkeypatch.setattr(rabbitmq, "publisher", rabbitmq.Publisher(server.url))
    return server


@asynccontextmanager
async def connected(broker: Broker) -> AsyncIterator[AbstractChannel]:
    """A client of it."""
    async with await aio_pika.connect(broker.url) as connection:
        yield await connection.channel()


async def keep_queue(broker: Broker) -> None:
    """Make the queue, and wait until its name is on the disk: RabbitMQ before 4.0 writes that after it has answered."""
    async with connected(broker) as channel:
        await (await rabbitmq.queue_of(channel)).purge()

    async def is_kept() -> bool:
        return any(rabbitmq.QUEUE.encode() in file.read_bytes() for file in broker.folder.rglob("names.dets"))

    await until(is_kept)


class Consumer:
    """Takes what is in the queue, and remembers all of it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._taken: list[Event] = []

    async def taken(self) -> list[Event]:
        async with connected(self._broker) as channel:
            queue = await rabbitmq.queue_of(channel)
            while count := (await queue.declare()).message_count:
                async with queue.iterator() as messages:
                    async for message in messages:
                        event = Event.parse(message.body)
                        assert message.message_id == event.id
                        self._taken.append(event)
                        await message.ack()
                        if not (count := count - 1):
                            break
        return self._taken


def test_the_example_fills_a_queue(database_url: str, broker: Broker) -> None:
    said = run_example("outbox/rabbitmq", database_url)
    assert "40 bookings of 4 customers came, each kept once." in said
    assert "Those of each came in their order." in said


async def test_each_booking_comes_at_least_once_though_relay_and_server_were_killed(
    database_url: str, broker: Broker
) -> None:
    await keep_queue(broker)
    events = await Sink("rabbitmq", broker, Consumer(broker).taken).suffer(database_url)
    check_each(events)
    assert len(events) > ALL, "RabbitMQ keeps what comes again; who takes it knows it by its id"


async def test_what_reaches_no_queue_is_not_delivered(database_url: str, broker: Broker) -> None:
    async with TestApp(rabbitmq.app, database_url) as test, connected(broker) as channel, AsyncExitStack() as stack:
        stack.push_async_callback(rabbitmq.publisher.close)
        await (await rabbitmq.queue_of(channel)).purge()
        await test.run_mutation(rabbitmq.book, "ada", 0)
        await test.relay.drain()
        await channel.queue_delete(rabbitmq.QUEUE)
        await test.run_mutation(rabbitmq.book, "ada", 1)
        await test.relay.drain()
        (outbox,) = await rabbitmq.app.outboxes.list(test)
        assert (outbox.delivered, outbox.messages) == (1, 1)
        assert "NO_ROUTE" in (outbox.error or "")
        await rabbitmq.queue_of(channel)
        test.clock.advance(timedelta(seconds=1))
        await test.relay.drain()
        assert [event.number for event in await Consumer(broker).taken()] == [1]
