"""The admin interface: who may enter, and what is seen and changed there."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from stage.desk import (
    BY_FILTER,
    CHANGES,
    READS,
    SECRET,
    TOKEN,
    app,
    desk,
    failing,
    refused,
    stranger,
)
from stage.waits import SOON

from penstock import TaskFilter
from penstock.api.tasks.selection import AT_ONCE, Part, change_rows
from penstock.errors import DatabaseBusy

if TYPE_CHECKING:
    from doors.cli_fixtures import Console

pytest_plugins = ("doors.cli_fixtures",)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    failing.clear()
    yield
    failing.clear()


# ----- who may enter


async def test_without_the_setting_there_is_nothing(sqlite_url: str) -> None:
    for dev, metrics in ((False, ""), (True, ""), (False, SECRET)):
        async with desk(sqlite_url, token="", dev=dev, metrics_token=metrics) as admin:
            nowhere = await admin.http.get("/nowhere")
            for path in (*READS, *CHANGES, "", "nowhere"):
                for headers in (TOKEN, {"authorization": "Bearer "}, {"authorization": "Bearer"}, {}):
                    for method in ("GET", "POST", "OPTIONS"):
                        answer = await admin.http.request(method, f"/admin/{path}", headers=headers)
                        assert (answer.status_code, answer.content) == (404, nowhere.content), (method, path)
            assert (await admin.http.get("/admin")).content == nowhere.content


STRANGERS = [
    None,
    b"",
    b"Bearer",
    b"Bearer ",
    SECRET.encode(),
    b"Basic " + SECRET.encode(),
    b"Bearer " + SECRET.lower().encode(),
    b"Bearer " + SECRET.upper().encode(),
    b"Bearer " + SECRET[:-1].encode(),
    b"Bearer " + SECRET.encode() + b"x",
    b"Bearer " + SECRET.encode() + b" " + SECRET.encode(),
    b"Bearer \xff\xfe",
    b"Bearer " + b"x" * 60_000,
]


async def test_who_does_not_bring_the_token_sees_and_does_nothing(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "penstock")
    async with desk(sqlite_url) as admin:
        await admin.orders("a")
        admin.http.headers.pop("authorization")
        ways = itertools.product((*READS, *CHANGES, "nowhere", ""), ("GET", "HEAD", "POST", "OPTIONS"))
        for number, (path, method) in enumerate(ways):
            for authorization in STRANGERS[number % len(STRANGERS) :][:3]:  # each of them tries many ways
                headers = [] if authorization is None else [(b"authorization", authorization)]
                body = b'{"everything": true}' if method == "POST" else None
                query = {"token": SECRET, "admin_token": SECRET}
                answer = await admin.http.request(method, f"/admin/{path}", headers=headers, params=query, content=body)
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
                if method != "HEAD":
                    assert answer.json()["code"] == "Unauthenticated"
        assert await app.tasks.count(admin.backend, TaskFilter(task="ship")) == {"pending": 1}
    assert "Unauthenticated" in caplog.text
    assert SECRET not in caplog.text


async def test_the_token_is_never_told(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    async with desk(sqlite_url, dev=True) as admin:
        await admin.get("tasks")
        refused(await admin.http.get("/admin/tasks/records?x=1"), 400, "UnknownWord")
        assert SECRET not in caplog.text
        assert SECRET not in repr(admin.backend.config)
    console.write_bookings()
    monkeypatch.setenv("PENSTOCK_ADMIN_TOKEN", SECRET)
    for arguments in (("config",), ("config", "--json")):
        shown = console.ok(*arguments).out
        assert "admin_token" in shown
        assert SECRET not in shown


async def test_a_token_may_have_any_characters(sqlite_url: str) -> None:
    for token in ("žluťoučký kůň", "a b c d e f g h", "\udcff" * 12):
        async with desk(sqlite_url, token=token) as admin:
            brought = b"bearer " + token.encode("utf-8", "surrogateescape")
            answer = await admin.http.get("/admin/tasks", headers=[(b"authorization", brought)])
            assert answer.status_code == 200


async def test_web_pages_of_other_origins_get_no_leave(sqlite_url: str) -> None:
    page = {"origin": "https://evil.example"}
    async with desk(sqlite_url, cors_origins="*") as admin:
        for headers in (page, {**page, "authorization": ""}):
            asks = {
                **headers,
                "access-control-request-method": "POST",
                "access-control-request-headers": "authorization",
            }
            for answer in (
                await admin.http.options("/admin/tasks/retry", headers=asks),
                await admin.http.get("/admin/tasks", headers=headers),
            ):
                assert not [name for name in answer.headers if name.startswith("access-control")]
        body = b'{"task": "ship"}'
        refused(await admin.http.post("/admin/tasks/pause", content=body, headers=page), 415, "UnsupportedMediaType")
        assert not (await admin.get("tasks"))["tasks"][0]["paused"]


# ----- what is seen


async def test_tasks_and_their_rows_are_seen(database_url: str) -> None:
    failing.add("bad")
    async with desk(database_url) as admin:
        bad, good = await admin.orders("bad", "good")
        await admin.run()
        tasks = (await admin.get("tasks"))["tasks"]
        assert [task["name"] for task in tasks] == ["note", "ship"]
        shown = tasks[1]
        assert (shown["failed"], shown["ready"], shown["declared"], shown["paused"]) == (1, 0, True, False)
        assert (shown["held_until"], shown["reconciling"]) == (None, None)
        assert shown["reconciled_at"] == "2030-01-01T00:00:00Z"
        assert await admin.counts(task="ship") == {"failed": 1, "success": 1}
        assert await admin.counts(task=["ship", "note"], state="failed,canceled") == {"failed": 1}
        assert await admin.counts(error="no way", has_error="true", table="order_of_admins") == {"failed": 1}
        assert await admin.counts(has_error="false") == {"success": 1}
        assert await admin.counts(key=good) == {"success": 1}

        for order in ("key", "due"):
            first = await admin.get("tasks/records", task="ship", limit=1, order=order)
            second = await admin.get("tasks/records", task="ship", limit=1, order=order, after=first["next"])
            assert [one["key"] for page in (first, second) for one in page["records"]] == [bad, good]
        (record,) = (await admin.get("tasks/records", state=["failed", "canceled"]))["records"]
        assert (record["task"], record["key"], record["state"], record["attempt"]) == ("ship", bad, "failed", 1)
        assert (record["error"], record["change"]) == ("ConnectionError: no way for bad", "enter")

        shown = await admin.get("tasks/show", task="ship", key=bad)
        assert shown["record"] == record
        job = shown["job"]
        assert (job["id"], job["state"], len(job["attempts"])) == (record["job"], "failed", 1)
        assert "no way for bad" in job["traceback"]
        assert "in ship" in job["attempts"][0]["traceback"]
        assert "amount" not in json.dumps(shown), "what was captured is not shown"

        told = await admin.get("tasks/explain", task="ship", key=bad)
        assert (told["exists"], told["matches"], told["job"]) == (True, True, record["job"])
        assert "failed at" in told["reasons"][0]
        assert told["findings"][0]["part"] == "amount > 0"
        assert told["text"] == str(await app.tasks.explain(admin.backend, "ship", bad))
        told = await admin.get("tasks/explain", task="note", key=bad)
        assert (told["record"], told["matches"]) == (None, False)
        message = refused(await admin.http.get("/admin/tasks/show", params={"task": "note", "key": bad}), 404,
                          "RecordNotFound")  # fmt: skip
        assert "note" in message


async def test_tasks_of_other_programs_are_seen_and_changed(database_url: str) -> None:
    failing.add("bad")
    async with desk(database_url) as own, desk(database_url, stranger, clock=own.backend.clock) as other:
        (bad,) = await own.orders("bad")
        await own.run()
        assert [task["declared"] for task in (await other.get("tasks"))["tasks"]] == [False, False]
        assert (await other.get("tasks/show", task="ship", key=bad))["record"]["state"] == "failed"
        assert "does not declare" in (await other.get("tasks/explain", task="ship", key=bad))["text"]
        failing.clear()
        assert (await other.post("tasks/retry", task="ship", key=bad))["changed"] == 1
        await own.run()
        assert await own.counts() == {"success": 1}


# ----- what is changed


async def test_tm16_rows_are_named_by_a_condition_over_http(database_url: str) -> None:
    failing.update(("a", "b"))
    async with desk(database_url) as admin:
        first, second, third = await admin.orders("a", "b", "c")
        await admin.run()
        assert await admin.counts(task="ship", rows="name != 'b'") == {"failed": 1, "success": 1}
        assert await admin.counts(table="order_of_admins", rows="name != 'b' and amount > 1") == {}
        found = (await admin.get("tasks/records", task=["ship", "note"], rows="name in ['b', 'c']"))["records"]
        assert {record["key"] for record in found} == {second, third}
        failing.clear()
        done = await admin.post("tasks/retry", task="ship", state="failed", rows='1 <= amount < 5 and name == "a"')
        assert (done["found"], done["changed"]) == (1, 1)
        assert (await admin.post("tasks/skip", task="ship", rows="name == 'b'"))["changed"] == 0
        assert (await admin.post("tasks/skip", task="ship", rows="name == 'a'"))["changed"] == 1
        assert (await admin.get("tasks/show", task="ship", key=first))["record"]["state"] == "skipped"
        assert (await admin.post("tasks/retry", task="ship", rows="contains(name, 'b')"))["changed"] == 1
        assert (await admin.post("tasks/cancel", task="ship", rows="not name != 'b'"))["changed"] == 1
        assert (await admin.post("tasks/delete", task="ship", rows="matches(name, '^c')"))["changed"] == 1
        await admin.run()
        assert await admin.counts() == {"skipped": 1, "canceled": 1}


async def test_a_condition_that_cannot_be_read_changes_nothing(database_url: str) -> None:
    async with desk(database_url) as admin:
        await admin.orders("a")
        wrong: tuple[tuple[dict[str, Any], str], ...] = (
            ({"task": "ship", "rows": "nam == 'a'"}, "ValueInvalid"),
            ({"task": "ship", "rows": "name.__class__.__mro__"}, "ValueInvalid"),
            ({"task": "ship", "rows": "eval('1')"}, "ValueInvalid"),
            ({"task": "ship", "rows": "a\0"}, "ValueInvalid"),
            ({"task": "ship", "rows": "(" * 2000}, "ValueInvalid"),
            ({"task": "ship", "rows": "x" * 2001}, "ValueInvalid"),
            ({"task": "ship", "rows": ""}, "BadRequest"),
            ({"rows": "name == 'a'"}, "ValueInvalid"),
            ({"rows": "name == 'a'", "everything": True}, "ValueInvalid"),
        )
        for words, code in wrong:
            for path in BY_FILTER:
                refused(await admin.http.post(f"/admin/{path}", json=words), 400, code)
            words.pop("everything", None)
            for path in ("tasks/records", "tasks/count"):
                refused(await admin.http.get(f"/admin/{path}", params=words), 400, code)
        for body, status, code in (
            ({"task": "ship", "rows": ["active"]}, 400, "BadRequest"),
            ({"task": "shipp", "rows": "name == 'a'"}, 404, "TaskNotFound"),
        ):
            refused(await admin.http.post("/admin/tasks/skip", json=body), status, code)
        refused(
            await admin.http.post("/admin/tasks/skip", json={"table": "x", "rows": "name == 'a'"}), 404, "TableNotFound"
        )
        assert await admin.counts() == {"pending": 1}


async def test_a_change_without_a_filter_changes_nothing(database_url: str) -> None:
    async with desk(database_url) as admin:
        await admin.orders("a", "b")
        for path in BY_FILTER:
            for body in ({}, {"limit": 5}, {"everything": False}, {"task": None, "state": None, "key": None}):
                message = refused(await admin.http.post(f"/admin/{path}", json=body), 400, "FilterEmpty")
                assert f"would {path.removeprefix('tasks/')} all rows" in message
        assert await admin.counts() == {"pending": 2}
        assert (await admin.post("tasks/skip", everything=True))["changed"] == 2


async def test_tasks_are_paused_and_resumed_in_parts(database_url: str) -> None:
    async with desk(database_url) as admin:
        assert await admin.post("tasks/pause", task="ship") == {"task": "ship", "paused": True}
        assert await admin.post("tasks/pause", task="ship") == {"task": "ship", "paused": True}
        await admin.orders(*"abcde")
        await admin.backend.run_until_idle(advance=False)
        assert await admin.counts() == {"pending": 5}
        answers = [await admin.post("tasks/resume", task="ship", limit=2) for _ in range(3)]
        assert [(one["changed"], one["more"], one["paused"]) for one in answers] == [
            (2, True, False),
            (2, True, False),
            (1, False, False),
        ]
        await admin.backend.run_until_idle(advance=False)
        assert await admin.counts() == {"success": 5}
        refused(await admin.http.post("/admin/tasks/pause", json={"task": "nobody"}), 404, "TaskNotFound")
        last, *_, first = await admin.backend.engine.store.audit.list(10, act="admin: tasks")
        assert (first.who, first.act) == ("the admin token", "admin: tasks pause")
        assert (first.about, first.outcome) == ({"task": "ship"}, "Done.")
        assert (last.outcome or "").startswith("Not done: ")


# ----- many rows


async def test_thousands_of_rows_are_changed_in_bounded_parts(database_url: str) -> None:
    count, limit = 2300, 700
    async with desk(database_url) as admin:
        await admin.orders(*(f"order {number}" for number in range(count)))

        async def all_parts(verb: str, **body: Any) -> list[int]:
            parts, after = [], None
            while True:
                told = await admin.post(f"tasks/{verb}", **body, limit=limit, after=after)
                assert (told["next"] is not None) is told["more"]
                parts.append(told["changed"])
                after = told["next"]
                if not told["more"]:
                    return parts

        parts = [limit] * 3 + [count - 3 * limit]
        assert await all_parts("skip", task="ship") == parts
        assert await admin.counts() == {"skipped": count}
        assert await all_parts("retry", state="skipped") == parts
        assert await admin.counts() == {"pending": count}
        assert await all_parts("retry", task="ship") == parts, "each once, though all that are retried are found again"
        page = await app.tasks.records(admin.backend, TaskFilter(task="ship"), limit=10_000)
        assert {record.generation for record in page.records} == {3}
        assert (await admin.post("tasks/cancel", task="ship"))["found"] == 1000, "if no limit is told"
        assert await all_parts("delete", task="ship") == parts
        assert await admin.counts() == {}


async def test_pages_to_the_end_while_records_change(database_url: str) -> None:
    failing.update(f"f{number}" for number in range(60))
    async with desk(database_url) as admin:
        orders = await admin.orders(*(f"f{number}" for number in range(30)), *(f"g{number}" for number in range(30)))
        await admin.run()
        seen: list[str] = []
        after, turn, deleted = None, 0, set[str]()
        while True:
            page = await admin.get("tasks/records", task="ship", limit=7, **({"after": after} if after else {}))
            seen += [record["key"] for record in page["records"]]
            after = page["next"]
            if after is None:
                break
            await admin.orders(f"new {turn}")
            await admin.post("tasks/retry", task="ship", key=orders[turn])
            await admin.post("tasks/delete", task="ship", key=orders[-1 - turn])
            deleted.add(orders[-1 - turn])
            turn += 1
        assert len(seen) == len(set(seen)), "none twice"
        assert set(orders) - deleted <= set(seen), "and none of those that stayed was passed by"


async def test_what_was_done_before_the_database_was_busy_is_told(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(sqlite_url) as admin:
        await admin.orders(*(f"order {number}" for number in range(AT_ONCE + 200)))
        records, busy = admin.backend.engine.store.records, [False, True, True, False, False]
        rerun = records.rerun

        async def sometimes(*arguments: Any) -> Any:
            if busy.pop(0):
                raise DatabaseBusy("Somebody holds the lock.")
            return await rerun(*arguments)

        monkeypatch.setattr(records, "rerun", sometimes)
        told = await admin.post("tasks/retry", task="ship")
        assert (told["found"], told["changed"], told["more"]) == (AT_ONCE, AT_ONCE, True)
        body = {"task": "ship", "after": told["next"]}
        again = await admin.http.post("/admin/tasks/retry", json=body)
        refused(again, 503, "DatabaseBusy")
        assert again.headers["retry-after"] == "1"
        assert await admin.post("tasks/retry", **body) == {"found": 200, "changed": 200, "more": False, "next": None}
        page = await app.tasks.records(admin.backend, TaskFilter(task="ship"), limit=10_000)
        assert {record.generation for record in page.records} == {2}


async def test_a_part_ends_when_its_time_is_over(sqlite_url: str) -> None:
    async with desk(sqlite_url) as admin:
        await admin.orders(*(f"order {number}" for number in range(AT_ONCE * 2 + 1)))
        own, where = [one.task for one in app.tasks], TaskFilter(task="ship")
        calls, after, found = admin.backend.job_calls, None, list[int]()
        while not found or after:
            done = await change_rows(calls, own, "skip", where, Part(after=after, seconds=0))
            found.append(done.changed)
            after = done.next
        assert found == [AT_ONCE, AT_ONCE, 1]
        done = await change_rows(calls, own, "retry", where, Part(limit=AT_ONCE + 1))
        assert (done.found, done.changed) == (AT_ONCE + 1, AT_ONCE + 1)


# ----- penstock dev


def test_dev_shows_a_token_that_stays_the_same(console: Console) -> None:
    console.write_bookings()
    with console.start("dev", "--port", "0") as process:
        url = process.wait_for(r"server +(http\S+)$")[1]
        token = process.wait_for(r"token +(\S{40,})$")[1]
        headers = {"authorization": f"Bearer {token}"}
        assert httpx.get(f"{url}/admin/tasks", headers=headers, timeout=SOON).json() == {"tasks": []}
        assert httpx.get(f"{url}/admin/tasks", timeout=SOON).status_code == 401
        console.write_bookings(("ouch", "oh"))
        url = process.wait_for("ready at (.*)")[1]
        assert httpx.get(f"{url}/admin/tasks", headers=headers, timeout=SOON).status_code == 200
    assert not [line for line in process.lines if token in line and not line.startswith("  token ")]


def test_dev_does_not_show_the_token_of_the_setting(console: Console) -> None:
    console.write_bookings()
    with console.start("dev", "--port", "0", PENSTOCK_ADMIN_TOKEN=SECRET) as process:
        url = process.wait_for(r"server +(http\S+)$")[1]
        assert process.wait_for(r"token +(.*)$")[1] == "the setting admin_token"
        assert httpx.get(f"{url}/admin/tasks", headers=TOKEN, timeout=SOON).status_code == 200
    assert SECRET not in "".join(process.lines)
