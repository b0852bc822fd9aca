"""The admin interface under input that nobody sends by mistake, and under too much of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import deliveries
from programs.admin import BY_FILTER, BY_NAME, CHANGES, READS, SECRET, before, desk, refused
from programs.everynoun import app as yard
from stage.needs import examples
from stage.stories import one_backend

from penstock.operations.every import OPERATIONS
from penstock.operations.operation import Operation
from penstock.testing import TestApp

# ----- what cannot be taken


QUESTIONS = (
    ("tasks", "task=ship", 400, "UnknownWord"),
    ("tasks/records", "state=failed,", 400, "ValueInvalid"),
    ("tasks/records", "task=ship&task=shipp&rows=name == 'a'", 404, "TaskNotFound"),
    ("tasks/records", "task=%00", 400, "ValueInvalid"),
    ("tasks/records", "table=nothing", 404, "TableNotFound"),
    ("tasks/records", "key=nonsense&task=ship", 400, "IdInvalid"),
    ("tasks/records", "error=" + "x" * 20_000, 414, "UriTooLong"),
    ("tasks/show", "task=ship&key=order_of_admins_00000000000000000000000000", 404, "RecordNotFound"),
    *(("tasks/records", f"after={place}", 400, "CursorInvalid") for place in ("x", '[1e400, "x"]', "[" * 9000)),
    *(
        ("tasks/records", f"order=due&after={place}", 400, "CursorInvalid")
        for place in ('["x", 1, "x"]', '["0001-01-01T00:00:00%2B14:00", 1, "x"]', "9" * 9000)
    ),
    ("outbox/show", "outbox=%ED%A0%80", 404, "OutboxNotFound"),
    ("nothing", "", 404, "NotFound"),
    ("Tasks", "", 404, "NotFound"),
)


async def test_questions_that_cannot_be_taken(database_url: str) -> None:
    async with desk(database_url) as admin:
        for path, query, status, code in QUESTIONS:
            refused(await admin.http.get(f"/admin/{path}?{query}"), status, code)
        assert (await admin.get("tasks/records", order="due", after='["2030-01-01", 1, "x"]'))["next"] is None


async def test_changes_that_cannot_be_taken(database_url: str) -> None:
    of_all: list[tuple[Any, int, str]] = [
        (b"", 400, "BadJson"),
        (b'{"task": NaN}', 400, "BadJson"),
        (b"[" * 60_000, 413, "RequestTooLarge"),
        (b'{"task": ' + b"[" * 70 + b"]" * 70 + b"}", 400, "NestedTooDeeply"),
        ([], 400, "BadRequest"),
        ({"task": "ship", "outbox": "post", "all": True}, 400, "UnknownWord"),
    ]
    of_filters: list[tuple[Any, int, str]] = [
        ({"task": ["ship", "shipp"]}, 404, "TaskNotFound"),
        ({"task": "ship\0"}, 400, "ValueInvalid"),
        ({"task": "ship", "key": 7}, 400, "IdInvalid"),
        ({"rows": "name == 'a'", "everything": True}, 400, "ValueInvalid"),
        ({"task": "ship", "rows": "(" * 2000}, 400, "ValueInvalid"),
        *(
            ({"task": "ship", "after": place}, 400, "CursorInvalid")
            for place in ("{}", '[true, "x"]', f'[{10**40}, "x"]', "[" * 900)
        ),
    ]
    of_outboxes: list[tuple[str, Any, int, str]] = [
        ("retry", {"numbers": [1]}, 400, "UnknownWord"),
        ("skip", {"number": 1, "reason": " \n"}, 400, "ValueInvalid"),
        ("skip", {"number": -1, "reason": "x\x00" * 5000}, 404, "MessageNotFound"),
        ("rebuild", {}, 409, "NotRebuildable"),
        *(
            ("move", {"to": place}, 400, "ValueInvalid")
            for place in ("Beginning", "0001-01-01T00:00:00+14:00", "x" * 10_000)
        ),
        *(("move", {"to": place}, 400, "CursorInvalid") for place in ("{", '{"a":' * 2_000)),
        *(
            ("move", {"to": json.dumps(POSITION | wrong)}, 400, "CursorInvalid")
            for wrong in ({"high": None}, {"last": 10**40}, {"batch": "1:2"}, {"seen": f"0:{10**30}:"})
        ),
    ]
    async with desk(database_url) as admin, desk(database_url, deliveries.app, clock=admin.backend.clock) as other:
        await admin.orders("a")
        await deliveries.put_and_fail(other.backend)
        whole = await standing(other.backend)
        wrong = [(path, *one) for path in BY_FILTER for one in (*of_all, *of_filters)]
        wrong += [(f"tasks/{verb}", {"state": state}, 400, "ValueInvalid") for verb, state in UNCHANGEABLE]
        for path in BY_NAME:
            wrong += [(path, {}, 400, "BadRequest"), (path, {"task": ["ship"]}, 400, "BadRequest")]
            wrong += [(path, {"task": "ship", "key": 1}, 400, "UnknownWord")]
        for path, body, status, code in wrong:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            refused(await admin.http.post(f"/admin/{path}", content=content), status, code)
        for verb, words, status, code in of_outboxes:
            body = {"outbox": "post"} | words
            refused(await other.http.post(f"/admin/outbox/{verb}", json=body), status, code)
            body["outbox"] = "'; drop table penstock_outbox; --"
            assert (await other.http.post(f"/admin/outbox/{verb}", json=body)).status_code in {400, 404}

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b" " * 10_000

        refused(await admin.http.post("/admin/tasks/skip", content=endless()), 413, "RequestTooLarge")
        of_kind = {"content-type": "text/plain"}
        answer = await admin.http.post("/admin/tasks/skip", content=b'{"task": "ship"}', headers=of_kind)
        refused(answer, 415, "UnsupportedMediaType")
        zipped = {"content-type": "application/json", "content-encoding": "gzip"}
        answer = await admin.http.post("/admin/tasks/skip", content=b"x", headers=zipped)
        refused(answer, 415, "UnsupportedEncoding")
        assert await admin.counts() == {"pending": 1}
        assert not (await admin.get("tasks"))["tasks"][1]["paused"]
        assert await standing(other.backend) == whole
        numbers = list(range(10_000))
        assert (await other.post("outbox/retry", outbox="files", number=numbers))["retried"] == 2


UNCHANGEABLE = (("cancel", "success"), ("cancel", "gone"), ("skip", "running"), ("skip", "success"))
POSITION = {"seen": "0:0:", "batch": None, "last": 0, "high": 0}


async def standing(backend: TestApp) -> list[Any]:
    """All that may be changed about outboxes."""
    store = backend.engine.store
    rows = await store.outboxes.list()
    aside = [await store.outboxes.aside(row.id, ("waiting", "halted", "parked"), 100) for row in rows]
    return [rows, aside, [(one.name, one.position) for one in await store.changes.readers()]]


async def test_changes_take_post_only_and_questions_get_only(sqlite_url: str) -> None:
    async with desk(sqlite_url) as admin:
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


# ----- too much, too long, and what nobody expects


async def test_what_is_too_much_or_takes_too_long_is_refused(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running, may_go_on = asyncio.Semaphore(0), asyncio.Event()

    async def slow() -> list[Any]:
        running.release()
        await may_go_on.wait()
        return []

    async def fail() -> Any:
        raise LookupError("something of the inside")

    async with desk(sqlite_url, call_timeout=1.0) as admin, desk(sqlite_url) as patient:
        tasks = patient.backend.engine.store.tasks
        monkeypatch.setattr(tasks, "list", slow)
        monkeypatch.setattr(admin.backend.engine.store.tasks, "list", slow)
        refused(await admin.http.get("/admin/tasks/records"), 503, "CallTimeout")
        await running.acquire()
        under_way = [asyncio.create_task(patient.get("tasks")) for _ in range(8)]
        for _ in under_way:
            await running.acquire()
        answer = await patient.http.post("/admin/tasks/pause", json={"task": "ship"})
        refused(answer, 503, "Overloaded")
        assert answer.headers["retry-after"] == "1"
        may_go_on.set()
        assert await asyncio.gather(*under_way) == [{"tasks": []}] * 8
        monkeypatch.setattr(tasks, "list", fail)
        answer = await patient.http.get("/admin/tasks")
        assert "inside" not in refused(answer, 500, "InternalServerError")
        assert "something of the inside" in caplog.text


# ----- anything at all


def test_whatever_is_sent_gets_an_answer(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.api.pools.workpool.NONE_HOLDS_AFTER", 0.0)
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=4,
    )
    names = ["ship", "files", "counts", "mail", "remind", "pending", "failed", "parked", "end", "15m", "a\0"]
    likely = st.sampled_from([*names, ["ship"], [1, 2], True, 1])

    def requests_to(operation: Operation) -> st.SearchStrategy[tuple[Operation, dict[str, Any]]]:
        names = [one.name for one in operation.takes]
        words = st.dictionaries(st.sampled_from(names or ["task"]), likely | values, max_size=5)
        usual = st.fixed_dictionaries({one.name: likely for one in operation.takes if one.needed})
        return st.tuples(st.just(operation), words | st.tuples(usual, words).map(lambda two: two[1] | two[0]))

    requests = st.lists(st.sampled_from(OPERATIONS).flatmap(requests_to), max_size=5)

    with one_backend(yard, sqlite_url, admin_token=SECRET) as tell:

        @given(requests)
        @settings(max_examples=examples(50))
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
