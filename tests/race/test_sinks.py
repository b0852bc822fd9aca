"""The examples of sinks: relay and server are killed, what comes again is left out or known, nothing passes another."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import aio_pika
import httpx
import jetstream
import nats
import pytest
import rabbitmq
import redis_stream
import signed_webhook
from aio_pika.abc import AbstractChannel
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from stage import servers as brokers
from stage.processes import run_example
from stage.servers import ALL, SECRET, Broker, Event, Sink, check_each, running
from stage.waits import until
from starlette.applications import Starlette
from starlette.routing import Route
from webhook_receiver import TOLERANCE, Receiver, verify

from penstock.clock import SystemClock
from penstock.testing import TestApp

SECOND = timedelta(seconds=1)


class Way:
    """An example, its server, and what is to be found there."""

    name: str
    kind: type[Broker]
    setting: str
    said = ("40 bookings are in the stream, 40 different ones.", "They are in the order of the bookings.")

    async def begin(self, broker: Broker) -> None:
        """Have nothing there."""

    async def arrived(self, broker: Broker) -> list[Event]:
        raise NotImplementedError

    def check(self, events: list[Event]) -> None:
        assert [event.number for event in events] == list(range(ALL)), "each once, and in order"


class JetStream(Way):
    name, kind, setting = "jetstream", brokers.Nats, "NATS_URL"

    @staticmethod
    @asynccontextmanager
    async def connected(broker: Broker) -> AsyncIterator[JetStreamContext]:
        client = await nats.connect(broker.url, allow_reconnect=False)
        try:
            yield client.jetstream()
        finally:
            await client.close()

    async def begin(self, broker: Broker) -> None:
        async with self.connected(broker) as client:
            with contextlib.suppress(NotFoundError):
                await client.delete_stream(jetstream.STREAM)
            await jetstream.set_up(client)

    async def arrived(self, broker: Broker) -> list[Event]:
        async with self.connected(broker) as client:
            count = (await client.stream_info(jetstream.STREAM)).state.messages
            found = [await client.get_msg(jetstream.STREAM, number) for number in range(1, count + 1)]
            return [Event.parse(message.data or b"") for message in found]


class RedisStream(Way):
    name, kind, setting = "redis_stream", brokers.Redis, "REDIS_URL"

    @staticmethod
    @asynccontextmanager
    async def connected(broker: Broker) -> AsyncIterator[Any]:
        async with Redis.from_url(broker.url, decode_responses=True) as client:
            yield client

    async def begin(self, broker: Broker) -> None:
        async with self.connected(broker) as client:
            await client.flushall()

    async def arrived(self, broker: Broker) -> list[Event]:
        async with self.connected(broker) as client:
            return [Event.parse(entry["event"]) for _, entry in await client.xrange(redis_stream.STREAM)]


class RabbitMQ(Way):
    name, kind, setting = "rabbitmq", brokers.RabbitMQ, "AMQP_URL"
    said = ("40 bookings of 4 customers came, each kept once.", "Those of each came in their order.")

    def __init__(self) -> None:
        self._taken: list[Event] = []

    @staticmethod
    @asynccontextmanager
    async def connected(broker: Broker) -> AsyncIterator[AbstractChannel]:
        async with await aio_pika.connect(broker.url) as connection:
            yield await connection.channel()

    async def begin(self, broker: Broker) -> None:
        """Wait until the queue's name is on the disk, too: RabbitMQ before 4.0 writes that after it has answered."""
        self._taken.clear()
        async with self.connected(broker) as channel:
            await (await rabbitmq.queue_of(channel)).purge()

        def is_kept() -> bool:
            return any(rabbitmq.QUEUE.encode() in file.read_bytes() for file in broker.folder.rglob("names.dets"))

        await until(is_kept)

    async def arrived(self, broker: Broker) -> list[Event]:
        """Take what is in the queue; all that was taken."""
        async with self.connected(broker) as channel:
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

    def check(self, events: list[Event]) -> None:
        check_each(events)
        assert len(events) > ALL, "RabbitMQ keeps what comes again; who takes it knows it by its id"


