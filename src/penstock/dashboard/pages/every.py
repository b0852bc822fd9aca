"""All pages, in the order of the menu."""

from __future__ import annotations

from penstock.dashboard.page import Page
from penstock.dashboard.pages import audit, health, logs, overview, schema, timeline, work

PAGES: tuple[Page, ...] = (
    *overview.PAGES,
    *work.PAGES,
    *timeline.PAGES,
    *logs.PAGES,
    *schema.PAGES,
    *health.PAGES,
    *audit.PAGES,
)
