"""The sink for webhooks: relay and receiver are killed, what is not signed, or old, is refused, answers are heeded."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import signed_webhook
from stage import brokers
from stage.brokers import Broker, running
from stage.programs import run_example
from stage.receiving import SECRET
from stage.sinks import ALL, Event, Sink
from starlette.applications import Starlette
from starlette.routing import Route
from webhook_receiver import TOLERANCE, Receiver, verify

from penstock.clock import SystemClock
from penstock.testing import TestApp

# The example of the specification's own libraries.
KNOWN_SECRET, KNOWN_ID, KNOWN_AT = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330
KNOWN_BODY, KNOWN_SIGNATURE = b'{"test": 2432232314}', "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
KNOWN = {"webhook-id": KNOWN_ID, "webhook-timestamp": str(KNOWN_AT), "webhook-signature": KNOWN_SIGNATURE}
NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def server() -> Iterator[Broker]:
    """A receiver."""
    with running(brokers.Receiver) as own:
        yield own


@pytest.fixture
def broker(server: Broker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """The same, known to the example."""
    asyncio.run(server.revive())
    monkeypatch.setenv("WEBHOOK_URL", server.url)
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    return server


def test_the_example_tells_each_booking_in_order(database_url: str) -> None:
    said = run_example("outbox/signed_webhook", database_url)
    assert "40 events were told, each kept once;" in said
    assert "; 0 came again" not in said
    assert "They came in the order of the bookings." in said


async def test_each_booking_is_received_once_though_relay_and_receiver_were_killed(
    database_url: str, broker: Broker
) -> None:
    file = broker.folder / "events"
    already = len(file.read_text().splitlines())

    async def arrived() -> list[Event]:
        lines = file.read_text().splitlines()[already:]
        return [Event.parse(line.partition(" ")[2]) for line in lines]

    events = await Sink("signed_webhook", broker, arrived).suffer(database_url)
    assert [event.number for event in events] == list(range(ALL))


# ----- signatures


async def test_an_event_is_signed_as_the_specification_says() -> None:
    hook = signed_webhook.Webhook("http://shop.example/", KNOWN_SECRET)
    hook.client = httpx.AsyncClient(transport=httpx.MockTransport(lambda call: httpx.Response(204, request=call)))
    sent = (await hook.post(KNOWN_ID, KNOWN_BODY, datetime.fromtimestamp(KNOWN_AT, UTC))).request
    assert {name: sent.headers[name] for name in KNOWN} == KNOWN
    assert sent.headers["idempotency-key"] == KNOWN_ID
    assert verify(KNOWN_SECRET, sent.headers, sent.content, KNOWN_AT) == KNOWN_ID


@pytest.mark.parametrize(
    "changed",
    [
        {"webhook-id": "msg_another"},
        {"webhook-id": ""},
        {"webhook-timestamp": str(KNOWN_AT + 1)},
        {"webhook-timestamp": "soon"},
        {"webhook-timestamp": "1" * 400},
        {"webhook-signature": ""},
        {"webhook-signature": KNOWN_SIGNATURE.removeprefix("v1,")},
        {"webhook-signature": KNOWN_SIGNATURE.replace("v1,", "v2,")},
        {"webhook-signature": "v1,\xe9"},
    ],
)
def test_what_was_changed_on_the_way_is_refused(changed: dict[str, str]) -> None:
    assert verify(KNOWN_SECRET, KNOWN | changed, KNOWN_BODY, KNOWN_AT) is None


def test_an_event_is_refused_with_another_body_or_secret_or_without_headers() -> None:
    assert verify(KNOWN_SECRET, KNOWN, KNOWN_BODY + b" ", KNOWN_AT) is None
    assert verify(SECRET, KNOWN, KNOWN_BODY, KNOWN_AT) is None
    assert verify(KNOWN_SECRET, {}, KNOWN_BODY, KNOWN_AT) is None


@pytest.mark.parametrize("none", ["", "whsec_"])
async def test_nothing_is_signed_or_taken_without_a_secret(none: str) -> None:
    with pytest.raises(ValueError, match="Set WEBHOOK_SECRET"):
        await signed_webhook.Webhook("http://shop.example/", none).post(KNOWN_ID, KNOWN_BODY, NOW)
    digest = hmac.digest(b"", f"{KNOWN_ID}.{KNOWN_AT}.".encode() + KNOWN_BODY, "sha256")
    signature = {"webhook-signature": "v1," + base64.b64encode(digest).decode()}
    assert verify(none, KNOWN | signature, KNOWN_BODY, KNOWN_AT) is None


@pytest.mark.parametrize("seconds", [-TOLERANCE, TOLERANCE])
def test_an_event_that_is_old_or_of_the_future_is_refused(seconds: int) -> None:
    assert verify(KNOWN_SECRET, KNOWN, KNOWN_BODY, KNOWN_AT + seconds) == KNOWN_ID
    assert verify(KNOWN_SECRET, KNOWN, KNOWN_BODY, KNOWN_AT + seconds * 1.01) is None


def test_an_event_may_be_signed_with_two_secrets_while_one_is_replaced() -> None:
    both = KNOWN | {"webhook-signature": f"v1,bm90aGluZw== {KNOWN_SIGNATURE}"}
    assert verify(KNOWN_SECRET, both, KNOWN_BODY, KNOWN_AT) == KNOWN_ID


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


@pytest.mark.parametrize("answer", [httpx.Response(401), httpx.Response(302), httpx.Response(503)])
async def test_any_other_answer_is_tried_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch, answer: httpx.Response
) -> None:
    receiver = Answers(monkeypatch, answer)
    async with TestApp(signed_webhook.app, database_url) as test:
        await test.run_mutation(signed_webhook.book, "ada", 1)
        await test.relay.drain()
        assert not (await status(test)).halted
        test.clock.advance(timedelta(seconds=1))
        await test.relay.drain()
        assert (await status(test)).delivered == 1
    event = json.loads(receiver.calls[-1].content)
    assert (event["id"], event["type"]) == (receiver.calls[-1].headers["webhook-id"], "booking-webhook.insert")


@pytest.mark.parametrize(
    ("said", "pause"),
    [
        ("30", timedelta(seconds=30)),
        ("0", signed_webhook.SHORTEST_PAUSE),
        ("9" * 30, signed_webhook.LONGEST_PAUSE),
        ("9" * 9000, None),
        ("Tue, 01 Jan 2030 00:01:00 GMT", timedelta(minutes=1)),
        ("Tue, 01 Jan 2030 00:01:00 -0000", timedelta(minutes=1)),
        ("Tue, 01 Jan 2019 00:00:00 GMT", signed_webhook.SHORTEST_PAUSE),
        ("Tue, 01 Jan 2999 00:00:00 GMT", signed_webhook.LONGEST_PAUSE),
        ("Tue, 99 Jan 2030 00:00:00 GMT", None),
        ("soon", None),
        ("-1", None),
        ("", None),
    ],
)
def test_how_long_to_wait_is_read_with_care(said: str, pause: timedelta | None) -> None:
    assert signed_webhook.pause_of(httpx.Response(429, headers={"retry-after": said}), NOW) == pause
