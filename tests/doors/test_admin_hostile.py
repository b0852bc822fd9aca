"""The admin interface under input that nobody sends by mistake, and under too much of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage.desk import BY_FILTER, BY_NAME, CHANGES, READS, SECRET, TOKEN, Desk, app, before, desk, refused
from stage.examples import examples
from stage.listening import listening
from stage.stories import one_backend
from stage.yard import app as yard

from penstock import asgi_app
from penstock.operations.every import OPERATIONS
from penstock.operations.operation import Operation
from penstock.testing import TestApp

MIB = 1024 * 1024


# ----- what cannot be taken


QUESTIONS = [
    ("tasks", "x=1", 400, "UnknownWord"),
    ("tasks", "task=ship", 400, "UnknownWord"),
    ("tasks/records", "stat=failed", 400, "UnknownWord"),
    ("tasks/records", "State=failed", 400, "UnknownWord"),
    ("tasks/records", "rows=1", 400, "ValueInvalid"),
    ("tasks/records", "everything=true", 400, "UnknownWord"),
    ("tasks/records", "state=dirty", 400, "ValueInvalid"),
    ("tasks/records", "state=failed,", 400, "ValueInvalid"),
    ("tasks/records", "task=shipp", 404, "TaskNotFound"),
    ("tasks/records", "task=ship&task=shipp", 404, "TaskNotFound"),
    ("tasks/records", "task=shipp&rows=name == 'a'", 404, "TaskNotFound"),
    ("tasks/records", "task=ship&task=shipp&rows=name == 'a'", 404, "TaskNotFound"),
    ("tasks/count", "task=shipp&rows=((", 404, "TaskNotFound"),
    ("tasks/records", "task=shipp&rows=name == 'a'&table=order_of_admins", 404, "TaskNotFound"),
    ("tasks/records", "task=%00", 400, "ValueInvalid"),
    ("tasks/records", "table=nothing", 404, "TableNotFound"),
    ("tasks/records", "error=%00", 400, "ValueInvalid"),
    ("tasks/records", "after=x", 400, "CursorInvalid"),
    ("tasks/records", "key=nonsense&task=ship", 400, "IdInvalid"),
    ("tasks/records", "error=" + "x" * 20_000, 414, "UriTooLong"),
    ("tasks/count", "limit=1", 400, "UnknownWord"),
    ("tasks/show", "task=ship&key=nonsense", 400, "IdInvalid"),
    ("tasks/show", "task=shipp&key=1", 404, "TaskNotFound"),
    ("tasks/show", "task=ship&key=order_of_admins_00000000000000000000000000", 404, "RecordNotFound"),
    ("tasks/explain", "task=ship&key=%00", 400, "IdInvalid"),
    ("tasks/explain", "task=shipp&key=1", 404, "TaskNotFound"),
    ("nothing", "", 404, "NotFound"),
    ("tasks/", "", 404, "NotFound"),
    ("tasks/records/", "", 404, "NotFound"),
    ("Tasks", "", 404, "NotFound"),
    ("", "", 404, "NotFound"),
]


async def test_questions_that_cannot_be_taken(sqlite_url: str) -> None:
    async with desk(sqlite_url) as admin:
        for path, query, status, code in QUESTIONS:
            refused(await admin.http.get(f"/admin/{path}?{query}"), status, code)


async def test_changes_that_cannot_be_taken(sqlite_url: str) -> None:
    bodies: list[tuple[Any, int, str]] = [
        (b"", 400, "BadJson"),
        (b"{", 400, "BadJson"),
        (b'{"task": NaN}', 400, "BadJson"),
        (b'{"task": "\\ud800"}', 400, "BadJson"),
        (b"[" * 60_000, 413, "RequestTooLarge"),
        (b'{"task": "\xff"}', 400, "BadJson"),
        ([], 400, "BadRequest"),
        ("ship", 400, "BadRequest"),
        (None, 400, "BadRequest"),
        ({"stat": "failed"}, 400, "UnknownWord"),
        ({"task": "ship", "all": True}, 400, "UnknownWord"),
        ({"task": "ship", "": 1}, 400, "UnknownWord"),
        ({"task": "shipp"}, 404, "TaskNotFound"),
        ({"task": ["ship", "shipp"]}, 404, "TaskNotFound"),
        ({"task": "ship\0"}, 400, "ValueInvalid"),
        ({"state": "pending,running"}, 400, "ValueInvalid"),
        ({"task": "ship", "after": "5"}, 400, "CursorInvalid"),
        ({"task": "ship", "key": 7}, 400, "IdInvalid"),
        ({"task": "ship", "key": "x"}, 400, "IdInvalid"),
        ({"table": "order_of_admin"}, 404, "TableNotFound"),
        ({"rows": "true", "table": "order_of_admins"}, 400, "ValueInvalid"),
    ]
    async with desk(sqlite_url) as admin:
        await admin.orders("a")
        for path in BY_FILTER:
            for body, status, code in bodies:
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                answer = await admin.http.post(f"/admin/{path}", content=content)
                assert (answer.status_code, answer.json()["code"]) == (status, code), (path, body, answer.text)
        for verb, states in (("cancel", ("success", "failed", "gone")), ("skip", ("running", "success", "gone"))):
            for state in states:
                answer = await admin.http.post(f"/admin/tasks/{verb}", json={"state": state})
                assert "cannot be" in refused(answer, 400, "ValueInvalid")
        for path in BY_NAME:
            refused(await admin.http.post(f"/admin/{path}", json={}), 400, "BadRequest")
            refused(await admin.http.post(f"/admin/{path}", json={"task": ["ship"]}), 400, "BadRequest")
            refused(await admin.http.post(f"/admin/{path}", json={"task": "shipp"}), 404, "TaskNotFound")
            refused(await admin.http.post(f"/admin/{path}", json={"task": "ship", "key": 1}), 400, "UnknownWord")
        assert await admin.counts() == {"pending": 1}
        assert not (await admin.get("tasks"))["tasks"][1]["paused"]


async def test_places_that_no_page_has_given(database_url: str) -> None:
    places = [
        "[]",
        "{}",
        "null",
        "[1]",
        '[1, "a", 2, 3]',
        '[1e400, "x"]',
        '["1", "x"]',
        '[true, "x"]',
        f'[{10**40}, "x"]',
        '[-1, "x"]',
        '[1, "\\u0000"]',
        '[1, "\\ud800"]',
        "[" * 100_000,
        "[" * 60_000 + "]" * 60_000,
        "9" * 10_000,
    ]
    due = ['["x", 1, "x"]', '["0001-01-01T00:00:00+14:00", 1, "x"]', '["2030-01-01", -1, "x"]', '[5, 1, "x"]']
    async with desk(database_url) as admin:
        await admin.orders("a")
        for place in places:
            for path in BY_FILTER:
                body = {"task": "ship", "after": place}
                answer = await admin.http.post(f"/admin/{path}", json=body)
                assert (answer.status_code, answer.json()["code"]) in {
                    (400, "CursorInvalid"),
                    (413, "RequestTooLarge"),
                }, place[:50]
        for place in [*due, *(place for place in places if len(place) < 100)]:
            query = {"order": "due", "after": place}
            answer = await admin.http.get("/admin/tasks/records", params=query)
            assert answer.status_code == 400, (place, answer.text)
            refused(answer, 400, "CursorInvalid")
        assert (await admin.get("tasks/records", order="due", after='["2030-01-01", 1, "x"]'))["next"] is None
        assert await admin.counts() == {"pending": 1}


async def test_filters_that_are_written_to_break_out_pick_nothing(database_url: str) -> None:
    texts = [
        "' or '1'='1",
        "'; drop table penstock_task; --",
        '"; delete from penstock.task; --',
        "%",
        "_",
        "\\",
        "%' escape '",
        "$1",
        ":task",
        "?",
        "\u202e\u0000".replace("\0", ""),
        "😀" * 1000,
        "a" * 60_000,
        "{}",
        "null",
    ]
    async with desk(database_url) as admin:
        await admin.orders("a")
        for text in texts:
            for path in BY_FILTER:
                if text.isascii() or len(text) < 100:
                    told = await admin.http.post(f"/admin/{path}", json={"task": text})
                    assert told.json()["code"] == "TaskNotFound", text[:50]
                assert (await admin.post(path, error=text))["found"] == 0, text[:50]
                answer = await admin.http.post(f"/admin/{path}", json={"task": "ship", "key": text})
                assert answer.json()["code"] == "IdInvalid", text[:50]
            if len(text) < 100:
                assert await admin.counts(error=text) == {}
        assert await admin.counts() == {"pending": 1}


async def test_bodies_are_small_and_json(sqlite_url: str) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 10_000

    async with desk(sqlite_url) as admin:
        await admin.orders("a")
        for path in CHANGES:
            large = await admin.http.post(f"/admin/{path}", json={"task": "ship", "error": "x" * 65_536})
            assert "65536 bytes" in refused(large, 413, "RequestTooLarge")
            refused(await admin.http.post(f"/admin/{path}", content=endless()), 413, "RequestTooLarge")
            for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
                of_kind = {"content-type": kind}
                answer = await admin.http.post(f"/admin/{path}", content=b'{"task": "ship"}', headers=of_kind)
                refused(answer, 415, "UnsupportedMediaType")
            zipped = {"content-type": "application/json", "content-encoding": "gzip"}
            refused(await admin.http.post(f"/admin/{path}", content=b"x", headers=zipped), 415, "UnsupportedEncoding")
            deep = b'{"task": ' + b"[" * 70 + b"]" * 70 + b"}"
            refused(await admin.http.post(f"/admin/{path}", content=deep), 400, "NestedTooDeeply")
        assert await admin.counts() == {"pending": 1}


async def test_a_huge_body_is_refused_on_a_socket(database_url: str) -> None:
    async with (
        TestApp(app, database_url, admin_token=SECRET) as backend,
        listening(asgi_app(app, backend=backend)) as url,
        httpx.AsyncClient(base_url=url, headers=TOKEN, timeout=30) as http,
    ):
        for headers, status, code in (({}, 413, "RequestTooLarge"), ({"authorization": ""}, 401, "Unauthenticated")):
            body = b'{"task": "' + b"x" * (4 * MIB) + b'"}'
            try:
                answer = await http.post("/admin/tasks/retry", content=body, headers=headers)
            except (httpx.WriteError, httpx.ReadError):  # the connection was closed before all was sent
                continue
            refused(answer, status, code)
        assert (await http.get("/admin/tasks")).status_code == 200


async def test_changes_take_post_only_and_questions_get_only(database_url: str) -> None:
    async with desk(database_url) as admin:
        await admin.orders("a")
        for path in CHANGES:
            for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE"):
                answer = await admin.http.request(method, f"/admin/{path}", params={"task": "ship"})
                assert (answer.status_code, answer.headers["allow"]) == (405, "POST"), (method, path)
                assert method == "HEAD" or answer.json()["code"] == "MethodNotAllowed"
            assert (await admin.http.options(f"/admin/{path}")).status_code == 204
        for path in READS:
            for method in ("POST", "PUT", "DELETE"):
                answer = await admin.http.request(method, f"/admin/{path}", json={"task": "ship"})
                assert (answer.status_code, answer.json()["code"]) == (405, "MethodNotAllowed")
        head = await admin.http.head("/admin/tasks")
        assert (head.status_code, head.content) == (200, b"")
        assert await admin.counts() == {"pending": 1}
        assert not (await admin.get("tasks"))["tasks"][1]["paused"]


async def test_a_socket_that_asks_for_more_than_http_is_closed(sqlite_url: str) -> None:
    async with desk(sqlite_url) as admin:
        web, sent = asgi_app(app, backend=admin.backend), list[Any]()

        async def receive() -> Any:
            return {"type": "websocket.connect"}

        async def send(message: Any) -> None:
            sent.append(message["type"])

        scope = {"type": "websocket", "path": "/admin/tasks", "headers": [], "subprotocols": [], "query_string": b""}
        await web(scope, receive, send)
        assert sent == ["websocket.close"]


# ----- too much, too long, and what nobody expects


class Slow:
    """Holds a verb of the store until a test lets it go on."""

    def __init__(self, admin: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        tasks = admin.backend.engine.store.tasks
        self._list = tasks.list
        self.running = asyncio.Semaphore(0)
        self.may_go_on = asyncio.Event()
        monkeypatch.setattr(tasks, "list", self.list)

    async def list(self) -> Any:
        self.running.release()
        await self.may_go_on.wait()
        return await self._list()


async def test_more_than_some_at_once_are_refused(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(sqlite_url) as admin:
        slow = Slow(admin, monkeypatch)
        under_way = [asyncio.create_task(admin.get("tasks")) for _ in range(8)]
        for _ in under_way:
            await slow.running.acquire()
        answer = await admin.http.post("/admin/tasks/pause", json={"task": "ship"})
        refused(answer, 503, "Overloaded")
        assert answer.headers["retry-after"] == "1"
        slow.may_go_on.set()
        assert len([task for told in await asyncio.gather(*under_way) for task in told["tasks"]]) == 16
        await admin.post("tasks/pause", task="ship")


async def test_a_question_that_takes_too_long_is_given_up(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(sqlite_url, call_timeout=1.0) as admin:
        slow = Slow(admin, monkeypatch)
        refused(await admin.http.get("/admin/tasks/records"), 503, "CallTimeout")
        slow.may_go_on.set()
        assert (await admin.get("tasks"))["tasks"]


async def test_what_nobody_expects_is_told_to_the_log_only(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> Any:
        raise LookupError("something of the inside")

    async with desk(sqlite_url) as admin:
        monkeypatch.setattr(admin.backend.engine.store.tasks, "list", fail)
        answer = await admin.http.get("/admin/tasks")
        assert "inside" not in refused(answer, 500, "InternalServerError")
        assert "something of the inside" in caplog.text


# ----- anything at all


async def test_names_that_no_database_can_hold_are_refused(database_url: str) -> None:
    async with desk(database_url, yard) as admin:
        for operation in OPERATIONS:
            texts = {one.name: "a\0" for one in operation.takes if one.kind in {"text", "name", "key"}}
            numbers = {one.name: 1 for one in operation.takes if one.needed and one.kind == "number"}
            path = f"/admin{operation.path}"
            if operation.changes:
                answer = await admin.http.post(path, json={**texts, **numbers})
            else:
                answer = await admin.http.get(path, params={**texts, **numbers})
            assert answer.status_code in {400, 404} or not texts, (path, answer.text)


def test_whatever_is_sent_gets_an_answer(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.api.pools.workpool.NONE_HOLDS_AFTER", 0.0)
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=4,
    )
    likely = st.sampled_from(
        [
            "ship",
            "files",
            "counts",
            "mail",
            "remind",
            "pending",
            "failed",
            "parked",
            "end",
            "15m",
            ["ship"],
            [1, 2],
            True,
            1,
        ]
    )

    def requests_to(operation: Operation) -> st.SearchStrategy[tuple[Operation, dict[str, Any]]]:
        names = [one.name for one in operation.takes]
        words = st.dictionaries(st.sampled_from(names or ["task"]), likely | values, max_size=5)
        usual = st.fixed_dictionaries({one.name: likely for one in operation.takes if one.needed})
        return st.tuples(st.just(operation), words | st.tuples(usual, words).map(lambda two: two[1] | two[0]))

    requests = st.lists(st.sampled_from(OPERATIONS).flatmap(requests_to), max_size=5)

    with one_backend(yard, sqlite_url, admin_token=SECRET) as tell:

        @given(requests)
        @settings(max_examples=examples(100))
        def whatever(sent: list[tuple[Operation, dict[str, Any]]]) -> None:
            async def story(backend: TestApp) -> None:
                async with before(backend) as admin:
                    for operation, given in sent:
                        path, text = f"/admin{operation.path}", json.dumps(given)
                        if operation.changes:
                            answer = await admin.http.post(path, content=text)
                        else:
                            query = {name: str(value) for name, value in json.loads(text).items()}
                            answer = await admin.http.get(path, params=query)
                        assert answer.status_code in {200, 400, 404, 409}, (path, given, answer.text)
                        assert answer.status_code == 200 or answer.json().keys() == {"code", "message"}

            tell(story)

        whatever()
