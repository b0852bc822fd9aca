"""The admin interface of outboxes under input that nobody sends by mistake."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from stage.desk import TO_OUTBOXES, desk, refused
from stage.mailroom import app, failing, hand_over, put_and_fail
from stage.outboxes import send

from penstock.testing import TestApp

POSITION = {"seen": "0:0:", "batch": None, "last": 0, "high": 0}


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    failing.clear()
    yield
    failing.clear()


async def standing(backend: TestApp) -> list[Any]:
    """All that may be changed about outboxes."""
    rows = await backend.engine.store.outboxes.list()
    aside = [await backend.engine.store.outboxes.aside(row.id, ("waiting", "halted", "parked"), 100) for row in rows]
    return [rows, aside, [(one.name, one.position) for one in await backend.engine.store.changes.readers()]]


# ----- what cannot be taken


QUESTIONS = [
    ("outbox", "outbox=post", 400, "UnknownWord"),
    ("outbox", "limit=1", 400, "UnknownWord"),
    ("outbox/show", "name=post", 400, "UnknownWord"),
    ("outbox/show", "outbox=postt", 404, "OutboxNotFound"),
    ("outbox/show", "outbox=%00", 404, "OutboxNotFound"),
    ("outbox/show", "outbox=%ED%A0%80", 404, "OutboxNotFound"),
    ("outbox/show", "outbox=a/b/../c", 404, "OutboxNotFound"),
    ("outbox/show", "outbox=%F0%9F%93%AE", 404, "OutboxNotFound"),
    ("outbox/show", "outbox=" + "x" * 16_000, 404, "OutboxNotFound"),
    ("outbox/show", "outbox=" + "x" * 20_000, 414, "UriTooLong"),
    ("outbox/messages", "outbox=postt", 404, "OutboxNotFound"),
    ("outbox/messages", "outbox=post&state=dirty", 400, "ValueInvalid"),
    ("outbox/messages", "outbox=post&state=parked,", 400, "ValueInvalid"),
    ("outbox/messages", "outbox=post&limit=1001", 400, "BadRequest"),
    ("outbox/messages", f"outbox=post&after={2**63}", 400, "BadRequest"),
    ("outbox/messages", "outbox=post&number=1", 400, "UnknownWord"),
    ("outbox/post", "", 404, "NotFound"),
    ("outbox/", "", 404, "NotFound"),
    ("outbox/show/", "outbox=post", 404, "NotFound"),
    ("outboxes", "", 404, "NotFound"),
]


async def test_questions_about_outboxes_that_cannot_be_taken(sqlite_url: str) -> None:
    async with desk(sqlite_url, app) as admin:
        for path, query, status, code in QUESTIONS:
            message = refused(await admin.http.get(f"/admin/{path}?{query}"), status, code)
            if "limit=1001" in query:
                assert message == "limit must be a whole number from 1 to 1000."
            if f"after={2**63}" in query:
                assert message == "after must be a whole number of at most 64 bits."


async def test_pages_after_any_number(database_url: str) -> None:
    async with desk(database_url, app) as admin:
        await put_and_fail(admin.backend)
        for after, count in ((-(2**63), 2), (2**63 - 1, 0), (0, 2), (-1, 2)):
            page = await admin.get("outbox/messages", outbox="files", after=after)
            assert (len(page["messages"]), page["next"]) == (count, None), after


async def test_changes_of_outboxes_that_cannot_be_taken(database_url: str) -> None:
    of_all: list[tuple[Any, int, str]] = [
        (b"", 400, "BadJson"),
        (b"{", 400, "BadJson"),
        (b'{"outbox": NaN}', 400, "BadJson"),
        (b'{"outbox": "\\ud800"}', 400, "BadJson"),
        (b"[" * 60_000, 413, "RequestTooLarge"),
        (b'{"outbox": "\xff"}', 400, "BadJson"),
        ([], 400, "BadRequest"),
        ("post", 400, "BadRequest"),
        (None, 400, "BadRequest"),
        ({"name": "post"}, 400, "UnknownWord"),
        ({"outbox": "post", "everything": True}, 400, "UnknownWord"),
        ({"outbox": "post", "": 1}, 400, "UnknownWord"),
        ({"outbox": "post", "yes": True}, 400, "UnknownWord"),
    ]
    wrong: dict[str, list[tuple[dict[str, Any], int, str]]] = {
        "retry": [
            ({"numbers": [1]}, 400, "UnknownWord"),
        ],
        "skip": [
            ({"number": 1, "reason": " \n"}, 400, "ValueInvalid"),
            ({"number": 10**12, "reason": "x"}, 404, "MessageNotFound"),
            ({"number": -1, "reason": "x\x00" * 5000}, 404, "MessageNotFound"),
        ],
        "move": [
            ({"to": "Beginning"}, 400, "ValueInvalid"),
            ({"to": "2030-13-01T00:00Z"}, 400, "ValueInvalid"),
            ({"to": "2030-01-01T00:00"}, 400, "ValueInvalid"),
            ({"to": "0001-01-01T00:00:00+14:00"}, 400, "ValueInvalid"),
            ({"to": "9999-12-31T23:59:59-14:00"}, 400, "ValueInvalid"),
            ({"to": "x" * 10_000}, 400, "ValueInvalid"),
        ],
        "pause": [({"paused": False}, 400, "UnknownWord")],
        "resume": [({"limit": 1}, 400, "UnknownWord")],
        "rebuild": [({}, 409, "NotRebuildable"), ({"to": "end"}, 400, "UnknownWord")],
        "drop": [({"force": True}, 400, "UnknownWord")],
    }
    rest: dict[str, dict[str, Any]] = {"skip": {"number": 1, "reason": "x"}, "move": {"to": "end"}}
    async with desk(database_url, app) as admin:
        await put_and_fail(admin.backend)
        whole = await standing(admin.backend)
        for path in TO_OUTBOXES:
            verb = path.removeprefix("outbox/")
            others = [
                (rest.get(verb, {}) | {"outbox": name}, status, code)
                for name, status, code in (
                    ("postt", 404, "OutboxNotFound"),
                    ("post\0", 404, "OutboxNotFound"),
                    ("../post", 404, "OutboxNotFound"),
                    ("' or '1'='1", 404, "OutboxNotFound"),
                    ("'; drop table penstock_outbox; --", 404, "OutboxNotFound"),
                    ("%", 404, "OutboxNotFound"),
                    ("póst", 404, "OutboxNotFound"),
                    ("📮" * 1000, 404, "OutboxNotFound"),
                )
            ]
            own = [({"outbox": "post"} | words, status, code) for words, status, code in wrong[verb]]
            for body, status, code in [*of_all, *others, *own]:
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                answer = await admin.http.post(f"/admin/{path}", content=content)
                said = (answer.status_code, answer.json()["code"])
                assert said == (status, code), (path, str(body)[:200], answer.text[:500])
        assert await standing(admin.backend) == whole


async def test_places_that_no_outbox_has_had(database_url: str) -> None:
    places = [
        "{",
        "{}",
        "{" * 2_000,
        '{"a":' * 2_000,
        '{"seen": 5}',
        *(
            json.dumps(POSITION | wrong)
            for wrong in (
                {"high": 10**12},
                {"high": 2**63},
                {"high": -(10**30)},
                {"high": "9" * 5000},
                {"high": None},
                {"high": [1]},
                {"high": True, "seen": "1"},
                {"last": 10**40},
                {"batch": 5},
                {"batch": "1:2"},
                {"seen": f"0:{10**30}:"},
                {"seen": f"0:{-(10**30)}:"},
                {"seen": "0:0:" + ",".join(map(str, range(10**30, 10**30 + 5)))},
                {"seen": "a:b:c"},
                {"seen": None},
            )
        ),
        json.dumps(POSITION).replace('"high": 0', '"high": 1e400'),
        json.dumps(POSITION).replace('"last": 0', '"last": NaN'),
    ]
    async with desk(database_url, app) as admin:
        await put_and_fail(admin.backend)
        whole = await standing(admin.backend)
        for place in places:
            body = {"outbox": "post", "to": place}
            refused(await admin.http.post("/admin/outbox/move", json=body), 400, "CursorInvalid")
        assert await standing(admin.backend) == whole


async def test_messages_that_no_json_can_say_are_shown_all_the_same(database_url: str) -> None:
    deep = "[" * 80 + "]" * 80
    payloads = {
        f'{{"n": {10**40}}}': json.dumps({"n": 10**40}),
        deep: deep,
        '"talk \\u00fc \\u2028 <script>"': "talk ü \u2028 <script>",
        '{"$bytes": "!", "$integer": 5}': {"$bytes": "!", "$integer": 5},
        "null": None,
    }
    failing.update(("talk", "talk ü \u2028 <script>"))
    async with desk(database_url, app) as admin:
        await hand_over(admin.backend)
        for payload in payloads:
            await send(admin.backend, "talks", payload, "a/b/é\u202e")
        await hand_over(admin.backend)
        found = (await admin.get("outbox/messages", outbox="talks"))["messages"]
        assert [one["content"] for one in found] == list(payloads.values())
        assert {one["key"] for one in found} == {"a/b/é\u202e"}


async def test_thousands_of_messages_are_retried_by_number(database_url: str) -> None:
    async with desk(database_url, app) as admin:
        await put_and_fail(admin.backend)
        numbers = list(range(10_000))
        assert (await admin.post("outbox/retry", outbox="files", number=numbers))["retried"] == 2
