"""The admin interface: who may enter, what is seen and changed there, and the wrong values of its words."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from programs import deliveries
from programs.admin import BY_FILTER, CHANGES, READS, SECRET, TOKEN, app, desk, failing, refused
from stage.outboxes import send
from starlette.applications import Starlette
from starlette.routing import Mount

from penstock import TaskFilter, asgi_app
from penstock.api.tasks.selection import AT_ONCE, Part, change_rows
from penstock.errors import DatabaseBusy
from penstock.operations.every import OPERATIONS
from penstock.operations.operation import Kind, Operation
from penstock.server.adminwords import values_of
from penstock.server.requests import Refused


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    failing.clear()
    deliveries.failing.clear()


# ----- who may enter


async def test_without_the_setting_there_is_nothing(sqlite_url: str) -> None:
    for dev, metrics in ((True, ""), (False, SECRET)):
        async with desk(sqlite_url, token="", dev=dev, metrics_token=metrics) as admin:
            nowhere = await admin.http.get("/nowhere")
            for path in (*READS, *CHANGES, "", "nowhere"):
                for headers in (TOKEN, {"authorization": "Bearer "}):
                    for method in ("GET", "POST"):
                        answer = await admin.http.request(method, f"/admin/{path}", headers=headers)
                        assert (answer.status_code, answer.content) == (404, nowhere.content), (method, path)


STRANGERS = [
    None,
    b"",
    b"Bearer ",
    SECRET.encode(),
    b"Basic " + SECRET.encode(),
    b"Bearer " + SECRET.lower().encode(),
    b"Bearer " + SECRET[:-1].encode(),
    b"Bearer " + SECRET.encode() + b"x",
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
        refused(await admin.http.get("/admin/tasks/records?x=1", headers=TOKEN), 400, "UnknownWord")
    assert "Unauthenticated" in caplog.text
    assert SECRET not in caplog.text
    for token in ("žluťoučký kůň", "\udcff" * 12):
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


# ----- what is seen and changed


async def test_sdi1_sdu1_rows_of_tasks_are_counted_shown_and_explained(database_url: str) -> None:
    failing.add("bad")
    async with desk(database_url) as admin:
        bad, good = await admin.orders("bad", "good")
        await admin.run()
        assert await admin.counts(task=["ship", "note"], state="failed,canceled") == {"failed": 1}
        assert await admin.counts(has_error="false") == await admin.counts(key=good) == {"success": 1}
        (record,) = (await admin.get("tasks/records", state=["failed", "canceled"]))["records"]
        shown = await admin.get("tasks/show", task="ship", key=bad)
        assert shown["record"] == record
        job = shown["job"]
        assert (job["id"], job["state"], len(job["attempts"])) == (record["job"], "failed", 1)
        assert "in ship" in job["attempts"][0]["traceback"]
        told = await admin.get("tasks/explain", task="ship", key=bad)
        assert (told["exists"], told["matches"], told["job"]) == (True, True, record["job"])
        assert told["findings"][0]["part"] == "amount > 0"
        assert told["text"] == str(await app.tasks.explain(admin.backend, "ship", bad))
        told = await admin.get("tasks/explain", task="note", key=bad)
        assert (told["record"], told["matches"]) == (None, False)


async def test_tm16_dl2_rows_are_changed_by_a_condition_and_that_is_told(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    failing.update(("a", "b"))
    caplog.set_level(logging.INFO, "penstock")
    async with desk(database_url) as admin:
        await admin.orders("a", "b", "c")
        await admin.run()
        for path in BY_FILTER:
            for body in ({}, {"limit": 5}, {"everything": False}, {"task": None, "state": None, "key": None}):
                message = refused(await admin.http.post(f"/admin/{path}", json=body), 400, "FilterEmpty")
                assert f"would {path.removeprefix('tasks/')} all rows" in message
        assert await admin.counts(task="ship", rows="name != 'b'") == {"failed": 1, "success": 1}
        failing.clear()
        assert (await admin.post("tasks/retry", task="ship", state="failed", rows='name == "a"'))["changed"] == 1
        told = [vars(one)["facts"] for one in caplog.records if vars(one).get("event") == "task.retried"]
        assert told == [{"task": "ship", "rows": 1}]
        assert (await admin.post("tasks/skip", task="ship", rows="name == 'a'"))["changed"] == 1
        assert (await admin.post("tasks/delete", task="ship", rows="matches(name, '^c')"))["changed"] == 1
        assert await admin.counts() == {"skipped": 1, "failed": 1}
        assert (await admin.post("tasks/delete", everything=True))["changed"] == 2


async def test_sdi2_api1_it_is_mounted_under_any_path_and_tells_nothing_of_what_was_captured(database_url: str) -> None:
    furtive, amount = "furtive", 987_654_321_987  # ids have no u
    async with desk(database_url) as admin:
        (order,) = await admin.orders(furtive, amount=amount)
        row = {"task": "ship", "key": order}
        outer = Starlette(routes=[Mount("/deep/within/it", app=asgi_app(app, backend=admin.backend))])
        transport = httpx.ASGITransport(outer)
        async with httpx.AsyncClient(base_url="http://shop/deep/within/it", transport=transport, headers=TOKEN) as http:
            told = await http.get("/admin/tasks/explain", params=row)
            assert str(amount) in told.text, "it was captured, and is told to whoever asks why"
            lists = ("", "/records", "/records?order=due", "/count")
            answers = [await http.get(f"/admin/tasks{path}") for path in lists]
            answers += [await http.get("/admin/tasks/show", params={**row, "task": task}) for task in ("ship", "note")]
            answers += [await http.post(f"/admin/{path}", json=row) for path in BY_FILTER]
        for answer in answers:
            assert answer.status_code == 200, answer.text
            assert furtive not in answer.text
            assert str(amount) not in answer.text
        assert await admin.counts(task="ship") == {}, "the last one has deleted it"


# ----- many rows


async def test_what_was_done_before_the_database_was_busy_is_told(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(sqlite_url) as admin:
        await admin.orders(*(f"order {number}" for number in range(AT_ONCE + 200)))
        records, busy = admin.backend.engine.store.records, [False, True, False]
        rerun = records.rerun

        async def sometimes(*arguments: Any) -> Any:
            if busy.pop(0):
                raise DatabaseBusy("Somebody holds the lock.")
            return await rerun(*arguments)

        monkeypatch.setattr(records, "rerun", sometimes)
        told = await admin.post("tasks/retry", task="ship")
        assert (told["found"], told["changed"], told["more"]) == (AT_ONCE, AT_ONCE, True)
        told = await admin.post("tasks/retry", task="ship", after=told["next"])
        assert told == {"found": 200, "changed": 200, "more": False, "next": None}
        page = await app.tasks.records(admin.backend, TaskFilter(task="ship"), limit=10_000)
        assert {record.generation for record in page.records} == {2}

        own, where, after = [one.task for one in app.tasks], TaskFilter(task="ship"), None
        found = list[int]()
        while not found or after:  # a part ends when its time is over
            done = await change_rows(admin.backend.job_calls, own, "skip", where, Part(after=after, seconds=0))
            found.append(done.changed)
            after = done.next
        assert found == [AT_ONCE, 200]


# ----- wrong values, tried on all words that take one of their kind

_NO_TEXT = ["", 5, True, [], ["x"], {}, {"$ne": ""}]
_NO_TEXTS = ["", [], [""], ["x", ""], {"$ne": ""}, 1, True, [1]]
_NO_LIMIT = [0, -1, 10_001, 1.5, True, "5", [5], 10**40]
IN_JSON: Mapping[Kind, Sequence[Any]] = {
    **dict.fromkeys(("text", "name", "moment"), _NO_TEXT),
    **dict.fromkeys(("texts", "states", "choices"), _NO_TEXTS),
    "any text": [5, True, [], ["x"], {}],
    "choice": ["", "name", "Failed", 5, ["failed"]],
    "key": [{}, [], [[1]], [None], {"$ne": ""}],
    "flag": ["true", "yes", 1, 0, [], {}],
    "number": ["1", 1.0, 1e3, True, [1], {}, 2**63, -(2**63) - 1, int("9" * 4000)],
    "numbers": ["1", 1.0, True, [], {}, [1, None], [[1]], 2**63, [1, -(2**63) - 1], int("9" * 4000)],
    "part": _NO_LIMIT,
}
_NO_NUMBER = ["", "x", "1.5", "1e3", "--1", "٣", str(2**63), "9" * 5000]
IN_URLS: Mapping[Kind, Sequence[str]] = {
    **dict.fromkeys(("text", "name", "moment", "texts", "states", "choices"), ("",)),
    **dict.fromkeys(("any text", "key"), ()),
    "choice": ["", "name", "Failed"],
    "flag": ["", "1", "True"],
    "number": _NO_NUMBER,
    "page": [*_NO_NUMBER, "0", "-1", "1001", "10000"],
}


def refusal_of(words: Mapping[str, Any], operation: Operation) -> str:
    """Expect that words are refused; the message."""
    with pytest.raises(Refused) as caught:
        values_of(words, operation)
    assert (caught.value.status, caught.value.code) == (400, "BadRequest"), (operation.path, words)
    return caught.value.message


def test_wrong_values_are_refused_with_the_name_of_their_word() -> None:
    for operation in OPERATIONS:
        for one in operation.takes:
            wrong = IN_JSON[one.kind] if operation.changes else [[text] for text in IN_URLS[one.kind]]
            for value in wrong:
                message = refusal_of({one.name: value}, operation)
                assert message.startswith(f"{one.name} must be "), (operation.path, one.name, value)


def test_what_is_needed_and_missing_is_refused() -> None:
    for operation in OPERATIONS:
        needed = {it.name: [1] if it.kind == "number" else ["x"] for it in operation.takes if it.needed}
        for name in needed:
            others = {it: value[0] if operation.changes else value for it, value in needed.items() if it != name}
            assert refusal_of(others, operation) == f"{name} is missing.", operation.path


# ----- outboxes


async def test_a_reset_that_fails_is_undone_and_outboxes_are_named_in_short(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        desk(database_url, deliveries.app) as own,
        desk(database_url, deliveries.app, clock=own.backend.clock, max_rows_written=3) as limited,
    ):
        await deliveries.put_and_fail(own.backend)
        deliveries.failing.add("clear")
        for admin, status, code in (limited, 400, "LimitExceeded"), (own, 500, "InternalServerError"):
            refused(await admin.http.post("/admin/outbox/rebuild", json={"outbox": "counts"}), status, code)
        assert "RuntimeError: not now" in caplog.text
        shown = await own.get("outbox/show", outbox="counts")
        assert shown["outbox"]["older_rows"] is None, "nothing has happened"

        store = own.backend.engine.store
        (plan,) = [one.plan for one in await store.outboxes.list() if one.plan.name == "post"]
        for name in ("shop/čeština:päckchen", "a:twice", "b:twice"):
            await store.outboxes.declare(replace(plan, name=name), None, own.backend.clock.now())
        done = await own.post("outbox/pause", outbox="päckchen")
        assert done == {"outbox": "shop/čeština:päckchen", "paused": True}, "the module may be left out"
        refused(await own.http.get("/admin/outbox/show", params={"outbox": "twice"}), 404, "OutboxNotFound")
        assert (await own.get("outbox/show", outbox="b:twice"))["outbox"]["name"] == "b:twice"


async def test_messages_that_no_json_can_say_are_shown_and_a_page_of_large_ones_ends_early(sqlite_url: str) -> None:
    deep, large = "[" * 80 + "]" * 80, json.dumps("x" * 200_000)
    payloads = {
        f'{{"n": {10**40}}}': json.dumps({"n": 10**40}),
        deep: deep,
        '{"$bytes": "!", "$integer": 5}': {"$bytes": "!", "$integer": 5},
        "null": None,
        **{f"[{number}, {large}]": [number, "x" * 200_000] for number in range(60)},
    }
    deliveries.failing.add("talk")
    async with desk(sqlite_url, deliveries.app, max_argument_bytes=2**24) as admin:
        await deliveries.hand_over(admin.backend)
        for payload in payloads:
            await send(admin.backend, "talks", payload, "a/b/é\u202e")
        await deliveries.hand_over(admin.backend)
        page = await admin.get("outbox/messages", outbox="talks", limit=1000)
        rest = await admin.get("outbox/messages", outbox="talks", limit=1000, after=page["next"])
        found = page["messages"] + rest["messages"]
        assert [one["content"] for one in found] == list(payloads.values())
        assert {one["key"] for one in found} == {"a/b/é\u202e"}
        assert rest["next"] is None
