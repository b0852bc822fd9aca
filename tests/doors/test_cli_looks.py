"""Commands that tell how things stand: changes, locks, keys, live queries, and what the doctor finds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest
from doors.cli_fixtures import Console
from stage.feed import opened, write
from stage.waits import SOON

from penstock import App, LockLost
from penstock.changes.interest import Interest
from penstock.changes.position import BEGINNING
from penstock.clock import SystemClock
from penstock.identity.api_key import PREFIX
from penstock.store.store import Store

# ----- changes

BOOKINGS = Interest(name="bookings", table="booking", key=["id"])


def on_store(url: str, work: Callable[[Store], Awaitable[object]]) -> None:
    """Do something on the database of the command."""

    async def main() -> None:
        async with opened(url) as store:
            await work(store)

    asyncio.run(main())


@pytest.fixture
def captured(shell: Console, database_url: str) -> Console:
    """A program whose two bookings are captured for two readers; a worker reads for one of them."""
    shell.write_bookings()
    shell.ok("migrate")
    shown = shell.ok("changes").out
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
        shell.ok("run", "book", f"customer={customer}", "phone=1")
    return shell


def test_readers_interests_and_room_are_shown(captured: Console, database_url: str) -> None:
    async def go_on(store: Store) -> None:
        await store.changes.place("mail", SystemClock().now())
        (row,) = await store.interests.list()
        on = " on booking" if store.dialect.schemas else ""
        await write(store, f"drop trigger _penstock_change_{row.id}_update{on}")

    on_store(database_url, go_on)
    shown = captured.ok("changes").out.splitlines()
    assert (shown[1].split()[:2], shown[1].split()[-1]) == (["ledger", "2"], "host:7")
    assert (shown[2].split()[:3], shown[2].split()[-1]) == (["mail", "0", "-"], "nobody")
    assert shown[5].split() == ["bookings", "booking", "missing"]
    assert shown[7].startswith("The feed takes ")
    found = captured.ok("changes", "--json").json
    assert found["bytes"] > 0


def test_a_reader_is_dropped_if_somebody_is_sure(captured: Console) -> None:
    refused = captured("changes", "drop", "mail")
    assert (refused.code, "mail has 2 changes unread" in refused.err, "--yes" in refused.err) == (1, True, True)
    captured.ok("changes", "drop", "mail", "--yes")
    assert [one["name"] for one in captured.ok("changes", "--json").json["readers"]] == ["ledger"]
    done = captured.ok("changes", "drop", "ledger", "--yes")
    assert "About 2 changes of them are kept for it alone" in done.err
    assert "host:7 reads it now" in done.err


def test_the_feed_is_emptied_once_its_readers_have_read(captured: Console, database_url: str) -> None:
    refused = captured("changes", "empty")
    assert (refused.code, "keeps 2 changes" in refused.err) == (1, True), refused.err

    async def read_on(store: Store) -> None:
        await store.changes.place("ledger", SystemClock().now())

    captured.ok("changes", "drop", "mail", "--yes")
    on_store(database_url, read_on)
    captured.ok("changes", "empty")

    async def look(store: Store) -> None:
        assert (await store.changes.read(BEGINNING, 9)).changes == []

    on_store(database_url, look)


# ----- locks and keys


def test_a_lock_is_taken_away_from_the_holder_that_is_named(console: Console) -> None:
    console.write_bookings()
    console.ok("migrate")
    assert console.ok("locks").out == "no locks\n"
    app = App(database=f"sqlite:///{console.folder / 'penstock.db'}")
    with app.sync.open(push_schema=False) as backend:
        lock = backend.with_lock("account:ada")
        fence = lock.__enter__().fence
        refused = console("locks", "release", "account:ada", "--fence", str(fence + 1))
        assert (refused.code != 0, "does not have the holder" in refused.err) == (True, True)
        console.ok("locks", "release", "account:ada", "--fence", str(fence))
        with pytest.raises(LockLost, match="was taken away"):
            lock.__exit__(None, None, None)


def test_a_key_is_created_listed_and_revoked(console: Console) -> None:
    console.write_bookings()
    console.ok("migrate")
    assert console.ok("keys").out == "no keys\n"
    made = console.ok("keys", "create", "billing", "--scope", "read", "--scope", "write", "--expires", "90d")
    key = made.out.strip()
    assert key.startswith(PREFIX)
    assert "cannot be shown again" in made.err
    (first,) = console.ok("keys", "--json").json["keys"]
    assert (first["name"], first["scopes"]) == ("billing", ["read", "write"])
    listed = console.ok("keys").out
    assert PREFIX not in listed
    assert key.encode() not in (console.folder / "penstock.db").read_bytes()
    assert "already" in console("keys", "create", "billing").err
    assert "how long the key holds" in console("keys", "create", "late", "--expires", "0d").err


# ----- live queries

TOKEN = "the-admins-token"


@contextmanager
def serving(console: Console) -> Iterator[str]:
    """The URL of a server of the program about bookings."""
    console.write_bookings(("class Booking(Table, live=False):", "class Booking(Table):"))
    with console.start("serve", "--port", "0") as server:
        yield server.wait_for(r"server.started url=(\S+)")[1]


@contextmanager
def subscribed(url: str, customer: str) -> Iterator[Iterator[str]]:
    """The events that somebody gets who watches the bookings of a customer."""
    said = {"path": "bookings:upcoming", "args": f'{{"customer": "{customer}"}}'}
    with httpx.stream("GET", f"{url}/api/subscribe", params=said, timeout=30) as response:
        lines = (line for line in response.iter_lines() if line.startswith("data:"))
        next(lines)
        yield lines


def book(url: str, customer: str) -> None:
    body: dict[str, Any] = {"path": "bookings:book", "args": {"customer": customer, "phone": "1"}}
    assert httpx.post(f"{url}/api/mutation", json=body, timeout=SOON).json()["status"] == "success"


def test_watched_queries_are_listed_with_the_cause_of_their_last_run_to_who_may_ask(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ADMIN_TOKEN", TOKEN)
    with serving(console) as url:
        assert console.ok("live", "--url", url).out == "no queries are watched\n"
        with subscribed(url, "Ada") as events, subscribed(url, "Ada"), subscribed(url, "Bob"):
            book(url, "Ada")
            next(events)
            _head, *rows = console.ok("live", "--url", f"{url}/").out.splitlines()
            (ada,) = [row for row in rows if "customer='Ada'" in row]
            (bob,) = [row for row in rows if "customer='Bob'" in row]
            query, arguments, caller, watchers, runs, each_minute = ada.split()[:6]
            assert (query, arguments, caller, watchers) == ("bookings:upcoming", "customer='Ada'", "anybody", "2")
            assert (int(runs) > 1, float(each_minute)) == (True, float(runs))
            assert "booking: enter of" in ada
            assert bob.split()[3] == "1"
            assert "booking: enter of" not in bob
            found = console.ok("live", "--url", url, "--limit", "1", "--json").json
            assert found["more"] == 1
            (costliest,) = found["queries"]
            assert len(costliest["causes"]) == costliest["runs"]
        monkeypatch.setenv("PENSTOCK_ADMIN_TOKEN", "the-wrong-token")
        refused = console("live", "--url", url)
        assert (refused.code, "PENSTOCK_ADMIN_TOKEN" in refused.err) == (1, True)
        assert f"The server at {url} answered with status 401." in refused.err
    assert f"No server answers at {url}" in console("live", "--url", url, "--json").err
    assert "is not the address of a server" in console("live", "--url", "file:///etc/passwd").err


# ----- doctor


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
