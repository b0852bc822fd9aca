"""Settings of the help desk. With ``DESK_POSTGRES`` set to the name of a database, it is on PostgreSQL."""

import os
from pathlib import Path

HERE = Path(__file__).parent

INSTALLED_APPS = ["desk", "penstock.django"]
PENSTOCK_APP = "desk.work:app"
MIDDLEWARE = ["penstock.django.middleware.ErrorAnswers"]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": HERE / "desk.db",
        "TEST": {"NAME": os.environ.get("DESK_TEST_FILE", HERE / "test.db")},  # a file, as penstock opens it too
    }
}
if "DESK_POSTGRES" in os.environ:
    DATABASES["default"] = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["DESK_POSTGRES"],
        "USER": os.environ.get("PGUSER", ""),
        "HOST": os.environ.get("PGHOST", ""),
        "PORT": os.environ.get("PGPORT", ""),
    }

ROOT_URLCONF = "desk.views"
SECRET_KEY = "of an example"  # noqa: S105 - of an example
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
