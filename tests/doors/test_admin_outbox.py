"""The admin interface of outboxes: what is seen of them there, and what is changed."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from stage.desk import Desk, desk, refused, stranger
from stage.mailroom import NAMES, app, failing, got, hand_over, put, put_and_fail

from penstock.errors import DatabaseBusy


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    failing.clear()
    got.clear()
    yield
    failing.clear()
    got.clear()


@asynccontextmanager
async def mailroom(database: str, **settings: Any) -> AsyncIterator[Desk]:
    """The desk of a mailroom in which letters have failed in each way."""
    async with desk(database, app, **settings) as admin:
        await put_and_fail(admin.backend)
        yield admin


async def status(admin: Desk, name: str) -> dict[str, Any]:
    found: dict[str, Any] = (await admin.get("outbox/show", outbox=name))["outbox"]
    return found


async def messages(admin: Desk, name: str, **words: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await admin.get("outbox/messages", outbox=name, **words))["messages"]
    return found


async def pages(admin: Desk, name: str, limit: int) -> list[dict[str, Any]]:
    """All pages of an outbox's messages."""
    found = [await admin.get("outbox/messages", outbox=name, limit=limit)]
    while (after := found[-1]["next"]) is not None:
        found.append(await admin.get("outbox/messages", outbox=name, limit=limit, after=after))
    return found


# ----- what is seen


async def test_outboxes_are_seen(database_url: str) -> None:
    async with mailroom(database_url) as admin:
        found = {one["name"]: one for one in (await admin.get("outbox"))["outboxes"]}
        assert list(found) == sorted(NAMES)
        shown = found["post"]
        assert (shown["messages"], shown["halted"], shown["declared"], shown["paused"]) == (3, True, True, False)
        assert (shown["source"], shown["kind"], shown["error"]) == (
            "letter_of_mailroom",
            "action",
            "ConnectionError: no way for bad",
        )
        assert (found["files"]["parked"], found["files"]["delivered"]) == (2, 2)
        assert (found["sorted"]["waits_for"], found["sorted"]["waiting"]) == (1, 2)
        assert found["counts"]["delivered"] == 4
        assert await status(admin, "post") == shown
        position = json.loads(shown["position"])
        assert position.keys() == {"seen", "batch", "last", "high"}


async def test_the_message_that_holds_an_outbox_is_shown_with_its_traceback(database_url: str) -> None:
    async with mailroom(database_url) as admin:
        for name, state in (("post", "failing"), ("sorted", "halted")):
            (message,) = (await admin.get("outbox/show", outbox=name))["messages"]
            assert (message["state"], message["kind"], message["attempts"]) == (state, "insert", 1)
            assert message["error"] == "ConnectionError: no way for bad"
            assert "in work\n" in message["traceback"]
            assert (message["content"]["name"], message["content"]["town"]) == ("bad", "Brno")
            assert message["id"]
        for name in ("files", "counts"):
            assert (await admin.get("outbox/show", outbox=name))["messages"] == []


async def test_messages_come_in_pages(database_url: str) -> None:
    async with mailroom(database_url) as admin:
        for name, states in (
            ("post", ["failing"]),
            ("files", ["parked", "parked"]),
            ("sorted", ["halted", "waiting", "waiting"]),
        ):
            whole = await messages(admin, name)
            assert [one["state"] for one in whole] == states
            single = [page["messages"] for page in await pages(admin, name, limit=1)]
            assert [one for page in single for one in page] == whole
        assert [one["state"] for one in await messages(admin, "sorted", state="halted")] == ["halted"]
        assert len(await messages(admin, "sorted", state="halted,waiting")) == 3
        assert len(await messages(admin, "sorted", state=["halted", "waiting"])) == 3
        assert await messages(admin, "sorted", state="parked") == []


async def test_a_page_behind_the_next_message_goes_on_with_those_aside(database_url: str) -> None:
    async with desk(database_url, app) as admin:
        await hand_over(admin.backend)
        failing.add("bad")
        await admin.backend.run_mutation(put, ["bad", "good"])
        await hand_over(admin.backend)
        store = admin.backend.engine.store
        (row,) = [one for one in await store.outboxes.list() if one.plan.name == "files"]
        (parked,) = await store.outboxes.aside(row.id, ("parked",), 10)
        assert parked.trouble is not None
        await store.outboxes.halt("files", parked.trouble)  # as an outbox that has both
        first = await admin.get("outbox/messages", outbox="files", limit=1)
        assert [one["state"] for one in first["messages"]] == ["failing"]
        second = await admin.get("outbox/messages", outbox="files", limit=1, after=first["next"])
        assert [one["state"] for one in second["messages"]] == ["parked"]
        assert second["messages"][0]["number"] == parked.change.seq


async def test_a_page_of_large_messages_ends_early(sqlite_url: str) -> None:
    failing.add("talk")
    async with desk(sqlite_url, app, max_argument_bytes=2**24) as admin:
        await hand_over(admin.backend)
        for number in range(60):
            await app.outboxes.send(admin.backend, "talks", {"number": number, "text": "x" * 200_000})
        await hand_over(admin.backend)
        found = await pages(admin, "talks", limit=1000)
        assert [one["content"]["number"] for page in found for one in page["messages"]] == list(range(60))
        assert len(found) == 2


