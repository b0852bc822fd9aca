"""The examples in FastAPI and in Flask."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import fastapi
import httpx
import parcels
import pytest
import with_fastapi
import with_flask

from penstock import App, Success
from penstock.fastapi import install
from penstock.testing import TestApp

# ----- FastAPI

NOON = "2035-01-01T12:00:00Z"
ADA = {"sender": "ada", "address": "Main Street 1", "due": NOON}


def client_of(web: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url="http://post", transport=httpx.ASGITransport(web))


@asynccontextmanager
async def post_office(database: str) -> AsyncIterator[tuple[TestApp, httpx.AsyncClient]]:
    """The example on a backend of the test's, as its users would test it."""
    async with TestApp(parcels.app, database) as backend, client_of(with_fastapi.web) as http:
        with_fastapi.web.dependency_overrides[with_fastapi.backend] = lambda: backend
        yield backend, http
        with_fastapi.web.dependency_overrides.clear()


async def test_rows_come_in_and_go_out(database_url: str) -> None:
    async with post_office(database_url) as (backend, http):
        sent = await http.post("/parcels", json=ADA)
        assert (sent.status_code, sent.json()[:7]) == (201, "parcel_")
        delivered = await http.post(f"/parcels/{sent.json()}/delivery")
        assert delivered.json() == {
            "id": sent.json(),
            "creation_time": "2030-01-01T00:00:00Z",
            "delivered": True,
            **ADA,
        }
        assert await backend.run_until_idle() == 1
        assert (await http.get("/parcels", auth=("ada", "secret"))).json() == [delivered.json()]
        assert (await http.get("/parcels", auth=("eve", "secret"))).json() == []
        assert (await http.get("/parcels", auth=("ada", "wrong"))).status_code == 401


async def test_errors_have_their_statuses(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with post_office(database_url) as (_backend, http):
        for refused in ({**ADA, "due": "at noon"}, {**ADA, "due": 5, "sender": 1}, {"sender": "ada"}, [1]):
            answer = await http.post("/parcels", json=refused)
            assert (answer.status_code, answer.json()["detail"][0]["loc"][0]) == (422, "body"), answer.text
        late = await http.post("/parcels", json={**ADA, "due": "2001-01-01T12:00:00Z"})
        assert (late.status_code, late.json()["data"]) == (409, {"reason": "too late"})
        wrong = await http.post("/parcels/job_01jd3k4v5w6x7y8z9a0b1c2d3e/delivery")
        assert (wrong.status_code, wrong.json()["detail"][0]["loc"]) == (422, ["path", "parcel"])
        gone = await http.post("/parcels/parcel_01jd3k4v5w6x7y8z9a0b1c2d3e/delivery")
        assert (gone.status_code, gone.json()["code"]) == (404, "RowNotFound")
        told = [vars(one)["facts"]["function"] for one in caplog.records if vars(one).get("event") == "call.refused"]
        assert told == ["parcels:deliver"]


def test_the_schema_names_ids_and_rows() -> None:
    described = with_fastapi.web.openapi()
    (parameter,) = described["paths"]["/parcels/{parcel}/delivery"]["post"]["parameters"]
    assert parameter["schema"]["pattern"] == "^parcel_[0-7][0-9a-hjkmnp-tv-z]{25}$"
    body = described["paths"]["/parcels"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert (body["title"], body["required"]) == ("Parcel", ["sender", "address", "due"])
    assert described["components"]["schemas"]["Parcel"]["required"][:2] == ["id", "creation_time"]


async def test_the_backend_opens_with_the_web_app_and_is_mounted_beside_it(database_url: str) -> None:
    app, began = App(database=database_url), list[str]()

    @asynccontextmanager
    async def own(_web: fastapi.FastAPI) -> AsyncIterator[dict[str, str]]:
        began.append("own")
        yield {"own": "state"}

    web = fastapi.FastAPI(lifespan=own)
    backend = install(web, app, path="/backend")

    @web.get("/own")
    async def own_endpoint(of: Any = fastapi.Depends(backend)) -> bool:  # noqa: B008, FAST002 - a name of this function
        return of.app is app

    async with web.router.lifespan_context(web) as state:
        assert (began, state) == (["own"], {"own": "state"})
        async with client_of(web) as http:
            assert (await http.get("/own")).json() is True
            assert (await http.get("/backend/readyz")).json() == {"status": "ready"}
            assert (await http.get("/backend/rest/no/such")).status_code == 404
    async with client_of(web) as http:
        assert (await http.get("/own")).json()["code"] == "ShuttingDown"


# ----- Flask

PARCEL = {"sender": "ada", "address": "Main Street 1", "due": "2035-01-01T12:00:00+00:00"}


def test_the_example_works_and_errors_have_their_statuses(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    http = with_flask.web.test_client()

    def answer(path: str, status: int, **request: Any) -> Any:
        answered = http.open(path, **request)
        assert (answered.status_code, answered.content_type) == (status, "application/json"), answered.text
        return answered.json

    try:
        parcel = answer("/parcels", 201, method="POST", data=PARCEL)
        late = answer("/parcels", 409, method="POST", data={**PARCEL, "due": "2001-01-01T12:00:00+00:00"})
        assert late["data"] == {"reason": "too late"}
        assert answer(f"/parcels/{parcel}/delivery", 200, method="POST")["delivered"] is True
        assert answer("/parcels/parcel_1/delivery", 422, method="POST")["code"] == "ArgumentsInvalid"
        gone = answer("/parcels/parcel_01jd3k4v5w6x7y8z9a0b1c2d3e/delivery", 404, method="POST")
        assert "parcel_0" not in gone["message"], "the text of the error is for the log"
        assert [found["id"] for found in answer("/parcels", 200, auth=("ada", "secret"))] == [parcel]
        assert answer("/parcels", 401)["code"] == "NotSignedIn"
        (job,) = parcels.app.sync.jobs("pending")
        with parcels.app.sync.open(services=("worker",)) as worker:
            assert parcels.printer.result(worker, job.id) == Success(f"label of {parcel}")
    finally:
        parcels.app.sync.close()
