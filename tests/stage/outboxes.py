"""An app whose outboxes keep what they handed over, and which writes what a test says."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from penstock import ActionCtx, App, MutationCtx, QueryCtx, Table
from penstock.app import Backend
from penstock.outbox.message import Message
from penstock.services.relay.relay import Relay
from penstock.store.nouns.outboxes import Aside, OutboxRow
from penstock.store.session import Session
from penstock.testing import TestApp, TestClock
from stage.databases import in_transaction
from stage.stories import Stage

Handler = Callable[[Any, Message[Any]], Awaitable[None]]


class Sent(Table):
    outbox: str
    number: int
    text: str
    place: int


class OutboxStage(Stage):
    """An app, one mutation that does what the test says, and what its outboxes have handed over.

    Attributes:
        got: The messages that came through, in order.
        tried: The ids of those that were tried, in order.
        calls: How many messages each call of a handler was for.
        fails: What a message fails of, if of anything.
    """

    def __init__(self, *tables: type[Table]) -> None:
        super().__init__(*tables, Sent)
        self.got: list[Message[Any]] = []
        self.tried: list[str] = []
        self.calls: list[int] = []
        self.fails: Callable[[Message[Any]], BaseException | None] = lambda _message: None
        self.during: Handler | None = None
        self._places = itertools.count()

        @self.app.query
        async def sent(ctx: QueryCtx) -> list[tuple[int, str, str]]:
            return [(row.place, row.text, row.outbox) for row in await ctx.db.query(Sent).collect()]

        self._sent = sent

    def outbox(self, source: type[Table] | str, name: str = "send", *, mutation: bool = False, **options: Any) -> None:
        """Declare an outbox whose handler keeps its messages, or writes them down if it is a mutation."""
        many = options.get("batch") is not None

        async def send(ctx: Any, given: Any) -> None:
            self.calls.append(len(given) if many else 1)
            for message in given if many else [given]:
                self.tried.append(message.id)
                if self.during is not None:
                    await self.during(ctx, message)
                if (error := self.fails(message)) is not None:
                    raise error
                if mutation:
                    sent = Sent(outbox=name, number=message.number, text=text_of(message), place=next(self._places))
                    await ctx.db.insert(sent)
                else:
                    self.got.append(message)

        annotation: Any = Message[Any]
        send.__annotations__ = {
            "ctx": MutationCtx if mutation else ActionCtx,
            "given": list[annotation] if many else annotation,
            "return": None,
        }
        send.__name__ = send.__qualname__ = name
        self.app.outbox(source, name=name, **options)(send)

    def texts(self) -> list[str]:
        got, self.got[:] = list(self.got), []
        return [text_of(message) for message in got]

    async def written(self, test: Backend) -> list[str]:
        """What mutation handlers have written, in the order in which they did."""
        return [text for _, text, _ in sorted(await test.run_query(self._sent))]

    async def by_outbox(self, test: Backend) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for _, text, outbox in sorted(await test.run_query(self._sent)):
            found.setdefault(outbox, []).append(text)
        return found


def text_of(message: Message[Any]) -> str:
    """A message in short: of a row its note, and what has happened if that is no insert."""
    if message.kind == "message":
        return str(message.payload)
    row = message.row if message.row is not None else message.previous
    said = "" if row is None else str(row.note)
    return said if message.kind == "insert" else f"{message.kind} {said}".rstrip()


def failing(error: Callable[[], BaseException], *texts: str) -> Callable[[Message[Any]], BaseException | None]:
    """Has messages fail that say one of these."""
    return lambda message: error() if texts and text_of(message) in texts else None


async def outbox_row(test: Backend, name: str = "send") -> OutboxRow:
    return next(row for row in await test.engine.store.outboxes.list() if row.plan.name == name)


async def error_of(test: Backend, name: str = "send") -> str:
    trouble = (await outbox_row(test, name)).trouble
    return "" if trouble is None else trouble.error


async def aside(test: Backend, name: str = "send") -> list[Aside]:
    row = await outbox_row(test, name)
    return list(await test.engine.store.outboxes.aside(row.id, ("waiting", "halted", "parked"), 1000))


async def states(test: Backend, name: str = "send") -> list[str]:
    return [one.state for one in await aside(test, name)]


async def drain(test: TestApp, passing: timedelta = timedelta(0)) -> None:
    if passing:
        test.clock.advance(passing)
    await test.relay.drain()


async def send(test: Backend, topic: str, payload: str, key: str | None = None) -> bool:
    async def work(session: Session) -> bool:
        return await test.engine.store.outboxes.send(session, topic, payload, key)

    done: bool = await in_transaction(test, work)
    return done


async def died(call: Coroutine[Any, Any, None], dies: asyncio.Event) -> bool:
    """Whether a call ends as that of a process does that is killed; it is when that is set."""
    task, death = asyncio.create_task(call), asyncio.create_task(dies.wait())
    await asyncio.wait([task, death], return_when=asyncio.FIRST_COMPLETED)
    dies.clear()
    for one in (task, death):
        if not one.done():
            one.cancel()
    await asyncio.wait([task, death])
    if not task.cancelled():
        task.result()
    return task.cancelled()


@asynccontextmanager
async def relaying(app: App, url: str, clock: TestClock, **settings: Any) -> AsyncIterator[tuple[Backend, Relay]]:
    """A backend with a relay whose ticks the test makes; left as it is at the end, as a process that dies leaves it."""
    async with app.open(url, clock=clock, **settings) as backend:
        relay = backend.make_service("relay")
        assert isinstance(relay, Relay)
        yield backend, relay
