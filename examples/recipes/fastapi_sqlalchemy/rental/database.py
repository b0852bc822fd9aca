"""One database for SQLAlchemy, Alembic and penstock: `DATABASE_URL`, which names no driver."""

import os

from sqlalchemy import URL, make_url

DRIVERS = {"postgresql": "postgresql+asyncpg", "sqlite": "sqlite+aiosqlite"}


def engine_url() -> URL:
    """The URL for SQLAlchemy, which wants a driver."""
    url = make_url(os.environ["DATABASE_URL"])
    return url.set(drivername=DRIVERS[url.drivername])
