"""Takes the pictures of the dashboard that the docs show: ``.venv/bin/python docs/pictures/take.py``.

A small desk of bookings runs for some seconds in this process, with a provider of messages that fails at times.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from math import sin
from pathlib import Path
from typing import Any, Literal

import httpx
from playwright.async_api import Page, async_playwright

from penstock import (
    ActionCtx,
    App,
    Id,
    Index,
    JobFilter,
    MutationCtx,
    Retry,
    Table,
    TaskCtx,
    WorkId,
    WorkResult,
    asgi_app,
    public,
)
from penstock.clock import SystemClock, random_of
from penstock.services.service import ServiceName

ROOT = Path(__file__).parents[2]
OUT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "tests"))

from stage.sockets import listening  # noqa: E402 - lies on the path since the line before

WIDTHS = {"phone": (390, 844), "tablet": (768, 800), "desk": (1280, 560)}
LARGEST = 120_000  # bytes
SERVICES: Sequence[ServiceName] = ("worker", "planner", "relay", "scheduler", "indexer", "pruner")
MINUTE = timedelta(minutes=1)
NAMES = ("Ada", "Grace", "Edsger", "Barbara", "Donald", "Tony", "Frances", "Alan")

app = App()
sms = app.workpool("sms", max_parallelism=4, default_retry=Retry(max_attempts=3, initial_backoff=0.3, base=2))
mail = app.workpool("mail", max_parallelism=8)
chance, sleep = random_of(7), SystemClock().sleep


class Booking(Table):
    customer: str
    room: int
    status: Literal["pending", "confirmed"] = "pending"

    by_customer = Index("customer")
    by_customer_and_room = Index("customer", "room")


@app.mutation(access=public)
async def book(ctx: MutationCtx, customer: str, room: int) -> Id[Booking]:
    booking = await ctx.db.insert(Booking(customer=customer, room=room))
    await sms.with_options(retry=True, on_complete=confirmed, context=str(booking)).enqueue(
        ctx, send_message, booking=booking
    )
    return booking


@app.internal_action
async def send_message(ctx: ActionCtx, booking: Id[Booking]) -> str:
    await sleep(chance.uniform(0.05, 0.3))
    if chance.random() < 0.4:
        raise ConnectionError("the provider does not answer")
    return "accepted"


@app.internal_mutation
async def confirmed(ctx: MutationCtx, work_id: WorkId, result: WorkResult[str], context: Any) -> None:
    await ctx.db.patch(Booking, context, status="confirmed")
    await mail.enqueue(ctx, send_letter, booking=context)


@app.internal_action
async def send_letter(ctx: ActionCtx, booking: str) -> None:
    await sleep(0.12)


@app.reactive_task(Booking, filter=lambda one: one.status == "confirmed")
async def to_calendar(ctx: TaskCtx[Booking]) -> None:
    await ctx.get_document()
    await sleep(0.08)


async def main() -> None:
    log = logging.getLogger("penstock")
    log.setLevel(logging.INFO)
    log.propagate = False
    with tempfile.TemporaryDirectory() as folder:
        config = app.config(database=f"sqlite:///{folder}/bookings.db", dev=True)
        async with app.open(config=config, services=SERVICES) as backend:
            await write_hour(backend.engine)
            asgi = asgi_app(app, backend=backend, dashboard=True)
            async with listening(asgi) as url, httpx.AsyncClient(base_url=url) as http:
                await take(url, http, backend)


async def write_hour(engine: Any) -> None:
    """Write the numbers of the hour before, as the desk would have counted them."""
    for minute in range(60, 0, -1):
        at, calls = engine.clock.now() - minute * MINUTE, round(900 + 400 * sin(minute / 9) + chance.uniform(-90, 90))
        slow, failed = calls // 10, chance.randrange(5, 40)
        took = {"-7": calls - slow, "-2": slow}
        jobs = {
            "success": calls - failed,
            "failed": failed,
            "retrying": 6 * failed,
            "lag -9": calls,
            "lag -3": slow,
        } | took
        numbers = {"pool sms": jobs, f"function {send_message.name}": {"success": calls, "error": failed} | took}
        await engine.store.logbook.write(at, numbers, [])
        await engine.store.logbook.sample(at, {"jobs": {"samples": 1.0, "ready": float(calls // 90), "oldest": 1.0}})


async def take(url: str, http: httpx.AsyncClient, backend: Any) -> None:
    async with async_playwright() as play:
        browser = await play.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-lcd-text"]
        )
        page = await browser.new_page()
        await page.goto(f"{url}/dashboard/")
        for number in range(160):
            body = {"path": book.name, "args": {"customer": chance.choice(NAMES), "room": number % 12 + 1}}
            (await http.post("/api/mutation", json=body)).raise_for_status()
            await sleep(0.1)
        async with asyncio.timeout(20):
            while not (failed := await backend.jobs(where=JobFilter(state="failed"))):
                await sleep(0.2)
        for name, path in (
            ("overview", ""),
            ("work", "work"),
            ("timeline", f"timeline?of={failed[0].id}"),
            ("schema", "schema"),
            ("health", "health"),
        ):
            await page.goto(f"{url}/dashboard/{path}")
            await page.get_by_text("live", exact=True).wait_for()
            for width, (x, y) in WIDTHS.items():
                if width == "desk" or name in {"overview", "timeline"}:
                    await shoot(page, f"{name}-{width}", x, y)
        await browser.close()


async def shoot(page: Page, name: str, width: int, height: int) -> None:
    await page.set_viewport_size({"width": width, "height": height})
    file = OUT / f"{name}.png"
    await page.screenshot(path=file)
    assert file.stat().st_size < LARGEST, file


if __name__ == "__main__":
    asyncio.run(main())
