"""Errors in Sentry: each once, with the function, the job or the request, and the stack."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from recipes.running import Recipe

RECIPE = "sentry"


@contextmanager
def ingest() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that takes what Sentry's SDK sends: its address for the SDK, and the events so far."""
    found: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            lines = body.splitlines()
            for header, payload in zip(lines[1::2], lines[2::2], strict=False):
                if json.loads(header).get("type") == "event":
                    found.append(json.loads(payload))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://key@127.0.0.1:{server.server_port}/1", found
        server.shutdown()


@pytest.mark.long
@pytest.mark.both_stores
def test_each_error_arrives_once_with_its_function(recipe: Recipe, database_url: str) -> None:
    with ingest() as (dsn, events):
        recipe.environment |= {"DATABASE_URL": database_url, "SENTRY_DSN": dsn}
        web = recipe.start("penstock", "serve", "--services", "--port", "{port}")
        for customer in ("", "ada"):
            httpx.post(f"{web.url}/api/mutation", json={"path": "shop:place", "args": {"customer": customer}})
        web.wait_for(lambda: len(events) >= 3)
        assert web.stop() == 0, "which sends what is left"
    found = {one["transaction"]: (one["exception"]["values"][0], one["tags"]) for one in events}
    assert len(events) == 3, "a job's attempts before the last are no events"
    assert {name: error["type"] for name, (error, _tags) in found.items()} == {
        "shop:place": "ValueError", "shop:confirm": "ConnectionError", "shop:ship": "LookupError",
    }  # fmt: skip
    for name, (error, tags) in found.items():
        assert error["stacktrace"]["frames"][-1]["function"] == name.partition(":")[2]
        assert tags["function"] == name
        assert ("request_id" in tags) is (name == "shop:place")
        assert ("job" in tags) is (name != "shop:place")
