"""The admin interface as those know theirs who come from other systems of tasks: JSON, mounted anywhere, and told."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import httpx
import pytest
from stage.desk import TOKEN, app, desk, failing, refused
from starlette.applications import Starlette
from starlette.routing import Mount

from penstock import asgi_app


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    failing.clear()
    yield
    failing.clear()


async def test_sdi1_sdu1_a_list_is_asked_for_and_is_json(database_url: str) -> None:
    async with desk(database_url) as admin:
        orders = await admin.orders("a", "b")
        answer = await admin.http.get("/admin/tasks/records", params={"task": "ship", "limit": 1})
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
        page = answer.json()
        assert page.keys() == {"records", "next"}
        assert [one["key"] for one in page["records"]] == [min(orders)]
        assert page["records"][0]["state"] == "pending"


async def test_sdu2_a_retry_takes_json_and_answers_json(database_url: str) -> None:
    failing.add("bad")
    async with desk(database_url) as admin:
        await admin.orders("bad", "good")
        await admin.run()
        answer = await admin.http.post("/admin/tasks/retry", json={"task": "ship", "state": "failed"})
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
        assert answer.json() == {"found": 1, "changed": 1, "more": False, "next": None}
        refused(
            await admin.http.post("/admin/tasks/retry", content=b"task=ship", headers={"content-type": "text/plain"}),
            415,
            "UnsupportedMediaType",
        )
        assert await admin.counts(task="ship") == {"pending": 1, "success": 1}


async def test_sdu6_an_unknown_path_is_not_answered(database_url: str) -> None:
    async with desk(database_url) as admin:
        for path in ("", "nowhere", "tasks/nowhere", "tasks/records/1"):
            for method in ("GET", "POST"):
                refused(await admin.http.request(method, f"/admin/{path}"), 404, "NotFound")


@pytest.mark.parametrize("place", ["/inside", "/deep/within/it"])
async def test_sdi2_it_is_mounted_under_any_path(database_url: str, place: str) -> None:
    async with desk(database_url) as admin:
        (order,) = await admin.orders("a")
        outer = Starlette(routes=[Mount(place, app=asgi_app(app, backend=admin.backend))])
        async with httpx.AsyncClient(
            base_url="http://shop", transport=httpx.ASGITransport(outer), headers=TOKEN
        ) as http:
            page = (await http.get(f"{place}/admin/tasks/records", params={"task": "ship"})).json()
            assert [one["key"] for one in page["records"]] == [order]
            done = await http.post(f"{place}/admin/tasks/skip", json={"task": "ship", "key": order})
            assert done.json()["changed"] == 1
            assert (await http.get("/admin/tasks")).status_code == 404


async def test_dl2_a_retry_by_hand_is_told(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    failing.add("bad")
    caplog.set_level(logging.INFO, "penstock")
    async with desk(database_url) as admin:
        await admin.orders("bad", "good")
        await admin.run()
        await admin.post("tasks/retry", task="ship", state="failed")
        await admin.post("tasks/retry", task="ship", error="nothing like it")
        told = [vars(one)["facts"] for one in caplog.records if vars(one).get("event") == "task.retried"]
        assert told == [{"task": "ship", "rows": 1}, {"task": "ship", "rows": 0}]


async def test_api1_no_answer_holds_what_was_captured(database_url: str) -> None:
    furtive, amount = "furtive", 987_654_321_987  # ids have no u
    async with desk(database_url) as admin:
        (order,) = await admin.orders(furtive, amount=amount)
        row = {"task": "ship", "key": order}
        told = await admin.http.get("/admin/tasks/explain", params=row)
        assert str(amount) in told.text, "it was captured, and is told to whoever asks why"
        answers = [
            *[await admin.http.get(f"/admin/tasks{path}") for path in ("", "/records", "/records?order=due", "/count")],
            await admin.http.get("/admin/tasks/show", params=row),
            await admin.http.get("/admin/tasks/show", params={**row, "task": "note"}),
            *[
                await admin.http.post(f"/admin/tasks/{verb}", json=row)
                for verb in ("cancel", "retry", "skip", "delete")
            ],
        ]
        for answer in answers:
            assert answer.status_code == 200, answer.text
            assert furtive not in answer.text
            assert str(amount) not in answer.text


async def test_api3_a_list_is_in_the_order_of_keys_and_fifty_at_a_time_by_default(database_url: str) -> None:
    async with desk(database_url) as admin:
        orders = await admin.orders(*map(str, range(60)))
        page = await admin.get("tasks/records", task="ship")
        assert [one["key"] for one in page["records"]] == sorted(orders)[:50]
        assert page == await admin.get("tasks/records", task="ship", order="key", limit=50)
        rest = await admin.get("tasks/records", task="ship", after=page["next"])
        assert [one["key"] for one in rest["records"]] == sorted(orders)[50:]
        assert rest["next"] is None
