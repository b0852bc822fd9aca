"""Where those who come in through a door find themselves."""

from __future__ import annotations

from doors.cli_fixtures import bookings, console, shell, unmigrated
from doors.http_fixtures import bookshop, door, far_door, far_shop, near_door, shop
from stage.databases import postgres_url, sqlite_url

__all__ = [
    "bookings", "bookshop", "console", "door", "far_door", "far_shop", "near_door", "postgres_url", "shell", "shop",
    "sqlite_url", "unmigrated",
]  # fmt: skip
