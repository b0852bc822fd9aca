"""What befalls each example of a sink: its relay dies between sending and writing that down, its server is killed.

Leaves to the test what there is to be found in the server afterwards. `python -m stage.sinks` is the relay of an
example, or the receiver of webhooks.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import uvicorn
from stage.brokers import Broker
from stage.processes import EXAMPLES, Process
from stage.waits import until
from starlette.applications import Starlette
from starlette.routing import Route

from penstock import Retry
from penstock.app import Backend
from penstock.observe import points
from penstock.store.nouns.outboxes import Step

SECRET = "whsec_c3RhZ2Ugc3RhZ2Ugc3RhZ2Ugc3RhZ2U="
LEASE = 1.0
SOON = Retry.fixed(0.1, max_attempts=3)
AT_MOST = timedelta(seconds=2)
BEFORE, MEANWHILE, ALL = 12, 32, 40
CUSTOMERS = 4


@dataclass(frozen=True)
class Event:
    """What the server got of a booking: the id of the message, and which booking it is."""

    id: str
    customer: str
    number: int

    @classmethod
    def parse(cls, text: str | bytes) -> Event:
        said = json.loads(text)
        return cls(said["id"], said["data"]["customer"], said["data"]["seats"])


@dataclass(frozen=True)
class Sink:
    """An example with its server.

    Attributes:
        name: The module of the example.
        broker: The server.
        arrived: All that the server has got, in its order.
    """

    name: str
    broker: Broker
    arrived: Callable[[], Awaitable[list[Event]]]

    @property
    def module(self) -> Any:
        return importlib.import_module(self.name)

    @contextmanager
    def relay(self, url: str, **settings: Any) -> Iterator[Process]:
        """A process that hands over, for the time of a block; it is ready."""
        options = {"lease": LEASE, "synchronous": "normal"} | settings
        process = Process("relay", url, self.name, program="stage.sinks", **options)
        try:
            process.expect("ready")
            yield process
        finally:
            process.close()

    async def book(self, backend: Backend, first: int, after: int) -> None:
        for number in range(first, after):
            await backend.run_mutation(self.module.book, f"customer {number % CUSTOMERS}", number)

    async def is_halted(self, backend: Backend) -> bool:
        (outbox,) = await self.module.app.outboxes.list(backend)
        return bool(outbox.halted)

    async def delivered(self, backend: Backend) -> int:
        (outbox,) = await self.module.app.outboxes.list(backend)
        return int(outbox.delivered)

    async def suffer(self, url: str) -> list[Event]:
        """Have relay and server killed while bookings are written; what the server has got in the end."""
        async with self.module.app.open(url) as backend:
            await self._relay_dies(backend, url)
            with self.relay(url) as relay:
                await until(lambda: self._has_delivered(backend, BEFORE))
                await self._server_dies(backend)
                await until(lambda: self._has_delivered(backend, ALL))
                assert relay.stop() == 0
            return await self.arrived()

    # ----- steps

    async def _relay_dies(self, backend: Backend, url: str) -> None:
        """What was sent is not written down, so it comes again."""
        await self.book(backend, 0, BEFORE)
        with self.relay(url, dies="once") as relay:
            assert await asyncio.to_thread(relay.wait) == -signal.SIGKILL
        assert len(await self.arrived()) > await self.delivered(backend) == 0

    async def _server_dies(self, backend: Backend) -> None:
        """Messages flow until then; while it is away, the outbox tells that it is halted."""
        writing = asyncio.create_task(self.book(backend, BEFORE, MEANWHILE))
        await until(lambda: self._has_delivered(backend, BEFORE + 5))
        await self.broker.kill()
        await writing
        await self.book(backend, MEANWHILE, ALL)
        await until(lambda: self.is_halted(backend))
        assert await self.delivered(backend) < ALL
        await self.broker.start()

    async def _has_delivered(self, backend: Backend, count: int) -> bool:
        return await self.delivered(backend) >= count


def check_each(events: list[Event]) -> None:
    """All bookings are there, those of each customer in their order, the same id each time one came."""
    firsts = list({event.id: event for event in events}.values())
    assert sorted(event.number for event in firsts) == list(range(ALL)), "each once, by its id"
    assert set(firsts) == set(events)
    for customer in range(CUSTOMERS):
        numbers = [event.number for event in firsts if event.customer == f"customer {customer}"]
        assert numbers == sorted(numbers), "in the order of its commits"


# ----- as a process of its own: python -m stage.sinks relay|receive <arguments…>


def receive(port: str, folder: str) -> None:
    receiving = importlib.import_module("webhook_receiver")
    file = Path(folder) / "events"
    file.touch()

    class Kept(receiving.Receiver):  # type: ignore[name-defined, misc]
        def keep(self, message: str, event: dict[str, Any]) -> None:
            super().keep(message, event)
            with file.open("a") as events:
                events.write(f"{message} {json.dumps(event)}\n")

    receiver = Kept(SECRET)
    for line in file.read_text().splitlines():
        message, _, event = line.partition(" ")
        receiver.events[message] = json.loads(event)
    site = Starlette(routes=[Route("/", receiver.receive, methods=["POST"])])
    uvicorn.run(site, host="127.0.0.1", port=int(port), log_level="warning", lifespan="off")


async def relay(database: str, sink: str, *, dies: str = "", **settings: str) -> None:
    """Hand over until the process is stopped, or has sent something and is to die of it."""
    sys.path.insert(0, str(EXAMPLES / "outbox"))
    app = importlib.import_module(sink).app
    for name, declared in app.outboxes._declared.items():  # tests have less patience than programs
        outbox = dataclasses.replace(declared.outbox, retry=SOON, timeout=AT_MOST)
        app.outboxes._declared[name] = dataclasses.replace(declared, outbox=outbox)
    if dies:
        points.arm("outbox.write", die)
    async with app.open(services=("relay",), config=app.config(database=database, **settings)):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        await stopped.wait()


async def die(step: Step, **_facts: Any) -> None:
    """End the process at once, where messages were sent and it is not written."""
    if step.delivered:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    role, *given = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    options = dict(argument[2:].split("=", 1) for argument in sys.argv[1:] if argument.startswith("--"))
    if role == "receive":
        receive(*given)
    else:
        asyncio.run(relay(*given, **options))
