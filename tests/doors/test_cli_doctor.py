"""``penstock doctor``: its words within 80 columns, its JSON, its exit status, and the conflicts that servers count."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import pytest
from stage.feed import opened

from penstock.clock import SystemClock
from penstock.store.contract.store import Store

if TYPE_CHECKING:
    from doors.cli_fixtures import Console

pytestmark = pytest.mark.one_store_each

pytest_plugins = ("doors.cli_fixtures",)

METRICS = """# TYPE penstock_calls_total counter
penstock_calls_total{function="bookings:book",outcome="success"} 300.0
penstock_calls_total{function="bookings:book",outcome="error"} 50.0
# TYPE penstock_conflicts_total counter
penstock_conflicts_total{function="bookings:book"} 120.0
"""


class Metrics(BaseHTTPRequestHandler):
    """The metrics of a process, for callers with the token."""

    def do_GET(self) -> None:
        self.send_response(200 if self.headers["authorization"] == "Bearer let-me-in" else 401)
        self.end_headers()
        self.wfile.write(METRICS.encode())

    def log_message(self, *_args: object) -> None:
        pass


@contextmanager
def metrics_served() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Metrics) as server:
        thread = Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/metrics"
        finally:
            server.shutdown()
            thread.join()


def on_store(url: str, work: Callable[[Store], Awaitable[object]]) -> None:
    async def main() -> None:
        async with opened(url) as store:
            await work(store)

    asyncio.run(main())


def test_findings_have_an_exit_status_and_fit_the_screen(
    bookings: Console, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bookings.ok("doctor").out == "nothing found\n"
    assert bookings.ok("doctor", "--json").json == {"findings": []}

    monkeypatch.setenv("PENSTOCK_METRICS_TOKEN", "let-me-in")
    with metrics_served() as url:
        hot = bookings("doctor", "--metrics", url, "--metrics", url)
        monkeypatch.setenv("PENSTOCK_METRICS_TOKEN", "wrong")
        refused = bookings("doctor", "--metrics", url)
    assert hot.code == 1
    assert "warning   function bookings:book  (row-contended)" in hot.out.splitlines()
    assert "It conflicted 240 times in 700 runs" in hot.out
    assert (refused.code, "No metrics could be read" in refused.err) == (1, True)
    refused = bookings("doctor", "--metrics", "/metrics")
    assert (refused.code, "is not the address of metrics" in refused.err) == (1, True)

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
