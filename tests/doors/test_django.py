"""The example in Django: its own tests, in a process of Django's, with the test database that Django makes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.db.utils import ConnectionHandler
from sqlalchemy import make_url
from stage.guests import django_connection

from penstock import ConfigError
from penstock.django import apps
from penstock.store.open import sqlite_path

MANAGE = Path(__file__).parents[2] / "examples" / "django" / "manage.py"


def ran(*arguments: str, **environment: str) -> str:
    """What a command of the example prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(MANAGE), *arguments],
        env={name: value for name, value in os.environ.items() if name != "DATABASE_URL"} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
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


def test_settings_without_the_app_are_refused() -> None:
    django_connection("sqlite:///any.db")  # which configures Django
    with pytest.raises(ConfigError, match='Write PENSTOCK_APP = "module:app"'):
        apps.PenstockConfig("penstock.django", apps).ready()


def test_the_command_line_is_one_of_django() -> None:
    assert "desk.work:close" in ran("penstock", "functions", "--json")
