"""``penstock live``: the queries that a server watches for its clients, and servers that cannot be asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from stage.waits import SOON

if TYPE_CHECKING:
    from doors.cli_fixtures import Console

pytest_plugins = ("doors.cli_fixtures",)

TOKEN = "the-admins-token"


@contextmanager
def serving(console: Console, **environment: str) -> Iterator[str]:
    """The URL of a server of the program about bookings."""
    console.write_bookings(("class Booking(Table, live=False):", "class Booking(Table):"))
    with console.start("serve", "--port", "0", **environment) as server:
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


def test_watched_queries_are_listed_with_the_cause_of_their_last_run(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ADMIN_TOKEN", TOKEN)
    with serving(console) as url:
        assert console.ok("live", "--url", url).out == "no queries are watched\n"
        with subscribed(url, "Ada") as events, subscribed(url, "Ada"), subscribed(url, "Bob"):
            book(url, "Ada")
            next(events)
            head, *rows = console.ok("live", "--url", f"{url}/").out.splitlines()
            assert head.split("  ")[0].strip() == "query"
            (ada,) = [row for row in rows if "customer='Ada'" in row]
            (bob,) = [row for row in rows if "customer='Bob'" in row]
            query, arguments, caller, watchers, runs, each_minute = ada.split()[:6]
            assert (query, arguments, caller, watchers) == ("bookings:upcoming", "customer='Ada'", "anybody", "2")
            assert (int(runs) > 1, float(each_minute)) == (True, float(runs))
            assert "booking: enter of" in ada
            assert bob.split()[3] == "1"
            assert "booking: enter of" not in bob
            found = console.ok("live", "--url", url, "--limit", "1", "--json").json
            assert found.keys() == {"queries", "more"}
            assert found["more"] == 1
            (costliest,) = found["queries"]
            assert (costliest["function"], costliest["caller"]) == ("bookings:upcoming", None)
            assert len(costliest["causes"]) == costliest["runs"]
            more = console.ok("live", "--url", url, "--limit", "1")
            assert more.err == "There is 1 more: --limit\n"


def test_a_server_that_cannot_be_asked_is_named(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(console, PENSTOCK_ADMIN_TOKEN=TOKEN) as url:
        for token in ("", "the-wrong-token"):
            monkeypatch.setenv("PENSTOCK_ADMIN_TOKEN", token)
            refused = console("live", "--url", url)
            assert refused.code == 1
            assert f"The server at {url} answered with status 401." in refused.err
            assert "PENSTOCK_ADMIN_TOKEN" in refused.err
    gone = console("live", "--url", url, "--json")
    assert gone.code == 1
    assert f"No server answers at {url}" in gone.err
    for wrong in ("localhost:8000", "file:///etc/passwd"):
        assert "is not the address of a server" in console("live", "--url", wrong).err
