"""Where races begin."""

from __future__ import annotations

from stage.databases import postgres_url, sqlite_url

__all__ = ["postgres_url", "sqlite_url"]
