"""The examples in FastAPI, Flask and Django, the database of Django's settings, and functions that use its ORM."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import fastapi
import httpx
import parcels
import psycopg
import pytest
import with_fastapi
import with_flask
from asgiref.sync import SyncToAsync, sync_to_async
from django.db.utils import ConnectionHandler
from django.db.utils import Error as DjangoError
from sqlalchemy import make_url
from stage.guests import django_connection

from penstock import ActionCtx, App, ConfigError, Success, sync
from penstock.django import apps
from penstock.fastapi import install
from penstock.store.open import sqlite_path
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


# ----- Django

MANAGE = Path(__file__).parents[2] / "examples" / "django" / "manage.py"


def ran(*arguments: str, **environment: str) -> str:
    """What a command of the example prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(MANAGE), *arguments],
        env={name: value for name, value in os.environ.items() if name != "DATABASE_URL"} | environment,
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize("store", ["sqlite_url", "postgres_url"])
def test_the_tests_of_the_example_pass(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = make_url(request.getfixturevalue(store))
    place = {"PGUSER": url.username, "PGHOST": url.host or url.query.get("host"), "PGPORT": url.port and str(url.port)}
    given = {name: str(value) for name, value in place.items() if value}
    if store == "postgres_url":
        given["DESK_POSTGRES"] = str(url.database)
    told = ran("test", "desk", "--noinput", "--verbosity", "2", DESK_TEST_FILE=str(tmp_path / "test.db"), **given)
    assert "Ran 3 tests" in told
    assert "OK" in told


def test_the_database_is_that_of_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    django_connection("sqlite:///any.db")  # which configures Django
    postgres = {"ENGINE": "django.db.backends.postgresql", "NAME": "my shop", "USER": "ada", "PASSWORD": "a&b"}
    lite = {"ENGINE": "django.db.backends.sqlite3"}
    named = {
        "default": {**postgres, "HOST": "/run/pg", "PORT": 5433, "OPTIONS": {"sslmode": "require", "pool": True}},
        "lite": {**lite, "NAME": tmp_path / "a b.db"},
        "memory": {**lite, "NAME": ":memory:"},
    }
    monkeypatch.setattr(apps, "connections", ConnectionHandler(named))
    place = "user=ada&password=a%26b&host=%2Frun%2Fpg&port=5433&sslmode=require"
    assert apps.database_url(apps.alias()) == f"postgresql:///my%20shop?{place}"
    assert sqlite_path(apps.database_url("lite")) == tmp_path / "a b.db"
    with pytest.raises(ConfigError, match="TEST NAME"):
        apps.database_url("memory")


ADMIN = """
import django
from django.conf import settings
from django.urls import path
settings.configure(
    INSTALLED_APPS=["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "penstock.django"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "work.db"}},
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
    PENSTOCK_APP="work:app", PENSTOCK_DASHBOARD="https://work.example/dashboard?a=1", ROOT_URLCONF="__main__",
)
django.setup()
from django.contrib import admin
from django.contrib.auth.models import User
from django.template.loader import render_to_string
from django.test import RequestFactory
urlpatterns = [path("admin/", admin.site.urls)]
request = RequestFactory().get("/admin/")
request.user = User(is_superuser=True, is_active=True)
shown = {"app_list": admin.site.get_app_list(request), "show_changelinks": True}
print(render_to_string("admin/app_list.html", shown, request))
assert [app["app_label"] for app in admin.site.get_app_list(request, "auth")] == ["auth"]
"""


def test_the_admin_links_to_the_dashboard(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text("from penstock import App\napp = App()\n")
    (tmp_path / "admin.py").write_text(ADMIN)
    page = subprocess.run([sys.executable, "admin.py"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert '<a href="https://work.example/dashboard?a=1">Dashboard</a>' in page
    assert "Groups" in page


def test_the_command_line_is_one_of_django() -> None:
    assert "desk.work:close" in ran("penstock", "functions", "--json")


# ----- lost connections


@pytest.mark.parametrize(("age", "checks"), [(0, False), (600, True), (None, False)])
async def test_a_lost_connection_of_django_fails_no_later_call(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, age: int | None, checks: bool
) -> None:
    """In threads, and in the thread that `sync_to_async` has."""
    settings = django_connection(postgres_url).settings_dict | {"CONN_MAX_AGE": age, "CONN_HEALTH_CHECKS": checks}
    connections = ConnectionHandler({"default": settings})
    monkeypatch.setattr("django.db.connections", connections)
    monkeypatch.setattr(SyncToAsync, "single_thread_executor", ThreadPoolExecutor(1))  # the others go without
    app = App(threads=1)

    def ask() -> int:
        with connections["default"].cursor() as cursor:
            cursor.execute("select pg_backend_pid()")
            pid: int = cursor.fetchone()[0]
            return pid

    @app.internal_action
    def in_thread(ctx: sync.ActionCtx) -> int:
        return ask()

    @app.internal_action
    async def on_loop(ctx: ActionCtx) -> int:
        return await sync_to_async(ask)()

    @app.internal_action
    def close(ctx: sync.ActionCtx) -> None:
        connections.close_all()

    async with TestApp(app, postgres_url) as test:

        async def both() -> list[int]:
            """The connections on which functions run; zero for one that fails."""
            found = []
            for function in (in_thread, on_loop):
                try:
                    found.append(await test.run_action(function))
                except DjangoError:
                    found.append(0)
            return found

        first, second = await both(), await both()
        assert all(first + second)
        assert (first == second) is (age != 0), "a connection that may live on is kept"
        with psycopg.connect(postgres_url, autocommit=True) as other:
            for pid in second:
                other.execute("select pg_terminate_backend(%s, 5000)", (pid,))
        assert all(await both()) is (age == 0 or checks), "none is kept, or each is checked"
        assert all(await both())
        await test.run_action(close)
        await sync_to_async(connections.close_all)()
