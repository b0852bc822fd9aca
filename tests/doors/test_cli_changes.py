"""``penstock changes``: the feed as people and programs see it, and a reader that is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from stage.feed import opened, write

from penstock.changes.interest import Interest
from penstock.changes.position import BEGINNING
from penstock.clock import SystemClock
from penstock.store.store import Store

if TYPE_CHECKING:
    from doors.cli_fixtures import Console

pytest_plugins = ("doors.cli_fixtures",)

BOOKINGS = Interest(name="bookings", table="booking", key=["id"])


def on_store(url: str, work: Callable[[Store], Awaitable[None]]) -> None:
    """Do something on the database of the command."""

    async def main() -> None:
        async with opened(url) as store:
            await work(store)

    asyncio.run(main())


@pytest.fixture
def captured(console: Console, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Console:
    """A program whose bookings are captured for two readers, one of which a worker reads; two were made."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    console.write_bookings()
    console.ok("migrate")
    shown = console.ok("changes").out
    assert ("no readers" in shown, "no interests" in shown) == (True, True)

    async def begin(store: Store) -> None:
        now = SystemClock().now()
        await store.interests.declare([BOOKINGS], now)
        assert await store.changes.register("mail", now, BEGINNING)
        assert await store.changes.register("ledger", now, BEGINNING)
        lease = await store.leases.take("host:7", timedelta(hours=1), now)
        assert await store.changes.take("ledger", lease) == BEGINNING

    on_store(database_url, begin)
    for customer in ("Ada", "Bob"):
        console.ok("run", "book", f"customer={customer}", "phone=1")
    return console


def test_readers_interests_and_room_are_shown(captured: Console, database_url: str) -> None:
    async def go_on(store: Store) -> None:
        await store.changes.place("mail", SystemClock().now())
        (row,) = await store.interests.list()
        on = " on booking" if store.dialect.schemas else ""
        await write(store, f"drop trigger _penstock_change_{row.id}_update{on}")

    on_store(database_url, go_on)
    shown = captured.ok("changes").out.splitlines()
    assert shown[0].split() == ["reader", "unread", "behind", "moved", "read", "by"]
    assert shown[1].split()[:2] == ["ledger", "2"]
    assert shown[1].endswith("host:7")
    assert shown[2].split()[:3] == ["mail", "0", "-"]
    assert shown[2].endswith("nobody")
    assert shown[4].split() == ["interest", "table", "state"]
    assert shown[5].split() == ["bookings", "booking", "missing"]
    assert shown[7].startswith("The feed takes ")
    found = captured.ok("changes", "--json").json
    assert [(one["name"], one["rows"], one["worker"]) for one in found["readers"]] == [
        ("ledger", 2, "host:7"),
        ("mail", 0, None),
    ]
    assert [(one["name"], one["table"], one["state"]) for one in found["interests"]] == [
        ("bookings", "booking", "missing")
    ]
    assert found["bytes"] > 0


def test_a_reader_is_dropped_if_somebody_is_sure(captured: Console) -> None:
    refused = captured("changes", "drop", "mail")
    assert (refused.code, refused.out) == (1, "")
    assert "mail has 2 changes unread" in refused.err
    assert "About 0 changes of them are kept for it alone" in refused.err
    assert "--yes" in refused.err
    done = captured.ok("changes", "drop", "mail", "--yes")
    assert "mail is dropped" in done.err
    assert [one["name"] for one in captured.ok("changes", "--json").json["readers"]] == ["ledger"]
    done = captured.ok("changes", "drop", "ledger", "--yes")
    assert "About 2 changes of them are kept for it alone" in done.err
    assert "host:7 reads it now" in done.err
    unknown = captured("changes", "drop", "ledger", "--yes")
    assert (unknown.code, "There is no reader 'ledger'" in unknown.err) == (1, True)
