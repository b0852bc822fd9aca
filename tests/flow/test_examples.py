"""The examples: the demo as a whole on both stores, and their programs as their users would test them."""

from __future__ import annotations

import asyncio
import html
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import bookings
import httpx
import pytest
from bookings import Booking, Message

from penstock import ApplicationError, ArgumentsInvalid, Id
from penstock.testing import TestApp

EXAMPLES = Path(__file__).parents[2] / "examples"
ADA = {"source": "web", "request": "1", "customer": "Ada", "phone": "+420 601 234 567"}
IN_3_DAYS = timedelta(days=3)


class SmsProvider:
    """Answers in place of the provider: with each of `failures` once, then accepts."""

    def __init__(self, *failures: int) -> None:
        self.failures = list(failures)
        self.requests: list[str] = []  # their idempotency keys
        self.accepted: dict[str, str] = {}

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        key = request.headers["idempotency-key"]
        self.requests.append(key)
        if self.failures:
            return httpx.Response(self.failures.pop(0))
        self.accepted.setdefault(key, json.loads(request.content)["text"])
        return httpx.Response(200, json={"receipt": f"R-{key}"})

    @property
    def texts(self) -> list[str]:
        return list(self.accepted.values())

    def connect(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self), base_url="http://sms")


@asynccontextmanager
async def desk(monkeypatch: pytest.MonkeyPatch, provider: SmsProvider) -> AsyncIterator[TestApp]:
    monkeypatch.setattr(bookings, "connect", provider.connect)
    async with TestApp(bookings.app) as app:
        yield app


async def book(app: TestApp, after: timedelta = IN_3_DAYS, **changes: str) -> Id[Booking]:
    return await app.run_mutation(bookings.book, **{**ADA, **changes}, starts_at=app.clock.now() + after)


async def the_booking(app: TestApp) -> Booking:
    (found,) = (await app.run_query(bookings.from_source, "web")).page
    return found


async def the_message(app: TestApp) -> Message:
    (found,) = await app.run_query(bookings.messages, (await the_booking(app)).id)
    return found


# ----- the demo