async def test_outboxes_of_other_programs_are_seen_and_changed(database_url: str) -> None:
    async with mailroom(database_url) as own, desk(database_url, stranger, clock=own.backend.clock) as other:
        assert not any(one["declared"] for one in (await other.get("outbox"))["outboxes"])
        (message,) = await messages(other, "post")
        assert message["error"] == "ConnectionError: no way for bad"
        failing.clear()
        assert await other.post("outbox/retry", outbox="post") == {"outbox": "post", "retried": 1}
        await hand_over(own.backend)
        assert (await status(other, "post"))["messages"] == 0
        refusal = await other.http.post("/admin/outbox/rebuild", json={"outbox": "counts"})
        assert "has no declaration in this program" in refused(refusal, 409, "NotRebuildable")
        assert await other.post("outbox/drop", outbox="counts") == {"outbox": "counts", "dropped": True}


# ----- what is changed


async def test_a_message_is_skipped_for_a_reason(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with mailroom(database_url) as admin:
        (failed,) = await messages(admin, "post")
        body = {"outbox": "post", "number": failed["number"], "reason": "sent by hand,\nsee the ticket"}
        done = await admin.post("outbox/skip", **body)
        assert done == {"outbox": "post", "number": failed["number"], "skipped": True}
        assert "reason=sent by hand, see the ticket" in caplog.text
        again = await admin.http.post("/admin/outbox/skip", json=body)
        assert "has no message" in refused(again, 404, "MessageNotFound")
        failing.clear()
        got.clear()
        await hand_over(admin.backend)
        assert [name for outbox, name in got if outbox == "post"] == ["worse", "bad"]
        assert (await status(admin, "post"))["messages"] == 0


async def test_an_outbox_is_rebuilt(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with mailroom(database_url) as admin:
        assert await admin.post("outbox/rebuild", outbox="counts") == {"outbox": "counts", "rebuilding": True}
        assert (await status(admin, "counts"))["older_rows"] == 0
        await hand_over(admin.backend)
        shown = await status(admin, "counts")
        assert (shown["older_rows"], shown["messages"]) == (None, 0)
        refusal = await admin.http.post("/admin/outbox/rebuild", json={"outbox": "post"})
        assert "declares no reset" in refused(refusal, 409, "NotRebuildable")

        failing.add("clear")
        caplog.set_level(logging.ERROR)
        broken = await admin.http.post("/admin/outbox/rebuild", json={"outbox": "counts"})
        refused(broken, 500, "InternalServerError")
        assert "RuntimeError: not now" in caplog.text
        assert (await status(admin, "counts"))["older_rows"] is None, "nothing has happened"


async def test_rows_are_sent_again(database_url: str) -> None:
    async with mailroom(database_url) as admin:
        await admin.post("outbox/move", outbox="post", to="end")
        got.clear()
        failing.clear()
        answer = await admin.post("outbox/resend", outbox="post", where="name in ['bad', 'good']")
        assert answer == {"outbox": "post", "resent": 3}
        await hand_over(admin.backend)
        assert sorted(name for outbox, name in got if outbox == "post") == ["bad", "bad", "good"]
        wrong = await admin.http.post("/admin/outbox/resend", json={"outbox": "post", "where": "nobody == 1"})
        assert "nobody" in refused(wrong, 400, "ValueInvalid")


async def test_a_reset_that_writes_too_much_is_told_as_such(database_url: str) -> None:
    async with desk(database_url, app, max_rows_written=3) as admin:
        await hand_over(admin.backend)
        for _ in range(2):
            await admin.backend.run_mutation(put, ["a", "b"])
            await hand_over(admin.backend)
        assert (await status(admin, "counts"))["delivered"] == 4
        answer = await admin.http.post("/admin/outbox/rebuild", json={"outbox": "counts"})
        refused(answer, 400, "LimitExceeded")
        assert (await status(admin, "counts"))["older_rows"] is None


async def test_a_name_may_go_without_its_module_if_it_is_the_only_one(database_url: str) -> None:
    async with mailroom(database_url) as admin:
        store = admin.backend.engine.store
        (plan,) = [one.plan for one in await store.outboxes.list() if one.plan.name == "post"]
        for name in ("shop:mail", "shop/čeština:päckchen", "a:twice", "b:twice"):
            await store.outboxes.declare(replace(plan, name=name), None, admin.backend.clock.now())
        assert await admin.post("outbox/pause", outbox="mail") == {"outbox": "shop:mail", "paused": True}
        assert (await status(admin, "päckchen"))["name"] == "shop/čeština:päckchen"
        assert (await status(admin, "shop/čeština:päckchen"))["paused"] is False
        refused(await admin.http.get("/admin/outbox/show", params={"outbox": "twice"}), 404, "OutboxNotFound")
        assert (await status(admin, "b:twice"))["name"] == "b:twice"


async def test_a_busy_database_is_told_as_such(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def busy(*_arguments: Any, **_words: Any) -> Any:
        raise DatabaseBusy("Somebody holds the lock.", slow=True)

    async with mailroom(sqlite_url) as admin:
        monkeypatch.setattr(admin.backend.engine.store.outboxes, "pause", busy)
        answer = await admin.http.post("/admin/outbox/pause", json={"outbox": "post"})
        refused(answer, 503, "DatabaseBusy")
        assert answer.headers["retry-after"] == "1"


async def test_lag_grows_with_time(sqlite_url: str) -> None:
    async with mailroom(sqlite_url) as admin:
        before = (await status(admin, "post"))["seconds"]
        admin.backend.clock.advance(timedelta(minutes=1))
        assert (await status(admin, "post"))["seconds"] == pytest.approx(before + 60)
