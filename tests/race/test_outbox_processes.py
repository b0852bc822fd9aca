"""Outboxes in processes of their own, which are killed or stopped while others write."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from stage import outgoing
from stage.outboxes import outbox_row
from stage.processes import Process
from stage.waits import until

from penstock.app import Backend

LEASE, HOUR = 1.0, 3600.0
WRITERS, PARCELS, KILLS = 4, 30, 2
PIECE = 100
STACKERS, STACKED = 3, 40
SHELVES_OF = [
    name
    for writer in range(STACKERS)
    for number in range(STACKED)
    for name in (outgoing.SHELVES[number % len(outgoing.SHELVES)], outgoing.SHELVES[writer % 2])
]
ALL = Counter({f"{writer}.{number}": 1 for writer in range(WRITERS) for number in range(PARCELS)})


class Depot:
    """The processes of a test."""

    def __init__(self, url: str, folder: Path, stack: ExitStack) -> None:
        self._url, self._stack = url, stack
        self.outside = folder / "outside"
        self.outside.touch()

    def process(self, role: str, *arguments: str, lease: float = LEASE) -> Process:
        """One more process, which is ready."""
        made = Process(
            role,
            self._url,
            *arguments,
            program="stage.outgoing",
            lease=lease,
            outside=self.outside,
            synchronous="normal",
        )
        self._stack.callback(made.close)
        made.expect("ready")
        return made

    def told(self) -> list[list[str]]:
        """What the outside world was told, in order: which parcel, and the id of the message."""
        return [line.split() for line in self.outside.read_text().splitlines()]


@contextmanager
def depot(url: str, folder: Path) -> Iterator[Depot]:
    """Processes for the time of a block."""
    with ExitStack() as stack:
        yield Depot(url, folder, stack)


async def delivered(backend: Backend, count: int) -> bool:
    """Whether both outboxes have come so far."""
    rows = [await outbox_row(backend, name) for name in ("label", "dispatch")]
    return all(row.delivered >= count for row in rows)


@pytest.mark.long
async def test_relays_are_killed_while_others_write(database_url: str, tmp_path: Path) -> None:
    async with outgoing.app.open(database_url) as backend:
        with depot(database_url, tmp_path) as own:
            relays = [own.process("relay") for _ in range(2)]
            writers = [own.process("write", str(number), str(PARCELS)) for number in range(WRITERS)]
            for turn in range(KILLS):
                count = WRITERS * PARCELS * turn // (2 * KILLS)
                await until(lambda: delivered(backend, count))  # noqa: B023 - it is awaited here
                relays[turn % 2].kill()
                relays[turn % 2] = own.process("relay")
            for writer in writers:
                assert writer.wait() == 0
            await until(lambda: delivered(backend, WRITERS * PARCELS))
            assert [relay.stop() for relay in relays] == [0, 0]
            assert Counter(await backend.run_query(outgoing.labels)) == ALL, "each once"
            told = own.told()
            assert {parcel for parcel, _ in told} == set(ALL), "each at least once"
            ids = dict(told)
            assert {(parcel, id_) for parcel, id_ in told} == set(ids.items()), "with the same id each time"
            assert len(told) - len(ALL) <= KILLS * PIECE
            for one in range(WRITERS):
                first = list(dict.fromkeys(parcel for parcel, _ in told if parcel.startswith(f"{one}.")))
                assert first == [f"{one}.{number}" for number in range(PARCELS)], "in the order of its commits"


async def test_rows_that_many_processes_change_keep_their_order_while_relays_are_killed(
    database_url: str, tmp_path: Path
) -> None:
    """All along: each time that something more was handed over, the relay that has been there for longer is killed."""
    async with outgoing.app.open(database_url) as backend:
        await backend.run_mutation(outgoing.stack, shelves=list(outgoing.SHELVES))
        with depot(database_url, tmp_path) as own:
            relays = deque(own.process("relay") for _ in range(2))
            writers = [own.process("stack", str(number), str(STACKED)) for number in range(STACKERS)]
            total = 2 * STACKERS * STACKED
            for turn in range(2 * KILLS):
                count = total * turn // (4 * KILLS) + 1
                await until(lambda: noted(backend, count))  # noqa: B023 - it is awaited here
                relays.popleft().kill()
                relays.append(own.process("relay"))
            for writer in writers:
                assert writer.wait() == 0
            await until(lambda: noted(backend, total))
            assert [relay.stop() for relay in relays] == [0, 0]
            counts = Counter(SHELVES_OF)
            assert sum(counts.values()) == total
            changes = {name: [f"{name}.{n}" for n in range(1, counts[name] + 1)] for name in outgoing.SHELVES}
            every = Counter(one for known in changes.values() for one in known)
            assert Counter(await backend.run_query(outgoing.seen)) == every, "each once"
            told = own.told()
            ids = dict(told)
            assert {(change, id_) for change, id_ in told} == set(ids.items()), "with the same id each time"
            assert len(told) - total <= 2 * KILLS * PIECE
            for name, known in changes.items():
                assert list(dict.fromkeys(one for one, _ in told if one.startswith(f"{name}."))) == known, "in order"


async def noted(backend: Backend, count: int) -> bool:
    """Whether the outboxes of shelves have come so far."""
    rows = [await outbox_row(backend, name) for name in ("note", "report")]
    return all(row.delivered >= count for row in rows)


async def test_a_relay_that_is_frozen_past_its_lease_does_nothing_any_more(database_url: str, tmp_path: Path) -> None:
    async with outgoing.app.open(database_url) as backend:
        with depot(database_url, tmp_path) as own:
            frozen = own.process("relay")
            await backend.run_mutation(outgoing.put, writer=0, numbers=[0])
            await until(lambda: delivered(backend, 1))
            frozen.freeze()
            other = own.process("relay")
            await backend.run_mutation(outgoing.put, writer=0, numbers=[1, 2])
            await until(lambda: delivered(backend, 3))
            frozen.thaw()
            await backend.run_mutation(outgoing.put, writer=0, numbers=[3, 4])
            await until(lambda: delivered(backend, 5))
            assert Counter(await backend.run_query(outgoing.labels)) == Counter({f"0.{n}": 1 for n in range(5)})
            assert [parcel for parcel, _ in own.told()] == [f"0.{n}" for n in range(5)]
            assert [one.stop() for one in (frozen, other)] == [0, 0]


async def test_a_relay_that_is_stopped_is_followed_at_once(database_url: str, tmp_path: Path) -> None:
    async with outgoing.app.open(database_url) as backend:
        with depot(database_url, tmp_path) as own:
            first = own.process("relay", lease=HOUR)
            await backend.run_mutation(outgoing.put, writer=0, numbers=[0])
            await until(lambda: delivered(backend, 1))
            own.process("relay", lease=HOUR)
            await backend.run_mutation(outgoing.put, writer=0, numbers=list(range(1, 30)))
            assert first.stop() == 0
            await until(lambda: delivered(backend, 30))
            assert [parcel for parcel, _ in own.told()] == [f"0.{n}" for n in range(30)], "and nothing twice"


@pytest.fixture(autouse=True)
def _no_outside(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The test's own process tells nobody."""
    monkeypatch.setattr(outgoing, "outside", None)