class Webhook(Way):
    name, kind, setting = "signed_webhook", brokers.Receiver, "WEBHOOK_URL"
    said = ("40 events were told, each kept once;", "They came in the order of the bookings.")

    async def begin(self, broker: Broker) -> None:
        self._already = len(self._lines(broker))

    async def arrived(self, broker: Broker) -> list[Event]:
        return [Event.parse(line.partition(" ")[2]) for line in self._lines(broker)[self._already :]]

    @staticmethod
    def _lines(broker: Broker) -> list[str]:
        return (broker.folder / "events").read_text().splitlines()


WAYS: dict[str, type[Way]] = {way.name: way for way in (JetStream, RedisStream, RabbitMQ, Webhook)}


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Broker]]:
    with contextlib.ExitStack() as stack:

        class Started(dict[str, Broker]):
            def __missing__(self, name: str) -> Broker:
                self[name] = stack.enter_context(running(WAYS[name].kind))
                return self[name]

        yield Started()


def server(servers: dict[str, Broker], way: Way, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """The server of an example, which knows it."""
    own = servers[way.name]
    asyncio.run(own.revive())
    monkeypatch.setenv(way.setting, own.url)
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    return own


@pytest.mark.parametrize("name", WAYS)
def test_the_example_says_that_each_booking_has_come_in_order(
    database_url: str, servers: dict[str, Broker], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    way = WAYS[name]()
    if name != "signed_webhook":  # which has a receiver of its own
        server(servers, way, monkeypatch)
    said = run_example(f"outbox/{name}", database_url)
    assert all(sentence in said for sentence in way.said), said
    assert "; 0 came again" not in said


@pytest.mark.parametrize("name", WAYS)
def test_each_booking_comes_though_relay_and_server_were_killed(
    database_url: str, servers: dict[str, Broker], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    way = WAYS[name]()
    broker = server(servers, way, monkeypatch)

    async def story() -> list[Event]:
        await way.begin(broker)
        return await Sink(way.name, broker, lambda: way.arrived(broker)).suffer(database_url)

    way.check(asyncio.run(story()))


def test_what_reaches_no_queue_of_rabbitmq_is_not_delivered(
    database_url: str, servers: dict[str, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    way = RabbitMQ()
    broker = server(servers, way, monkeypatch)

    async def story() -> None:
        monkeypatch.setattr(rabbitmq, "publisher", rabbitmq.Publisher(broker.url))
        async with (
            TestApp(rabbitmq.app, database_url) as test,
            way.connected(broker) as channel,
            AsyncExitStack() as stack,
        ):
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
            test.clock.advance(SECOND)
            await test.relay.drain()
            assert [event.number for event in await way.arrived(broker)] == [1]

    asyncio.run(story())


def test_the_script_of_redis_adds_what_is_new_and_of_the_last_process(
    servers: dict[str, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    way = RedisStream()
    broker = server(servers, way, monkeypatch)
    keys = [redis_stream.STREAM, redis_stream.ADDED, redis_stream.FENCE]

    async def story() -> None:
        async with way.connected(broker) as client:
            script = client.register_script(redis_stream.ADD)

            async def add(fence: int, message: str, known_for: int = redis_stream.KNOWN_FOR) -> None:
                await script(keys=keys, args=[known_for, fence, message, "an event"])

            await client.flushall()
            await client.set(redis_stream.STREAM, "no stream")
            with pytest.raises(ResponseError):
                await add(1, "a")
            await client.delete(redis_stream.STREAM)
            for _ in range(2):
                await add(1, "a")
            assert [entry["id"] for _, entry in await client.xrange(redis_stream.STREAM)] == ["a"], (
                "refused, it counts not"
            )
            await add(1, "a", -60)
            assert await client.xlen(redis_stream.STREAM) == 2, "ids are forgotten after their time"
            assert await client.zrange(redis_stream.ADDED, 0, -1) == ["a"]
            for fence, message in ((7, "b"), (8, "c")):
                await add(fence, message)
            with pytest.raises(ResponseError, match="FENCED"):
                await add(7, "d")
            assert await client.zrange(redis_stream.ADDED, 0, -1) == ["a", "b", "c"]

    asyncio.run(story())


# The example of the specification's own libraries.
KNOWN_SECRET, KNOWN_ID, KNOWN_AT = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330
KNOWN_BODY, KNOWN_SIGNATURE = b'{"test": 2432232314}', "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
KNOWN = {"webhook-id": KNOWN_ID, "webhook-timestamp": str(KNOWN_AT), "webhook-signature": KNOWN_SIGNATURE}
NOW = datetime(2030, 1, 1, tzinfo=UTC)


# ----- signatures


async def test_an_event_is_signed_as_the_specification_says() -> None:
    hook = signed_webhook.Webhook("http://shop.example/", KNOWN_SECRET)
    hook.client = httpx.AsyncClient(transport=httpx.MockTransport(lambda call: httpx.Response(204, request=call)))
    sent = (await hook.post(KNOWN_ID, KNOWN_BODY, datetime.fromtimestamp(KNOWN_AT, UTC))).request
    assert {name: sent.headers[name] for name in KNOWN} == KNOWN
    assert sent.headers["idempotency-key"] == KNOWN_ID
    assert verify(KNOWN_SECRET, sent.headers, sent.content, KNOWN_AT) == KNOWN_ID


CHANGES: list[dict[str, str]] = [
    {"webhook-id": "msg_another"},
    {"webhook-id": ""},
    {"webhook-timestamp": str(KNOWN_AT + 1)},
    {"webhook-timestamp": "soon"},
    {"webhook-timestamp": "1" * 400},
    {"webhook-signature": ""},
    {"webhook-signature": KNOWN_SIGNATURE.removeprefix("v1,")},
    {"webhook-signature": KNOWN_SIGNATURE.replace("v1,", "v2,")},
    {"webhook-signature": "v1,\xe9"},
]


def test_what_was_changed_on_the_way_or_is_old_or_of_the_future_is_refused() -> None:
    for changed in CHANGES:
        assert verify(KNOWN_SECRET, KNOWN | changed, KNOWN_BODY, KNOWN_AT) is None, changed
    assert verify(KNOWN_SECRET, KNOWN, KNOWN_BODY + b" ", KNOWN_AT) is None
    assert verify(SECRET, KNOWN, KNOWN_BODY, KNOWN_AT) is None
    assert verify(KNOWN_SECRET, {}, KNOWN_BODY, KNOWN_AT) is None
    for seconds in (-TOLERANCE, TOLERANCE):
        assert verify(KNOWN_SECRET, KNOWN, KNOWN_BODY, KNOWN_AT + seconds) == KNOWN_ID
        assert verify(KNOWN_SECRET, KNOWN, KNOWN_BODY, KNOWN_AT + seconds * 1.01) is None
    both = KNOWN | {"webhook-signature": f"v1,bm90aGluZw== {KNOWN_SIGNATURE}"}
    assert verify(KNOWN_SECRET, both, KNOWN_BODY, KNOWN_AT) == KNOWN_ID, "signed with two secrets while one is replaced"


async def test_nothing_is_signed_or_taken_without_a_secret() -> None:
    for none in ("", "whsec_"):
        with pytest.raises(ValueError, match="Set WEBHOOK_SECRET"):
            await signed_webhook.Webhook("http://shop.example/", none).post(KNOWN_ID, KNOWN_BODY, NOW)
        digest = hmac.digest(b"", f"{KNOWN_ID}.{KNOWN_AT}.".encode() + KNOWN_BODY, "sha256")
        signature = {"webhook-signature": "v1," + base64.b64encode(digest).decode()}
        assert verify(none, KNOWN | signature, KNOWN_BODY, KNOWN_AT) is None


async def test_who_sends_what_he_has_overheard_again_achieves_nothing() -> None:
    receiver, now = Receiver(SECRET), SystemClock().now()
    site = Starlette(routes=[Route("/", receiver.receive, methods=["POST"])])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(site), base_url="http://shop.example") as client:
        hook = signed_webhook.Webhook("/", SECRET)
        hook.client = client
        overheard = (await hook.post("an id", b'{"n": 1}', now)).request
        assert (await client.send(overheard)).status_code == 204
        assert (receiver.events, receiver.again) == ({"an id": {"n": 1}}, 1)
        old = await hook.post("another id", b"{}", now - timedelta(seconds=TOLERANCE + 5))
        assert (old.status_code, list(receiver.events)) == (401, ["an id"])


# ----- answers


class Answers:
    """A receiver that answers as it is told, and then that all is well."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: httpx.Response) -> None:
        self.calls: list[httpx.Request] = []
        self._answers = list(answers)
        client = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))
        monkeypatch.setattr(signed_webhook.webhook, "client", client)
        monkeypatch.setattr(signed_webhook.webhook, "url", "https://shop.example/hooks")
        monkeypatch.setattr(signed_webhook.webhook, "secret", SECRET)

    def _answer(self, call: httpx.Request) -> httpx.Response:
        self.calls.append(call)
        return self._answers.pop(0) if self._answers else httpx.Response(204)


async def status(test: TestApp) -> Any:
    """How the outbox stands."""
    (outbox,) = await signed_webhook.app.outboxes.list(test)
    return outbox


@pytest.mark.parametrize("code", [429, 503])
async def test_who_asks_to_be_left_alone_is(database_url: str, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    receiver = Answers(monkeypatch, *[httpx.Response(code, headers={"retry-after": "30"})] * 20)
    async with TestApp(signed_webhook.app, database_url) as test:
        await test.run_mutation(signed_webhook.book, "ada", 1)
        for calls in range(1, 21):
            await test.relay.drain()
            test.clock.advance(timedelta(seconds=29))
            await test.relay.drain()
            assert len(receiver.calls) == calls
            test.clock.advance(timedelta(seconds=1))
        assert not (await status(test)).halted, "as it is no failure"
        await test.relay.drain()
        assert (await status(test)).delivered == 1
    assert len({call.headers["webhook-id"] for call in receiver.calls}) == 1
    assert len({call.content for call in receiver.calls}) == 1
    assert len({call.headers["webhook-timestamp"] for call in receiver.calls}) == 21, "each attempt is signed anew"


async def test_an_answer_that_will_be_the_same_each_time_halts_the_outbox_at_once(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = Answers(monkeypatch, httpx.Response(422, text="no such customer"))
    async with TestApp(signed_webhook.app, database_url) as test:
        for number in range(2):
            await test.run_mutation(signed_webhook.book, "ada", number)
        await test.relay.drain()
        test.clock.advance(timedelta(days=1))
        await test.relay.drain()
        halted = await status(test)
        assert (halted.halted, halted.delivered, len(receiver.calls)) == (True, 0, 1)
        assert "422: no such customer" in halted.error
        await signed_webhook.app.outboxes.retry(test, "booking-webhook")
        await test.relay.drain()
        assert (await status(test)).delivered == 2


PAUSES: dict[str, timedelta | None] = {
    "30": timedelta(seconds=30),
    "0": signed_webhook.SHORTEST_PAUSE,
    "9" * 30: signed_webhook.LONGEST_PAUSE,
    "9" * 9000: None,
    "Tue, 01 Jan 2030 00:01:00 GMT": timedelta(minutes=1),
    "Tue, 01 Jan 2030 00:01:00 -0000": timedelta(minutes=1),
    "Tue, 01 Jan 2019 00:00:00 GMT": signed_webhook.SHORTEST_PAUSE,
    "Tue, 01 Jan 2999 00:00:00 GMT": signed_webhook.LONGEST_PAUSE,
    "Tue, 99 Jan 2030 00:00:00 GMT": None,
    "soon": None,
    "-1": None,
    "": None,
}


def test_how_long_to_wait_is_read_with_care() -> None:
    for said, pause in PAUSES.items():
        assert signed_webhook.pause_of(httpx.Response(429, headers={"retry-after": said}), NOW) == pause, said