def test_demo_proves_itself(database_url: str, tmp_path: Path) -> None:
    demo = subprocess.run(
        [sys.executable, EXAMPLES / "bookings" / "demo.py"],
        env={
            **os.environ,
            "DATABASE_URL": database_url,
            "DEMO_BOOKINGS": "45",
            "DEMO_SECONDS": "4",
            "DEMO_OUT": str(tmp_path / "out"),
            "DEMO_PICTURE": str(tmp_path / "demo.svg"),
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    said = demo.stdout + demo.stderr
    assert demo.returncode == 0, said
    for moment in ("out of order", "the provider is back", "kill -9", "penstock is back", "all work is done"):
        assert moment in said
    claims = said.partition("The proof")[2].partition("On the way")[0]
    assert claims.count(" ok") == 14, said
    assert "WRONG" not in said
    assert story(drawn(tmp_path / "demo.svg")) == story(said.splitlines())
    readme = EXAMPLES.parent / "docs" / "demo.svg"
    assert story(drawn(readme)) == story(said.splitlines()), "DEMO_PICTURE=docs/demo.svg make demo"


def drawn(picture: Path) -> list[str]:
    lines: dict[str, str] = {}
    for found in re.finditer(r"url\(#demo-line-(\d+)\)\">(.*?)</text>", picture.read_text("utf-8")):
        lines[found[1]] = lines.get(found[1], "") + html.unescape(found[2])
    return list(lines.values())


def story(lines: list[str]) -> set[str]:
    """The events and the claims among lines, without spaces and numbers; progress differs from run to run."""
    texts = [re.sub(r"\d[\d.,]*", "0", "".join(line.split())) for line in lines]
    return {text for text in texts if re.match(r"0s(all|kill|penstock|theprovider)", text) or text.endswith("ok")}


# ----- its program


async def test_a_repeated_request_books_nothing_new_and_a_wrong_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    provider = SmsProvider()
    async with desk(monkeypatch, provider) as app:
        wrong: tuple[tuple[dict[str, str], timedelta, str], ...] = (
            ({"phone": "12"}, IN_3_DAYS, "phone: .*'12' is no phone number"),
            ({"customer": "  "}, IN_3_DAYS, "customer: String should have at least 1 character"),
            ({}, timedelta(0), "is over"),
        )
        for changes, after, message in wrong:
            with pytest.raises((ArgumentsInvalid, ApplicationError), match=message):
                await book(app, after, **changes)
        assert (await app.run_query(bookings.summary)).bookings == {}
        first, *others = await asyncio.gather(*(book(app) for _ in range(5)))
        assert others == [first] * 4
        with pytest.raises(ApplicationError, match="used for another booking"):
            await book(app, customer="Eve")
        await app.run_until_idle()
        booking = await the_booking(app)
        assert (booking.id, booking.status, booking.phone) == (first, "confirmed", "+420601234567")
        assert provider.texts == [
            "Dear Ada, your booking on 4 January, 00:00 is confirmed.",
            "Dear Ada, we see you tomorrow, 4 January, 00:00.",
        ]


async def test_a_failing_provider_is_tried_again_unless_the_number_is_out_of_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    provider = SmsProvider(503, 429, 500, 503)
    async with desk(monkeypatch, provider) as app:
        began = app.clock.now()
        await book(app, timedelta(hours=1))
        assert (await the_booking(app)).reminder is None, "at short notice there is none"
        await app.run_until_idle()
        message = await the_message(app)
        assert (message.state, message.attempt, len(provider.texts)) == ("accepted", 5, 1)
        waited = (app.clock.now() - began).total_seconds()
        assert 0.5 * 7.5 <= waited <= 1.5 * 7.5  # 0.5 + 1 + 2 + 4 seconds, with jitter
    async with desk(monkeypatch, SmsProvider(503, 422)) as app:
        await book(app, timedelta(hours=1))
        await app.run_until_idle()
        message = await the_message(app)
        assert (message.state, message.attempt, message.error) == ("refused", 2, "422: ")
        assert (await the_booking(app)).status == "booked"


async def test_bookings_are_listed_page_by_page_and_a_cancelled_one_is_not_reminded_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    provider = SmsProvider()
    async with desk(monkeypatch, provider) as app:
        booking_id = await book(app)
        await app.assert_scheduled(bookings.notify, booking_id=booking_id)
        for _ in range(2):
            await app.run_mutation(bookings.cancel, booking_id)
        await app.run_until_idle()
        assert (await the_booking(app)).status == "cancelled"
        assert sorted(text.rpartition(" ")[2] for text in provider.texts) == ["cancelled.", "confirmed."]
        for number in range(2):
            await book(app, timedelta(hours=9 - number), request=f"r{number}", customer="Eve")
        first = await app.run_query(bookings.from_source, "web", None, 2)
        rest = await app.run_query(bookings.from_source, "web", first.continue_cursor, 2)
        assert [booking.request for booking in (*first.page, *rest.page)] == ["1", "r0", "r1"]
        assert (first.is_done, rest.is_done) == (False, True)
        assert [booking.request for booking in await app.run_query(bookings.upcoming, "Eve")] == ["r1", "r0"]


# ----- the quickstart


async def test_a_seat_is_held_for_half_a_minute() -> None:
    spec = importlib.util.spec_from_file_location("app", EXAMPLES / "quickstart" / "app.py")
    assert spec is not None
    assert spec.loader is not None
    quickstart = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(quickstart)
    async with TestApp(quickstart.app) as app:
        await app.run_mutation(quickstart.hold, seat="12A", name="Ada")
        with pytest.raises(ApplicationError, match="Seat 12A is taken"):
            await app.run_mutation(quickstart.hold, seat="12A", name="Eve")
        assert [held.name for held in await app.run_query(quickstart.taken)] == ["Ada"]
        app.clock.advance(timedelta(seconds=30))
        await app.run_until_idle(advance=False)
        assert await app.run_query(quickstart.taken) == []
