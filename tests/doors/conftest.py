"""Where those who come in through a door find themselves."""

from __future__ import annotations

from stage.migrated import postgres_url, sqlite_url

__all__ = ["postgres_url", "sqlite_url"]
