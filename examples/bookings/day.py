"""The day: the rows of the CSV on their way to penstock, and what comes in between."""

from __future__ import annotations

import asyncio
import csv
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
from bookings import REMIND_BEFORE
from processes import Process

from penstock import ApplicationError, Backend, TryAgain
from penstock.client.answers import FunctionError
from penstock.client.client import AsyncClient

IN_FLIGHT = 16
PATIENCE = 60.0
_LONGEST = timedelta(minutes=10)  # that the demo takes
OUTAGE_AT, OUTAGE_PART = 0.2, 2 / 7  # of all rows, and of the time in which they are sent
CRASH_AT, DOWN_SECONDS, WORTH_A_CRASH = 0.65, 1, 3


@dataclass(frozen=True)
class Row:
    """A row of the CSV. Its note says what is to become of it; the server is not told."""

    request: str
    customer: str
    phone: str
    starts_at: str
    note: str

    @property
    def is_valid(self) -> bool:
        """Whether it is to be booked."""
        return not self.note.startswith("refused")


def read_rows(file: Path, most: int | None, now: datetime | None = None) -> list[Row]:
    """The rows of the CSV; its days count from today, so that it does not age.

    A booking whose reminder would come while the demo runs is a day later.
    """
    now = datetime.now(UTC) if now is None else now
    with file.open(encoding="utf-8", newline="") as text:
        found = list(csv.DictReader(text))[:most]
    return [
        Row(
            row["request"],
            row["customer"],
            row["phone"],
            _starts_at(now, int(row["in_days"]), time.fromisoformat(row["at"])).isoformat(),
            row["note"],
        )
        for row in found
    ]


def _starts_at(now: datetime, days: int, at: time) -> datetime:
    found = datetime.combine(now.date() + timedelta(days), at)
    if found.tzinfo is None:  # which is refused
        return found
    until_reminder = found - REMIND_BEFORE - now
    return found + timedelta(days=1) if timedelta(0) < until_reminder < _LONGEST else found


@dataclass
class Day:
    """What happens, and what the demo sees of it."""

    source: str
    rows: list[Row]
    seconds: float
    server: Process
    server_url: str
    client: AsyncClient
    provider: httpx.AsyncClient
    jobs: Backend
    tell: Callable[[str], None]
    ids: dict[str, set[str]] = field(default_factory=dict)  # by request: the bookings that were the answer
    refusals: list[tuple[Row, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    state: dict[str, dict[str, Any]] = field(default_factory=dict)
    earlier: dict[str, Any] | None = None
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def run(self) -> None:
        """Send all rows, disturb, and wait until nothing is left to be done."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.disturb())
            await self.send_rows()
        self.tell(f"all {len(self.rows)} rows are answered; some messages may still be on their way")
        deadline = monotonic() + PATIENCE
        while self.has_work and monotonic() < deadline:
            await asyncio.sleep(0.1)
            await self.look()

    @property
    def has_work(self) -> bool:
        """Whether messages or jobs are under way."""
        messages, jobs = self.state["messages"], self.state["jobs"]
        return any((messages.get("sending"), messages.get("retrying"), jobs.get("ready"), jobs.get("running")))

    async def send_rows(self) -> None:
        """Send the rows in their order, at an even pace, several at a time."""
        places = asyncio.Semaphore(IN_FLIGHT)
        async with asyncio.TaskGroup() as group:
            for row in self.rows:
                await places.acquire()
                group.create_task(self.send_row(row)).add_done_callback(lambda _task: places.release())
                await asyncio.sleep(random.expovariate(len(self.rows) / self.seconds))

    async def send_row(self, row: Row) -> None:
        """Send one row; cancel its booking if it is one to be cancelled."""
        if row.note == "refused: request used":
            async with self.moved:
                await self.moved.wait_for(lambda: row.request in self.ids)
        booking = {"customer": row.customer, "phone": row.phone, "starts_at": row.starts_at}
        try:
            booking_id = await self.call("bookings:book", source=self.source, request=row.request, **booking)
        except (ApplicationError, FunctionError) as error:
            self.refusals.append((row, error.what))
        else:
            self.ids.setdefault(row.request, set()).add(booking_id)
            self.counts[row.note] += 1
            if row.note == "cancelled later":
                await asyncio.sleep(random.uniform(0, 1))
                await self.call("bookings:cancel", booking_id=booking_id)
        async with self.moved:
            self.counts["answered"] += 1
            self.moved.notify_all()

    async def call(self, function: str, **arguments: Any) -> Any:
        """Call, and call again if nobody knows what came of it: these mutations are safe to repeat."""
        while True:
            try:
                return await self.client.mutation(function, **arguments)
            except TryAgain:
                self.counts["called again"] += 1
                await asyncio.sleep(0.1)

    async def disturb(self) -> None:
        """Let the provider be out of order for a while; later, kill penstock while messages are on their way."""
        await self.reach(OUTAGE_AT)
        outage = OUTAGE_PART * self.seconds
        await self.provider.post("/outage", params={"seconds": outage})
        self.tell(f"[red]the provider is out of order[/]: it answers 503 for {outage:.2g} s")
        await asyncio.sleep(outage)
        self.tell("[green]the provider is back[/]; messages follow as their waits end")
        await self.reach(CRASH_AT)
        under_way = await self.messages_under_way()
        self.tell(f"[red]kill -9[/] of penstock (process {self.server.kill()}) with {under_way} messages on their way")
        await asyncio.sleep(DOWN_SECONDS)
        self.server.start()
        await self.server.answer(f"{self.server_url}/readyz")
        self.tell("[green]penstock is back[/] on the same database")

    async def reach(self, part: float) -> None:
        """Wait until this part of all rows is answered."""
        async with self.moved:
            await self.moved.wait_for(lambda: self.counts["answered"] >= part * len(self.rows))

    async def messages_under_way(self) -> int:
        """How many requests the provider works on, once there are some, for the worst moment to crash."""
        until, count = monotonic() + 2, 0
        while count < WORTH_A_CRASH and monotonic() < until:
            await asyncio.sleep(0.02)
            count = (await self.provider.get("/stats")).json()["under_way"]
        return count

    async def look(self) -> None:
        """See how everything stands. The jobs are seen in the database, even while penstock is down."""
        try:
            self.state.update(await self.client.query("bookings:summary"))
        except TryAgain:
            self.state["penstock"] = {"up": False}
        else:
            self.state["penstock"] = {"up": True}
        self.state["provider"] = (await self.provider.get("/stats")).json()
        self.state["jobs"] = dict(await self.jobs.job_counts())
        self.earlier = self.earlier or dict(self.state)

    def since(self, what: str) -> Counter[str]:
        """Counts of bookings, messages or jobs by state, without those of earlier runs."""
        earlier = self.earlier or {}
        return Counter({name: count - earlier[what].get(name, 0) for name, count in self.state[what].items()})
