"""``penstock doctor``: its words within 80 columns, its JSON, its exit status, and conflicts that others counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from stage.feed import opened

from penstock.clock import SystemClock
from penstock.store.store import Store

if TYPE_CHECKING:
    from doors.cli_fixtures import Console

pytest_plugins = ("doors.cli_fixtures",)


def on_store(url: str, work: Callable[[Store], Awaitable[object]]) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await work(store)

    asyncio.run(main())


def test_findings_have_an_exit_status_and_fit_the_screen(bookings: Console, database_url: str) -> None:
    assert bookings.ok("doctor").out == "nothing found\n"
    assert bookings.ok("doctor", "--json").json == {"findings": []}

    numbers = {"function bookings:book": {"conflict": 240.0, "success": 700.0}}
    on_store(database_url, lambda store: store.logbook.write(SystemClock().now() - timedelta(minutes=30), numbers, []))
    hot = bookings("doctor")
    assert hot.code == 1
    assert "warning   function bookings:book  (row-contended)" in hot.out.splitlines()
    assert "It conflicted 240 times in 700 runs" in hot.out
    on_store(database_url, lambda store: store.logbook.prune(SystemClock().now() + timedelta(days=8), 1))

    past = SystemClock().now() - timedelta(hours=1)
    on_store(database_url, lambda store: store.leases.take("host:7", timedelta(seconds=30), past))
    found = bookings("doctor")
    assert found.code == 1
    lines = found.out.splitlines()
    assert lines[0] == "warning   lease 1  (lease-expired)"
    assert "          $ penstock worker" in lines
    assert lines[-1] == "1 warning"
    assert max(map(len, lines)) <= 80
    (told,) = bookings("doctor", "--json").json["findings"]
    assert (told["code"], told["severity"], told["command"]) == ("lease-expired", "warning", "penstock worker")


def test_a_database_that_is_away_is_a_finding(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    console.write_bookings()
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none?connect_timeout=1")
    monkeypatch.setenv("PENSTOCK_DATABASE_WAIT", "0.1")
    found = console("doctor")
    assert (found.code, "(database-away)" in found.out) == (2, True)
