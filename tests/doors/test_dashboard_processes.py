"""The dashboard tells the truth of all processes: of two servers with a dashboard, and a worker without one."""

from __future__ import annotations

import html
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest

from penstock import (
    ActionCtx,
    App,
    Message,
    MutationCtx,
    QueryCtx,
    Retry,
    SyncTaskCtx,
    Table,
    WorkId,
    WorkResult,
    asgi_app,
)
from penstock.testing import TestApp, TestClock

app = App()
mail = app.workpool("mail", default_retry=Retry(max_attempts=2, initial_backoff=0.1))
log = logging.getLogger("shop.mail")
STAMP = f"{__name__}:stamp"


class Letter(Table, name="letter_of_processes"):
    to: str


@app.mutation
async def write(ctx: MutationCtx, to: str) -> None:
    await ctx.db.insert(Letter(to=to))
    await mail.with_options(retry=True, on_complete=sent).enqueue(ctx, send, to=to)
    log.warning("wrote to %s", to)


@app.query
async def letters(ctx: QueryCtx) -> int:
    return len(await ctx.db.query(Letter).take(9))


@app.internal_action
async def send(ctx: ActionCtx, to: str) -> str:
    log.warning('{"to": "%s", "password": "hunter2"}', to)
    await ctx.run_query(letters)
    if to == "nobody":
        raise ValueError("no mailbox")
    return to


@app.internal_mutation
async def sent(ctx: MutationCtx, work_id: WorkId, result: WorkResult[str], context: Any) -> None:
    log.error("ended", exc_info=ValueError("told with its traceback"))


@app.reactive_task(Letter, name="stamp")
def stamp(ctx: SyncTaskCtx[Letter]) -> None:
    logging.getLogger().warning("stamped in a thread")


@app.outbox(Letter, name="ledger")
async def ledger(ctx: ActionCtx, message: Message[Letter]) -> None:
    log.warning("delivered")


@pytest.fixture(autouse=True)
def _logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("penstock"), "level", logging.INFO)
    logging.getLogger("penstock").manager._clear_cache()  # type: ignore[attr-defined]


@asynccontextmanager
async def looking(test: TestApp) -> AsyncIterator[Any]:
    asgi = asgi_app(test.app, backend=test, dashboard=True)
    transport = httpx.ASGITransport(asgi, client=("127.0.0.1", 1))
    headers = {"authorization": "Bearer top-secret-token-of-the-test", "origin": "http://localhost"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
        await http.post("/dashboard/sign-in", data={"token": "top-secret-token-of-the-test"})

        async def see(path: str) -> str:
            answer = await http.get(f"/dashboard{path}")
            assert answer.status_code == 200, answer.text
            return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", answer.text.partition("<main")[2])).split())

        yield see, http


async def test_two_servers_show_what_a_worker_ran_and_logged(database_url: str) -> None:
    clock = TestClock()
    settings: dict[str, Any] = {"clock": clock, "admin_token": "top-secret-token-of-the-test"}
    async with (
        TestApp(app, database_url, **settings) as first,
        TestApp(app, database_url, **settings) as second,
        TestApp(app, database_url, **settings) as worker,
        looking(first) as (see_first, http),
        looking(second) as (see_second, _),
    ):
        for to in ("Ada", "nobody"):
            body = {"path": write.name, "args": {"to": to}}
            assert (await http.post("/api/mutation", json=body, headers={"x-request-id": f"r-{to}"})).status_code == 200
        await worker.run_until_idle(raise_errors=False)
        await worker.relay.drain()
        (ada,) = [one for one in await first.jobs() if one.function == send.name and one.args["to"] == "Ada"]
        (stamped, *_) = [one for one in await first.jobs() if one.function == STAMP]
        clock.advance(timedelta(seconds=5))  # each process writes what it has counted
        for book in (first.engine, worker.engine):
            await book.write_logbook()
        await second.run_query(letters)  # its own are shown at once

        for see in (see_first, see_second):
            overview = await see("/")
            assert re.search(r"Ended 0\.\d/s", overview), overview
            assert "Ended 0.0/s" not in overview
            assert re.search(r"Failed 1 ", overview), overview
            assert re.search(r"Latency p95 [\d.]+ (µs|ms|s)", overview), overview
            functions = await see("/functions")
            for function, runs, errors in ((write.name, 2, 0), (send.name, 3, 2), (STAMP, 2, 0), (sent.name, 2, 0)):
                found = re.search(rf"{function} \w+ .*? (\d+) (\d+) (\d+) [\d.]+ (µs|ms|s) ", functions)
                assert found is not None, (function, functions)
                assert found.group(1, 2, 3) == (str(runs), str(errors), "0"), function
            shown = await see(f"/functions/{send.name}")
            assert "Start lag p95" in shown
            assert shown.count("ValueError: no mailbox") >= 2
            assert "shop.mail" in shown
            assert "hunter2" not in shown
            for page in (f"/jobs/{ada.id}", f"/timeline?of={ada.id}", "/timeline?of=r-Ada", f"/logs?job={ada.id}"):
                text = await see(page)
                assert '"to": "Ada"' in text, page
                assert "hunter2" not in text, page
                assert '"to": "nobody"' not in text, page
                assert "ended" in text, page  # its on_complete logs as well
            assert "wrote to Ada" in await see("/timeline?of=r-Ada")
            assert "told with its traceback" in await see(f"/functions/{sent.name}")
            assert "stamped in a thread" in await see(f"/jobs/{stamped.id}")
            assert "stamped in a thread" in await see(f"/functions/{STAMP}")
            assert "delivered" in await see("/outboxes/outbox?outbox=ledger")
            logs = await see("/logs")
            assert all(one in logs for one in ("http.request", "job.failed", "shop.mail", "root"))
