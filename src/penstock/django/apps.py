"""penstock as a Django app: its tables come with ``manage.py migrate``, in the database of Django's settings.

Owns the settings `PENSTOCK_APP`, `PENSTOCK_DATABASE` and `PENSTOCK_DASHBOARD`. Imports Django, which penstock does not
depend on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.apps import AppConfig, apps
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.models.signals import post_migrate

from penstock.cli.program import find_program, load_app
from penstock.errors import ConfigError


class PenstockConfig(AppConfig):  # type: ignore[misc]  # Django ships no types
    """Put ``"penstock.django"`` last into `INSTALLED_APPS`, and name your `App`: ``PENSTOCK_APP = "shop.work:app"``.

    `PENSTOCK_DATABASE` is the alias of its database, ``"default"`` by default. `PENSTOCK_DASHBOARD` is the URL of its
    dashboard, to which Django's admin then has a link.
    """

    name = "penstock.django"
    label = "penstock"

    def ready(self) -> None:
        """Import the app, which uses Django's database from now on. Its tables are made after Django's."""
        if not (name := getattr(settings, "PENSTOCK_APP", "")):
            raise ConfigError("Django's settings do not name the app.", fix='Write PENSTOCK_APP = "module:app".')
        self.app = load_app(find_program(name, Path.cwd()))
        self.app.default_database = lambda: database_url(alias())
        post_migrate.connect(self._migrate, sender=self)
        url = getattr(settings, "PENSTOCK_DASHBOARD", "")
        if url and apps.is_installed("django.contrib.admin"):
            _link_to(url)

    def _migrate(self, using: str, **_facts: Any) -> None:
        """Make the tables, unless Django has more migrations to apply, as after ``migrate shop 0001``."""
        connection = connections[using]
        if using != alias() or (connection.vendor == "sqlite" and connection.is_in_memory_db()):
            return
        executor = MigrationExecutor(connection)
        if not executor.migration_plan(executor.loader.graph.leaf_nodes()):
            with self.app.sync.open():
                pass


def _link_to(url: str) -> None:
    """Show the dashboard in the admin, among the apps."""
    from django.contrib import admin  # noqa: PLC0415 - not everybody has it installed

    model = {"name": "Dashboard", "object_name": "Dashboard", "admin_url": url, "view_only": True}
    link = {"name": "penstock", "app_label": "penstock", "app_url": url, "models": [model]}
    listed = admin.site.get_app_list

    def with_link(request: Any, app_label: str | None = None) -> list[Any]:
        return [*listed(request, app_label), *([] if app_label else [link])]

    admin.site.get_app_list = with_link


def alias() -> str:
    """The name of the database in Django's settings."""
    return str(getattr(settings, "PENSTOCK_DATABASE", DEFAULT_DB_ALIAS))


def database_url(name: str) -> str:
    """The URL of a database of Django's settings; of the test database while Django's tests run.

    Raises:
        ConfigError: It is neither PostgreSQL nor a file of SQLite.
    """
    connection = connections[name]
    given = connection.settings_dict
    if connection.vendor == "sqlite" and not connection.is_in_memory_db():
        return f"sqlite:///{quote(str(given['NAME']))}"
    if connection.vendor != "postgresql":
        raise ConfigError(
            f"penstock cannot use the database {name!r} of Django's settings.",
            fix="Use PostgreSQL, or a file of SQLite; in tests set its TEST NAME to a file, too.",
        )
    options = {key: value for key, value in given.get("OPTIONS", {}).items() if key.startswith("ssl")}
    place = {"user": given["USER"], "password": given["PASSWORD"], "host": given["HOST"], "port": given["PORT"]}
    facts = {key: str(value) for key, value in place.items() if value}
    return f"postgresql:///{quote(given['NAME'])}?{urlencode({**facts, **options})}"
